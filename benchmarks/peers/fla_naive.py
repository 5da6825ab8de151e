"""flash-linear-attention's `naive` functions, the PyTorch code with which it compares its kernels.

They compute in float32. Those that return o in float32 for 16-bit values have it rounded here.
"""

from types import SimpleNamespace

from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda
from fla.ops.simple_gla.naive import naive_chunk_simple_gla, naive_recurrent_simple_gla

from ._adapter import grouped_heads, refuse

GROUPED = (naive_chunk_kda, naive_recurrent_kda)


def _divisor(S):
    """The largest size of chunks up to 64 that divides S."""
    return next(size for size in range(min(S, 64), 0, -1) if S % size == 0)


def _naive(op, function, chunk=None):
    """``chunk`` is the size of chunks for S steps where a call gives none, of a function that has chunks."""
    delta = op in ("gated_delta_rule", "kimi_delta_attention")

    def called(q, k, v, g, beta=None, *, initial_state=None, scale=None, chunk_size=None, **unserved):
        refuse((unserved, ", ".join(unserved)))
        beta = v.new_ones(v.shape[:-1]) if beta is None else beta
        refuse(
            (min(*q.shape, *v.shape) == 0, "arrays without elements"),
            (scale is not None and op == "gla", "a scale other than 1/√K"),
            (chunk_size is not None and chunk is None, "chunks"),
            (function not in GROUPED and len({x.shape[2] for x in (q, k, v, g, beta)}) > 1, "grouped heads"),
        )
        q, k, v, g, beta = grouped_heads(q, k, v, g, beta)
        options = {"gk": g} if op == "gla" else {"g": g, "scale": scale}
        options |= {"beta": beta} if delta else {}
        options |= {"chunk_size": chunk_size or chunk(q.shape[1])} if chunk else {}
        o, state = function(q, k, v, initial_state=initial_state, output_final_state=True, **options)
        return o.to(v.dtype), state

    return SimpleNamespace(**{op: called})


simple_chunk = _naive("simple_gla", naive_chunk_simple_gla, lambda S: 64)
simple_recurrent = _naive("simple_gla", naive_recurrent_simple_gla)
gla_recurrent = _naive("gla", naive_recurrent_gla)
gated_chunk = _naive("gated_delta_rule", naive_chunk_gated_delta_rule, lambda S: 64)
gated_recurrent = _naive("gated_delta_rule", naive_recurrent_gated_delta_rule)
kda_chunk = _naive("kimi_delta_attention", naive_chunk_kda, _divisor)
kda_recurrent = _naive("kimi_delta_attention", naive_recurrent_kda)
