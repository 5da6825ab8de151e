"""transformers (Mamba-2 scan): after a very negative log decay, later chunks lose precision; −∞ gives NaN.

    pip install transformers torch && python transformers_mamba2_decay.py

Decays within a chunk are sums of their own for each pair of steps. Those from a step to the end of its chunk are
differences of one running sum: a large |A·dt| in it takes away digits of the decays after it, and −∞ leaves
−∞ − (−∞), which is NaN. Here dt is 1 and A is g. Errors are distances from the definition in float64, over its largest
element; the definition computed in float32 is next to them.
"""

import inspect

import torch
from _linear import sums_of_decays
from _shared import verdict
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

# Its decorator calls an installed kernel in its place.
function = inspect.unwrap(mamba2_chunk_scan)


def scan(q, k, v, g):
    o, state = function(v, torch.ones_like(g), g, k, q * q.shape[-1] ** -0.5, 64, return_final_states=True)
    return o, state.mT


verdict(sums_of_decays({"in chunks": scan}))
