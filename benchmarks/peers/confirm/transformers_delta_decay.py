"""transformers (gated delta rule in chunks): after a very negative log decay, later steps lose precision; −∞ gives NaN.

    pip install transformers torch && python transformers_delta_decay.py

Decays between two steps of a chunk are exponentials of differences of one running sum of g. A large |g_t| in that sum
takes away digits of all decays after it, and −∞ leaves −∞ − (−∞), which is NaN. Errors are distances from the
definition in float64, over its largest element; the definition computed in float32 is next to them.
"""

import inspect

from _linear import sums_of_decays
from _shared import verdict
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

# Its decorator calls an installed kernel in its place.
function = inspect.unwrap(torch_chunk_gated_delta_rule)
verdict(sums_of_decays({"in chunks": lambda *inputs: function(*inputs, output_final_state=True)}, delta=True))
