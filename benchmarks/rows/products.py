"""The matrix products of an mLSTM and nothing else: a bound for every implementation that uses the same products.

Operands are prepared head first and chunk by chunk. The gradient is autograd's, which is eight products for these four.
"""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, UnavailableError, imported

NEIGHBOUR = ("no mLSTM: its matrix products alone, without gates, decay or normaliser", ("forward", "both"))


def _chunked(case: Case, L: int) -> Any:
    if case.S % L:
        raise UnavailableError(f"chunks of {L} do not divide S = {case.S}")
    return lambda x: x.reshape(-1, L, x.shape[-1])


def _in_torch(case: Case, L: int) -> Function:
    torch, cut = imported("torch"), _chunked(case, L)

    def products(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        shape = v.shape
        q, k, v = cut(q), cut(k), cut(v)
        h = torch.baddbmm(q @ (k.mT @ v), q @ k.mT, v)
        return (h.view(shape),)

    return products


def _in_jax(case: Case, L: int) -> Function:
    jnp, cut = imported("jax").numpy, _chunked(case, L)

    def products(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        shape = v.shape
        q, k, v = cut(q), cut(k), cut(v)
        written = jnp.einsum("clk,clv->ckv", k, v)
        h = jnp.einsum("clk,ckv->clv", q, written) + jnp.einsum("ctk,cjk->ctj", q, k) @ v
        return (h.reshape(shape),)

    return products


def _step_in_torch(case: Case, _: Any) -> Function:
    def products(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, ...]:
        C = C + k[..., :, None] * v[..., None, :]
        return ((q[..., None, :] @ C)[..., 0, :], C, n, m)

    return products


def _row(framework: str, op: str, load: Any, **fields: Any) -> Contender:
    return Contender(f"products alone ({framework})", op, framework, load, differs=NEIGHBOUR, **fields)


CHUNKS = (32, 64, 128, 256)
CONTENDERS = [
    _row("torch", "mlstm", _in_torch, choices=CHUNKS, head_first=True),
    _row("jax", "mlstm", _in_jax, choices=CHUNKS, head_first=True),
    # The outer product k vᵀ written to the memory, and the read of the memory by q.
    _row("torch", "mlstm_step", _step_in_torch),
    _row("jax", "mlstm_step", _step_in_torch),
]
