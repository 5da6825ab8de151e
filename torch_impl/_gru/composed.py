"""The multi-head GRU step by step, forward and backward, on tensors whose rows are in time order.

Layout: that of `torch_impl._step_layout`, so that the gradient of a weight is one product over all rows. Everything is
in the accumulation dtype. The equations are in the docstring of `torch_impl._gru.api`.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION
from torch_impl._differentiable import Implementation
from torch_impl._gru.arguments import Arguments, Cotangents, Result
from torch_impl._products import summed
from torch_impl._records import ACCUMULATED, Axes
from torch_impl._step_layout import AddProduct, Piece, StepLayout, by_step, in_pieces, product_by_step, step_layout
from torch_impl._threads import reconsider_threads, threads


class Residuals(NamedTuple):
    """Residuals of a forward pass, with rows in time order.

    Attributes:
        z: the candidates.
        rf: the gates r and f, concatenated; with `reset_after` also p = h W + b.
        states: the initial states, then the state after every row.
    """

    z: Annotated[Tensor | None, Axes("N rows H", ACCUMULATED)] = None
    rf: Annotated[Tensor | None, Axes("N rows columns", ACCUMULATED)] = None
    states: Annotated[Tensor | None, Axes("N B+rows H", ACCUMULATED)] = None


NO_RESIDUALS = Residuals()


class StackedWeights(NamedTuple):
    """W ``(N, H, H)`` and ``[W_r | W_f]`` ``(N, H, 2H)``; with `reset_after` None and ``[W_r | W_f | W]``."""

    z: Tensor | None
    rf: Tensor


_LARGE_STEP = 1 << 20
"""Number of multiplications in a step's larger product from which all threads compute it."""

_LARGE_CALL = 1 << 25
"""Number of multiplications by W in a call from which all threads compute what is outside its steps."""


def _walk_forward(piece: Piece, products: Sequence[AddProduct | None]) -> None:
    """Compute the steps in place: inputs become activations, and states are filled.

    Args:
        piece: its rows are x, replaced by the candidate, ``(N, R, H)``, and ``[x_r | x_f]``, replaced by the gates,
            ``(N, R, 2H)``.
        products: those with the weights, in their order.
    """
    steps, (z, rf), (states,), views = piece
    add_candidate, add_gates = products
    assert add_candidate is not None and add_gates is not None
    h, after = states.split_with_sizes((steps.B, z.shape[1]), 1)
    r, f = rf.chunk(2, -1)
    for candidate, gate, r_t, f_t, h_new in by_step(steps.running, z, rf, r, f, after, views=views):
        reconsider_threads()
        h = h[:, : h_new.shape[1]]
        torch.sigmoid(add_gates(h, gate), out=gate)
        torch.tanh(add_candidate(h * r_t, candidate), out=candidate)
        torch.lerp(candidate, h, f_t, out=h_new)
        h = h_new


def _walk_forward_after(piece: Piece, products: Sequence[AddProduct | None]) -> None:
    """`_walk_forward` with the reset gate after the product.

    Args:
        piece: its second rows are ``[x_r | x_f | b]``, replaced by r, f and p = h W + b, ``(N, R, 3H)``.
        products: only the second is used.
    """
    steps, (z, rfp), (states,), views = piece
    h, after = states.split_with_sizes((steps.B, z.shape[1]), 1)
    H = z.shape[-1]
    rf, (r, f, p) = rfp[..., : 2 * H], rfp.split_with_sizes((H, H, H), -1)
    _, add = products
    assert add is not None
    columns = by_step(steps.running, z, rfp, rf, r, f, p, after, views=views)
    for candidate, whole, gate, r_t, f_t, p_t, h_new in columns:
        reconsider_threads()
        h = h[:, : h_new.shape[1]]
        sum_ = add(h, whole)
        if sum_ is not whole:
            whole.copy_(sum_)
        gate.sigmoid_()
        candidate.addcmul_(r_t, p_t).tanh_()
        torch.lerp(candidate, h, f_t, out=h_new)
        h = h_new


_CACHED = 1 << 16
"""Number of elements of a head's rows that are computed at once: a core's cache holds several arrays of this size."""


