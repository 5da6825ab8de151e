"""The yardsticks of goals: the products of an mLSTM alone, a loop of a GRU under autograd, and the oracle.

The products are a bound for every implementation that uses the same ones. Operands are prepared head first and chunk by
chunk. The gradient is autograd's, which is eight products for these four.
"""

from typing import Any

from benchmarks.speed.contenders import Contender, Function, UnavailableError, imported
from benchmarks.speed.operations import Case, grouped

NEIGHBOUR = ("no mLSTM: its matrix products alone, without gates, decay or normaliser", ("forward", "both"))


def _chunked(case: Case, L: int) -> Any:
    if case.S % L:
        raise UnavailableError(f"chunks of {L} do not divide S = {case.S}")
    return lambda x: x.reshape(-1, L, x.shape[-1])


def _products_in_torch(case: Case, L: int) -> Function:
    torch, cut = imported("torch"), _chunked(case, L)

    def products(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        shape = v.shape
        q, k, v = cut(q), cut(k), cut(v)
        h = torch.baddbmm(q @ (k.mT @ v), q @ k.mT, v)
        return (h.view(shape),)

    return products


def _products_in_jax(case: Case, L: int) -> Function:
    jnp, cut = imported("jax").numpy, _chunked(case, L)

    def products(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        shape = v.shape
        q, k, v = cut(q), cut(k), cut(v)
        written = jnp.einsum("clk,clv->ckv", k, v)
        h = jnp.einsum("clk,ckv->clv", q, written) + jnp.einsum("ctk,cjk->ctj", q, k) @ v
        return (h.reshape(shape),)

    return products


def _products_of_a_step(case: Case, _: Any) -> Function:
    """The outer product k vᵀ written to the memory, and the read of the memory by q."""

    def products(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, ...]:
        C = C + k[..., :, None] * v[..., None, :]
        return ((q[..., None, :] @ C)[..., 0, :], C, n, m)

    return products


def _loop(case: Case, _: Any) -> Function:
    """A GRU as it is usually first written in PyTorch: a loop over steps that autograd differentiates."""
    torch = imported("torch")

    def gru(**arrays: Any) -> tuple[Any]:
        x, projections, (weight, forget_weight, reset_weight) = grouped(arrays)
        # (S, N, B, H): heads as a batch of products.
        steps_first = x.permute(1, 2, 0, 3)
        xs, fs, rs = (steps_first @ projection for projection in projections)
        h = x.new_zeros(case.N, case.B, case.K)
        states = []
        for t in range(case.S):
            r = torch.sigmoid(h @ reset_weight + rs[t])
            f = torch.sigmoid(h @ forget_weight + fs[t])
            z = torch.tanh((r * h) @ weight + xs[t])
            h = f * h + (1 - f) * z
            states.append(h)
        return (torch.stack(states).permute(2, 0, 1, 3),)

    return gru


def _reference(case: Case, _: Any) -> Function:
    module = imported("reference")

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, dh: Any = None) -> tuple[Any, ...]:
        if dh is None:
            return (module.mlstm(q, k, v, i, f),)
        found = module.mlstm_backward(q, k, v, i, f, dh=dh)
        return tuple(found[name] for name in ("q", "k", "v", "i", "f"))

    return mlstm


def _products(framework: str, op: str, load: Any, **fields: Any) -> Contender:
    return Contender(f"products alone ({framework})", op, framework, load, differs=NEIGHBOUR, **fields)


CHUNKS = (32, 64, 128, 256)
CONTENDERS: dict[str, list[Contender]] = {
    "products": [
        _products("torch", "mlstm", _products_in_torch, choices=CHUNKS, head_first=True),
        _products("jax", "mlstm", _products_in_jax, choices=CHUNKS, head_first=True),
        _products("torch", "mlstm_step", _products_of_a_step),
        _products("jax", "mlstm_step", _products_of_a_step),
    ],
    "loops": [Contender("torch loop under autograd", "gru", "torch", _loop)],
    "reference": [Contender("reference", "mlstm", "numpy", _reference, devices=("cpu",), dtypes=("float64",))],
}
"""Yardsticks by the names that ``--peers`` takes."""
