"""The sLSTM step by step, forward and backward, on tensors whose rows are in time order.

Layout: that of `torch_impl._step_layout`, so that the gradients of the weights are one product over all rows.
Everything is in the accumulation dtype. The equations are in the docstring of `torch_impl._slstm.api`.

Weights are formed with the least finite number in place of a new stabiliser of −∞, which makes them 0 and not NaN.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION
from torch_impl._differentiable import Implementation
from torch_impl._products import summed
from torch_impl._records import ACCUMULATED, Axes
from torch_impl._slstm.arguments import Arguments, Cotangents, Result
from torch_impl._step_layout import AddProduct, Piece, StepLayout, by_step, in_pieces, product_by_step, step_layout
from torch_impl._threads import reconsider_threads, threads

_FAR = 2.0**40
"""A memory with an initial n from this on, or below its inverse, decays without the roundoff of log weights."""

_LARGEST_LOST = 32.0
"""The largest roundoff of log weights in all steps of a call together: n then stays in range."""


class Residuals(NamedTuple):
    """Residuals of a forward pass, with rows in time order; states are those before the first row and after every row.

    Attributes:
        gates: tanh(u_z), σ(u_o), exp(u_i − m) and u_f, next to each other.
        decay: exp(a + m − m_new), what a step keeps of the memory.
        cs, ns, hs: the states.
    """

    gates: Annotated[Tensor | None, Axes("N rows H+H+H+H", ACCUMULATED)] = None
    decay: Annotated[Tensor | None, Axes("N rows H", ACCUMULATED)] = None
    cs: Annotated[Tensor | None, Axes("N B+rows H", ACCUMULATED)] = None
    ns: Annotated[Tensor | None, Axes("N B+rows H", ACCUMULATED)] = None
    hs: Annotated[Tensor | None, Axes("N B+rows H", ACCUMULATED)] = None


NO_RESIDUALS = Residuals()
ORDER = (0, 3, 1, 2)
"""The order of the gates in an array, z, o, i, f, by their numbers in the order of the arguments."""


def _walk_forward(piece: Piece, add: AddProduct, exponential: bool, counts: Tensor, most: float) -> None:
    """Compute the steps in place: preactivations become what `Residuals` describes, and states are filled.

    What rounding takes from a + m belongs to the log weight of the memory. It adds up over the steps of a memory that
    only decays, and is therefore bounded.

    Args:
        piece: its rows are the inputs z, o, i, f, ``(N, R, 4H)``, and room for `Residuals.decay`; its states are c, n,
            m, h.
        add: the product with the weights, ``(N, H, 4H)``.
        counts: 1 where that roundoff counts, else 0, ``(N, B, H)``.
        most: bound of the roundoff in a step.
    """
    steps, (gates, decay), states, views = piece
    least = torch.finfo(gates.dtype).min
    c, n, m, h = (state[:, : steps.B] for state in states)
    after = [state[:, steps.B :] for state in states]
    columns = (gates, *_quarters(gates), decay, *after)
    for u, z, o, i, f, kept, c_new, n_new, m_new, h_new in by_step(steps.running, *columns, views=views):
        reconsider_threads()
        count = u.shape[1]
        if count < c.shape[1]:
            c, n, m, h = (state[:, :count] for state in (c, n, m, h))
        sum_ = add(h, u)
        if sum_ is not u:
            u.copy_(sum_)
        z.tanh_()
        o.sigmoid_()
        a = f if exponential else torch.nn.functional.logsigmoid(f)
        carried = m + a
        unit = torch.maximum(carried, i, out=m_new).clamp_min(least)
        # Half of the least number: less it, no m is infinite.
        lost = torch.sub(m, carried.clamp_min(least / 2), out=kept).add_(a).clamp_(-most, most)
        torch.addcmul(carried.sub_(unit), lost, counts[:, :count], out=kept).exp_()
        i.sub_(unit).exp_()
        torch.addcmul(i, kept, n, out=n_new)
        torch.mul(i, z, out=c_new).addcmul_(kept, c)
        torch.div(c_new, _divisor(n_new), out=h_new).mul_(o)
        c, n, m, h = c_new, n_new, m_new, h_new


def _divisor(n: Tensor) -> Tensor:
    """n as a divisor: infinite where nothing has been written, so that the quotient is 0.

    What is below the smallest normal number counts as nothing: its reciprocal would overflow.
    """
    return torch.nn.functional.threshold(n, torch.finfo(n.dtype).tiny, torch.inf)


_CACHED = 1 << 16
"""Number of elements of a head's rows that are computed at once: a core's cache holds several arrays of this size."""


class _Factors(NamedTuple):
    """The factors of a step's gradients: from dh for dc, dn and o, from dc for z, from dc and dn for f."""

    h_to_c: Tensor
    h_to_n: Tensor
    h_to_o: Tensor
    c_to_z: Tensor
    c_to_f: Tensor
    n_to_f: Tensor