def _factors(z: Tensor, rf: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The factors by which a preactivation's gradient is computed: from dh for z and f, from d(r⊙h) for r.

    If ``rf`` also has p, the factor for r is that from dz, and there is room for dp. They are computed block by block,
    because every page of a new array costs a page fault.
    """
    H = z.shape[-1]
    dz, drf = torch.empty_like(z), torch.empty_like(rf)
    rows = max(_CACHED // max(H, 1), 1)
    scaled_by_r = before if rf.shape[-1] == 2 * H else rf[..., 2 * H :]
    rf, gates = rf[..., : 2 * H], drf[..., : 2 * H]
    blocks = zip(*(x.split(rows, 1) for x in (z, rf, before, scaled_by_r, dz, gates)), strict=True)
    for z_b, rf_b, h_b, scaled_b, dz_b, drf_b in blocks:
        torch.sub(1, rf_b, out=drf_b)
        dr_b, df_b = drf_b.chunk(2, -1)
        torch.sub(1, z_b * z_b, out=dz_b).mul_(df_b)
        drf_b.mul_(rf_b)
        dr_b.mul_(scaled_b)
        df_b.mul_(h_b - z_b)
    return dz, drf


def _walk_backward_after(
    steps: StepLayout,
    weights: StackedWeights,
    rfp: Tensor,
    dz: Tensor,
    drfp: Tensor,
    dy: Tensor,
    dlast: Tensor,
    clip: float | None,
) -> Tensor:
    """`_walk_backward` with the reset gate after the product; ``drfp`` becomes the gradients of x_r, x_f and p."""
    H = dz.shape[-1]
    r, f, _ = rfp.split_with_sizes((H, H, H), -1)
    dr, df, dp = drfp.split_with_sizes((H, H, H), -1)
    transposed = weights.rf.mT.contiguous()
    add = product_by_step(steps, transposed, carried=True)
    carry = dlast[:, :0]
    columns = by_step(steps.running, dy, r, f, dz, dr, df, dp, drfp, backwards=True)
    for dy_t, r_t, f_t, dz_t, dr_t, df_t, dp_t, whole in columns:
        reconsider_threads()
        carry = _arriving(carry, dlast, dy_t, clip)
        df_t.mul_(carry)
        dz_t.mul_(carry)
        dr_t.mul_(dz_t)
        torch.mul(dz_t, r_t, out=dp_t)
        carry.mul_(f_t)
        carry = add(whole, carry)
    return torch.cat([carry, dlast[:, carry.shape[1] :]], 1)


def _arriving(carry: Tensor, dlast: Tensor, dy: Tensor, clip: float | None) -> Tensor:
    """The gradient of the states of a step, in place: of the step after it or of the final state, clipped, and dy."""
    still, count = carry.shape[1], dy.shape[1]
    if still < count:
        carry = torch.cat([carry, dlast[:, still:count]], 1)
    if clip is not None:
        carry.clamp_(-clip, clip)
    return carry.add_(dy)


def _walk_backward(
    steps: StepLayout,
    weights: StackedWeights,
    rf: Tensor,
    dz: Tensor,
    drf: Tensor,
    dy: Tensor,
    dlast: Tensor,
    clip: float | None,
) -> Tensor:
    """Compute the steps in reverse, in place: factors become gradients. Return that of the initial state.

    Args:
        rf: the gates that `_walk_forward` computed.
        dz, drf: `_factors`, replaced by the gradients of the preactivations.
        dy: cotangent of every state, ``(N, R, H)``.
        dlast: cotangent of every sequence's final state, ``(N, B, H)`` in the order of the rows.
        clip: bound on the gradient that reaches a state from the next step; None disables clipping.
    """
    assert weights.z is not None
    r, f = rf.chunk(2, -1)
    dr, df = drf.chunk(2, -1)
    W_T, Wrf_T = weights.z.mT.contiguous(), weights.rf.mT.contiguous()
    add_gates = product_by_step(steps, Wrf_T, carried=True)
    carry = dlast[:, :0]
    columns = by_step(steps.running, dy, r, f, dz, dr, df, drf, backwards=True)
    for dy_t, r_t, f_t, dz_t, dr_t, df_t, drf_t in columns:
        reconsider_threads()
        carry = _arriving(carry, dlast, dy_t, clip)
        df_t.mul_(carry)
        dz_t.mul_(carry)
        drh = torch.bmm(dz_t, W_T)
        dr_t.mul_(drh)
        carry.mul_(f_t).addcmul_(drh, r_t)
        carry = add_gates(drf_t, carry)
    return torch.cat([carry, dlast[:, carry.shape[1] :]], 1)


def _columns(x: Arguments) -> int:
    """The number of columns of `Residuals.rf`."""
    return (3 if x.reset_after else 2) * x.input.shape[-1]


def _of_all_heads(w: Tensor, N: int) -> Tensor:
    return w.contiguous() if w.shape[0] == N else w.repeat_interleave(N // w.shape[0], 0)


def _stacked(N: int, dtype: torch.dtype, x: Arguments) -> StackedWeights:
    def whole(w: Tensor) -> Tensor:
        return _of_all_heads(w.to(dtype), N)

    W, Wf, Wr = (whole(weight) for weight in x.weights)
    if x.reset_after:
        return StackedWeights(None, torch.cat([Wr, Wf, W], -1))
    return StackedWeights(W, torch.cat([Wr, Wf], -1))


def _threads_of_steps(steps: StepLayout, weights: StackedWeights) -> threads:
    return threads(weights.rf.device, steps.B * weights.rf.numel() >= _LARGE_STEP)


def _threads_of_call(x: Arguments) -> threads:
    rows = x.input.numel() // max(1, x.input.shape[-2])
    return threads(x.input.device, rows * x.heads * x.input.shape[-1] >= _LARGE_CALL)


def gru_forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    """The outputs with the dtypes of `torch_impl.gru`, and the residuals named in ``keep``."""
    with _threads_of_call(x):
        return _forward(x, keep)


def gru_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of the six arrays in their order, of the initial state and of the recurrent bias."""
    with _threads_of_call(x):
        return _backward(x, cotangents, residuals)


def _forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    N, H, dtype = x.heads, x.input.shape[-1], ACCUMULATION[x.input.dtype]
    steps = step_layout("gru", "input", x.input, N, x.cu_seqlens)
    weights = _stacked(N, dtype, x)
    output = x.input.new_empty((*x.input.shape[:-2], N, H))
    last = x.input.new_zeros((N, steps.B, H), dtype=dtype)
    if x.input_state is not None:
        last[:] = steps.longest_first(x.input_state)
    bias = None if x.recurrent_bias is None else _of_all_heads(x.recurrent_bias, N)[:, None]
    products = [None if weight is None else product_by_step(steps, weight) for weight in weights]
    walk = _walk_forward_after if x.reset_after else _walk_forward
    residuals = NO_RESIDUALS
    for piece in in_pieces(steps, bool(keep), (H, _columns(x)), [last]):
        (z, rf), (states,) = piece.rows, piece.states
        r, f, p = rf.tensor_split((H, 2 * H), -1)
        for inputs, rows in ((x.input, z), (x.reset_input, r), (x.forget_input, f)):
            piece.steps.gather(inputs, rows)
        if x.reset_after:
            p[:] = 0.0 if bias is None else bias
        with _threads_of_steps(steps, weights):
            walk(piece, products)
        piece.steps.scatter_into(output, states[:, piece.steps.B :])
        if keep:
            walked = {"z": z, "rf": rf, "states": states}
            residuals = Residuals(**{name: walked[name] for name in keep})
    return Result(output=output, output_state=steps.original_order(last)), residuals


def _backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    z, rf, states = residuals
    assert z is not None and rf is not None and states is not None
    N, H, dtype = z.shape[0], x.input.shape[-1], z.dtype
    steps = step_layout("gru", "input", x.input, N, x.cu_seqlens)
    before = steps.before(states)
    dy, dlast = cotangents
    dh = torch.zeros_like(z) if dy is None else torch.empty_like(z)
    if dy is not None:
        steps.gather(dy, dh)
    dstate = states.new_zeros((N, steps.B, H)) if dlast is None else steps.longest_first(dlast)
    weights = _stacked(N, dtype, x)
    walk = _walk_backward_after if x.reset_after else _walk_backward
    dz, drf = _factors(z, rf, before)
    with _threads_of_steps(steps, weights):
        dh0 = walk(steps, weights, rf, dz, drf, dh, dstate, x.gradient_clipping)
    dWrf = summed(before, drf)
    dW = dWrf[..., 2 * H :] if x.reset_after else summed(rf[..., :H] * before, dz)
    drs, dfs = (drf[..., :H], dWrf[..., :H]), (drf[..., H : 2 * H], dWrf[..., H : 2 * H])

    def shared(dw: Tensor, w: Tensor) -> Tensor:
        dw = dw.reshape(w.shape[0], N // w.shape[0], *dw.shape[1:]).sum(1)
        return dw.to(w.dtype)

    gradients = []
    for (dx, dw), inputs, w in zip(((dz, dW), dfs, drs), x.inputs, x.weights, strict=True):
        gradients += [steps.scatter(dx, inputs.shape[-2], inputs.dtype), shared(dw, w)]
    gradients.append(steps.original_order(dh0))
    return gradients if x.recurrent_bias is None else [*gradients, shared(drf[..., 2 * H :].sum(1), x.recurrent_bias)]


ROWS = (
    Row(
        backend="torch",
        operation="gru",
        implementation=Implementation(
            residuals=Residuals,
            forward=gru_forward,
            backward=gru_backward,
            sizes=lambda x: {"columns": _columns(x)},
            worth_keeping=lambda x: Residuals._fields,
        ),
    ),
)
