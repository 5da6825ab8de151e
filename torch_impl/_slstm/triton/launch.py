"""The sLSTM on the kernels of `torch_impl._recurrent.triton`, and the rows with what they support.

``docs/triton-gru.md`` explains which kernel is launched for which width, and what a step stores.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._differentiable import Implementation
from torch_impl._records import ACCUMULATED, Axes
from torch_impl._recurrent.triton import launch as recurrent
from torch_impl._recurrent.triton.launch import Recurrence, Shape, Steps
from torch_impl._slstm.arguments import Arguments, Cotangents, Result
from torch_impl._triton.interpreter import DTYPES, unavailable


class Residuals(NamedTuple):
    """Residuals of a forward pass: h, the final c and n, and what a step keeps (`torch_impl._slstm.triton.cells`)."""

    h: Annotated[Tensor | None, Axes("B S N H")] = None
    c_last: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    n_last: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    z: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    z_slope: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    signed_gain: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    decay: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    f_slope: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    o: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    c_left: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None
    n_left: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None


NO_RESIDUALS = Residuals()
KEPT = Residuals._fields[3:]
"""The residuals that a step writes, in the order of the cell."""


def _recurrence(x: Arguments) -> Recurrence:
    from torch_impl._slstm.triton.cells import CELLS

    initial = None
    if x.h0 is not None and x.c0 is not None and x.n0 is not None and x.m0 is not None:
        initial = (x.h0, x.c0, x.n0, x.m0)
    return Recurrence(
        name="slstm",
        cell=CELLS[x.forget_gate],
        shape=Shape.of(x.z, x.z.shape[-2], x.weights, x.cu_seqlens),
        inputs=x.inputs,
        weights=x.weights,
        bias=None,
        initial=initial,
        cu_seqlens=x.cu_seqlens,
        clip=x.gradient_clipping,
    )


def slstm_forward(x: Arguments, keep: Sequence[str] = ()) -> tuple[Result, Residuals]:
    """h of every step and the final state, all new and contiguous, and the residuals if any is named in ``keep``."""
    H = x.z.shape[-1]
    x = recurrent.widened(x, H)
    kept = None
    if keep:
        kept = tuple(x.z.new_empty(x.z.shape, dtype=torch.float32) for _ in KEPT)
    y, (h, c, n, m) = recurrent.run_forward(_recurrence(x), kept)
    results = Result(*recurrent.narrowed((y, c, n, m, h), Result._fields, H))
    if kept is None:
        return results, NO_RESIDUALS
    kept = recurrent.narrowed(kept, KEPT, H)
    return results, Residuals(**{name: part for name, part in zip(KEPT, kept, strict=True) if name in keep})


def slstm_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of the preactivations, the weights and the initial state, in the order of the arguments.

    Args:
        x: the call, with arrays of any strides.
        cotangents: cotangents of the results, with any strides; None means zeros.
        residuals: those of `slstm_forward`, with all that are results.
    """
    H = x.z.shape[-1]
    widened = recurrent.widened
    gradients = _backward(widened(x, H), widened(cotangents, H), widened(residuals, H))
    return recurrent.narrowed(gradients, Arguments._fields, H)


def _backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """`slstm_backward` of a width that kernels take."""
    r = _recurrence(x)
    if r.shape.empty:
        return [*(torch.zeros_like(each) for each in (*x.inputs, *x.weights)), *r.states()]
    packing = r.packing(tokens=True)
    h, c_last, n_last, *kept = residuals
    saved = tuple(part.view(-1, *part.shape[-2:]) for part in kept if part is not None)
    assert h is not None and c_last is not None and n_last is not None and len(saved) == len(KEPT)
    du = tuple(recurrent.room_for_gradients(each, r.shape.T, r.shape.N) for each in x.inputs)
    steps = Steps((*saved, *du), len(saved), tuple(range(len(saved), len(saved) + len(du))))
    dlast = _final_cotangents(cotangents, c_last, n_last)
    dh0, dc0, dn0, g = recurrent.run_backward(r, packing, cotangents.dh, dlast, steps)
    dm0 = g if x.c0 is None or x.n0 is None else g + x.c0 * dc0 + x.n0 * dn0
    of_inputs = (recurrent.input_gradient(d, each) for d, each in zip(du, x.inputs, strict=True))
    return [*of_inputs, *recurrent.weight_gradients(r, packing, h, du), dc0, dn0, dm0, dh0]


def _final_cotangents(cotangents: Cotangents, c: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The cotangents of the final h, c and n, and what remains of that of m (`reference.slstm_backward`); None if all
    are zeros."""
    given = (cotangents.dh_last, cotangents.dc_last, cotangents.dn_last, cotangents.dm_last)
    if all(d is None for d in given):
        return None
    dh, dc, dn, dm = (torch.zeros_like(c) if d is None else d for d in given)
    if all(d is None for d in given[1:]):
        return dh, dc, dn, dm
    return dh, dc, dn, dm - c * dc - n * dn


_IMPLEMENTATION = Implementation(
    residuals=Residuals,
    forward=slstm_forward,
    backward=slstm_backward,
    worth_keeping=lambda x: Residuals._fields,
)
ROWS = tuple(
    Row(
        backend="triton",
        operation=operation,
        devices=("cuda", "cpu"),
        dtypes=DTYPES,
        largest=(("H", 1024),),
        unavailable=unavailable,
        options=("gradient_clipping",),
        implementation=_IMPLEMENTATION,
    )
    for operation in ("slstm", "slstm_step")
)