def _factors(steps: StepLayout, exponential: bool, residuals: Residuals) -> _Factors:
    """They are computed block by block, because every page of a new array costs a page fault."""
    gates, decay, c, n, h = residuals
    assert gates is not None and decay is not None and c is not None and n is not None and h is not None
    found = _Factors(*(torch.empty_like(decay) for _ in _Factors._fields))
    rows = max(_CACHED // max(decay.shape[-1], 1), 1)
    arrays = (gates, decay, n[:, steps.B :], h[:, steps.B :], steps.before(c), steps.before(n), *found)
    for gates_b, kept, n_b, h_b, c_before, n_before, *into in zip(*(x.split(rows, 1) for x in arrays), strict=True):
        z, o, gain, f = _quarters(gates_b)
        h_to_c, h_to_n, h_to_o, c_to_z, c_to_f, n_to_f = into
        divisor = _divisor(n_b)
        torch.div(o, divisor, out=h_to_c)
        torch.div(h_b, divisor, out=h_to_n).neg_()
        torch.mul(h_b, 1 - o, out=h_to_o)
        torch.mul(gain, 1 - z * z, out=c_to_z)
        kept = kept if exponential else kept * torch.sigmoid(-f)
        torch.mul(kept, c_before, out=c_to_f)
        torch.mul(kept, n_before, out=n_to_f)
    return found


def _walk_backward(
    steps: StepLayout,
    weights: Tensor,
    exponential: bool,
    residuals: Residuals,
    factors: _Factors,
    dy: Tensor,
    dlast: Sequence[Tensor],
    g: Tensor | None,
    clip: float | None,
) -> tuple[Tensor, list[Tensor]]:
    """Compute the steps in reverse; return the gradients of the preactivations, and those of the initial c, n and h.

    Args:
        weights: ``(N, 4H, H)``, transposed.
        dy: cotangent of every h, ``(N, R, H)``.
        dlast: cotangents of the final c, n and h, ``(N, B, H)`` in the order of the rows.
        g: what remains of the cotangent of the final m, ``(N, B, H)``; None if it is 0. What is left of it in the end,
            it is overwritten with that, belongs to the initial m.
        clip: bound on the gradient that reaches h from the next step; None disables clipping.
    """
    assert residuals.gates is not None and residuals.decay is not None
    gates, decay = residuals.gates, residuals.decay
    du = torch.empty_like(gates)
    dc, dn, dh = (d[:, :0] for d in dlast)
    columns = (dy, decay, *_quarters(gates), du, *_quarters(du), *factors)
    for dy_t, kept, z, _, gain, f, du_t, du_z, du_o, du_i, du_f, *of_step in by_step(
        steps.running, *columns, backwards=True
    ):
        reconsider_threads()
        h_to_c, h_to_n, h_to_o, c_to_z, c_to_f, n_to_f = of_step
        still, count = dc.shape[1], dy_t.shape[1]
        if still < count:
            dc, dn, dh = (torch.cat([x, d[:, still:count]], 1) for x, d in zip((dc, dn, dh), dlast, strict=True))
        if clip is not None:
            dh.clamp_(-clip, clip)
        dh.add_(dy_t)
        dc.addcmul_(dh, h_to_c)
        dn.addcmul_(dh, h_to_n)
        torch.mul(dh, h_to_o, out=du_o)
        torch.mul(dc, c_to_z, out=du_z)
        torch.addcmul(dn, dc, z, out=du_i).mul_(gain)
        torch.mul(dc, c_to_f, out=du_f).addcmul_(dn, n_to_f)
        dc.mul_(kept)
        dn.mul_(kept)
        if g is not None:
            # Where the step's own write attains m, it takes g; otherwise the decay does, and earlier steps may.
            of_write = g[:, :count] * ((gain == 1) & (kept < 1))
            du_i.add_(of_write)
            g[:, :count] -= of_write
            du_f.add_(g[:, :count] if exponential else g[:, :count] * torch.sigmoid(-f))
        dh = torch.bmm(du_t, weights)
    return du, [torch.cat([x, d[:, x.shape[1] :]], 1) for x, d in zip((dc, dn, dh), dlast, strict=True)]


def _quarters(x: Tensor) -> tuple[Tensor, ...]:
    """``(…, 4H)`` as four views, one for each gate."""
    H = x.shape[-1] // 4
    return tuple(x.narrow(-1, number * H, H) for number in range(4))


def _layout(x: Arguments) -> StepLayout:
    return step_layout("slstm", "z", x.z, x.z.shape[-2], x.cu_seqlens)


_LARGE_STEP = 1 << 20
"""Number of multiplications in a step's product from which all threads compute it."""

_LARGE_CALL = 1 << 25
"""Number of multiplications by one weight in a call from which all threads compute what is outside its steps."""


def _threads_of_steps(steps: StepLayout, weights: Tensor) -> threads:
    return threads(weights.device, steps.B * weights.numel() >= _LARGE_STEP)


def _threads_of_call(x: Arguments) -> threads:
    return threads(x.z.device, x.z.numel() * x.z.shape[-1] >= _LARGE_CALL)


def _side_by_side(x: Arguments) -> Tensor:
    """The weights next to each other, ``(N, H, 4H)``, in the accumulation dtype."""
    return torch.cat([x.weights[number] for number in ORDER], -1).to(ACCUMULATION[x.z.dtype])


def slstm_forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    """The results with the dtypes of `torch_impl.slstm`, and the residuals named in ``keep``."""
    with _threads_of_call(x):
        return _forward(x, keep)


def slstm_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of the preactivations, the weights and the initial state, in the order of the arguments."""
    with _threads_of_call(x):
        return _backward(x, cotangents, residuals)


def _forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    (N, H), dtype = x.z.shape[-2:], ACCUMULATION[x.z.dtype]
    steps, weights = _layout(x), _side_by_side(x)
    y = x.z.new_empty(x.z.shape)
    last = [x.z.new_empty((N, steps.B, H), dtype=dtype) for _ in range(4)]
    for state, given, none in zip(last, (x.c0, x.n0, x.m0, x.h0), (0.0, 0.0, -torch.inf, 0.0), strict=True):
        state[:] = none if given is None else steps.longest_first(given)
    add = product_by_step(steps, weights)
    counts = ((last[1] == 0) | ((last[1] > 1 / _FAR) & (last[1] < _FAR))).to(dtype)
    most = _LARGEST_LOST / max(len(steps.running), 1)
    residuals = NO_RESIDUALS
    for piece in in_pieces(steps, bool(keep), (4 * H, H), last):
        (gates, decay), (c, n, _, h) = piece.rows, piece.states
        for number, rows in zip(ORDER, _quarters(gates), strict=True):
            piece.steps.gather(x.inputs[number], rows)
        with _threads_of_steps(steps, weights):
            _walk_forward(piece, add, x.forget_gate == "exp", counts, most)
        piece.steps.scatter_into(y, h[:, piece.steps.B :])
        if keep:
            walked = {"gates": gates, "decay": decay, "cs": c, "ns": n, "hs": h}
            residuals = Residuals(**{name: walked[name] for name in keep})
    return Result(y, *(steps.original_order(state) for state in last)), residuals


def _backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    assert residuals.gates is not None and residuals.decay is not None
    assert residuals.cs is not None and residuals.ns is not None and residuals.hs is not None
    steps, (N, _, H) = _layout(x), residuals.decay.shape
    dy = torch.zeros_like(residuals.decay) if cotangents.dh is None else torch.empty_like(residuals.decay)
    if cotangents.dh is not None:
        steps.gather(cotangents.dh, dy)
    given = (cotangents.dc_last, cotangents.dn_last, cotangents.dm_last, cotangents.dh_last)
    dc, dn, dm, dh = (
        residuals.decay.new_zeros((N, steps.B, H)) if d is None else steps.longest_first(d) for d in given
    )
    g = None
    if any(d is not None for d in given[:3]):
        g = dm - steps.last(residuals.cs) * dc - steps.last(residuals.ns) * dn
    weights = _side_by_side(x).mT.contiguous()
    exponential = x.forget_gate == "exp"
    factors = _factors(steps, exponential, residuals)
    with _threads_of_steps(steps, weights):
        du, (dc, dn, dh) = _walk_backward(
            steps, weights, exponential, residuals, factors, dy, (dc, dn, dh), g, x.gradient_clipping
        )
    dW = summed(steps.before(residuals.hs), du)
    c0, n0 = residuals.cs[:, : steps.B], residuals.ns[:, : steps.B]
    dm0 = c0 * dc + n0 * dn
    dm0 = dm0 if g is None else dm0 + g
    by_gate = [*zip(_quarters(du), _quarters(dW), strict=True)]
    in_order = [by_gate[ORDER.index(number)] for number in range(4)]
    return [
        *(steps.scatter(dx, N, x.z.dtype) for dx, _ in in_order),
        *(x.weight_z.new_empty((N, H, H)).copy_(of_weight) for _, of_weight in in_order),
        *(steps.original_order(d) for d in (dc, dn, dm0, dh)),
    ]


_IMPLEMENTATION = Implementation(
    residuals=Residuals,
    forward=slstm_forward,
    backward=slstm_backward,
    worth_keeping=lambda x: Residuals._fields,
)
ROWS = tuple(
    Row(backend="torch", operation=operation, implementation=_IMPLEMENTATION) for operation in ("slstm", "slstm_step")
)
