"""The PyTorch functions with which transformers computes linear attention where no kernels are installed.

Qwen3-Next, Qwen3.5 and OLMo hybrid share two functions of the gated delta rule, Kimi Linear and Bailing hybrid two of
Kimi delta attention. They and Mamba-2's scan compute in float32, and behind decorators that prefer installed kernels.
"""

import inspect
from types import SimpleNamespace

import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from ._adapter import grouped_heads, refuse


def _delta(op, function, chunks=False):
    native, grouped = inspect.unwrap(function), op == "gated_delta_rule"

    def delta(q, k, v, g, beta=None, *, initial_state=None, scale=None, qk_norm_eps=None, chunk_size=None, **unserved):
        refuse((unserved, ", ".join(unserved)))
        beta = v.new_ones(v.shape[:-1]) if beta is None else beta
        refuse(
            (min(*q.shape, *v.shape) == 0, "arrays without elements"),
            (scale is not None, "a scale other than 1/√K"),
            (qk_norm_eps not in (None, 1e-6), "qk_norm_eps other than 1e-6"),
            (not chunks and chunk_size is not None, "chunks"),
            (not grouped and len({x.shape[2] for x in (q, k, v, g, beta)}) > 1, "grouped heads"),
        )
        q, k, v, g, beta = grouped_heads(q, k, v, g, beta)
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": qk_norm_eps is not None}
        options |= {"chunk_size": chunk_size} if chunk_size else {}
        return native(q, k, v, g=g, beta=beta, initial_state=initial_state, **options)

    return SimpleNamespace(**{op: delta})


def _mamba2(q, k, v, g, *, initial_state=None, scale=None, **unserved):
    refuse((unserved, ", ".join(unserved)))
    refuse((min(*q.shape, *v.shape) == 0, "arrays without elements"))
    q, k, v, g = grouped_heads(q, k, v, g)
    q = q.float() * (q.shape[-1] ** -0.5 if scale is None else scale)
    # With steps of length 1, A is the log decay. Its states are (B, N, V, K), and it returns float32.
    states = {"initial_states": None if initial_state is None else initial_state.mT, "return_final_states": True}
    o, state = inspect.unwrap(mamba2_chunk_scan)(v, torch.ones_like(g), g, k, q, 64, **states)
    return o.to(v.dtype), state.mT


gated_chunk = _delta("gated_delta_rule", qwen.torch_chunk_gated_delta_rule, chunks=True)
gated_recurrent = _delta("gated_delta_rule", qwen.torch_recurrent_gated_delta_rule)
kimi_chunk = _delta("kimi_delta_attention", kimi.chunk_kimi_delta_attention)
kimi_recurrent = _delta("kimi_delta_attention", kimi.recurrent_kimi_delta_attention)
mamba2 = SimpleNamespace(simple_gla=_mamba2)
