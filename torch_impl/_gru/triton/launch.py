"""Launchers of the GRU's kernels, and the row with what they support.

``docs/triton-gru.md`` explains which kernel is launched for which width, with the bytes and latencies behind it.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._differentiable import Implementation
from torch_impl._gru.arguments import Arguments, Cotangents, Result
from torch_impl._records import ACCUMULATED, Axes
from torch_impl._recurrent.triton import launch as recurrent
from torch_impl._recurrent.triton.launch import Operand, Packing, Recurrence, Shape, Steps
from torch_impl._triton.interpreter import DTYPES, unavailable
from torch_impl._triton.launch import Launch, power_of_two


class Residuals(NamedTuple):
    """h' of every step, from which the backward pass recomputes everything else: the output, or if that has 16 bits, h'
    before it was rounded, because h − z may be much smaller than h."""

    output: Annotated[Tensor | None, Axes("B S N H")] = None
    h: Annotated[Tensor | None, Axes("B S N H", ACCUMULATED)] = None


NO_RESIDUALS = Residuals()


def _recurrence(x: Arguments) -> Recurrence:
    """The call with gates in the order of `torch_impl._gru.triton.cells`: r, f, z."""
    from torch_impl._gru.triton.cells import CELLS

    return Recurrence(
        name="gru_reset_after" if x.reset_after else "gru",
        cell=CELLS[x.reset_after],
        shape=Shape.of(x.input, x.heads, x.weights, x.cu_seqlens),
        inputs=x.inputs[::-1],
        weights=x.weights[::-1],
        bias=x.recurrent_bias,
        initial=None if x.input_state is None else (x.input_state,),
        cu_seqlens=x.cu_seqlens,
        clip=x.gradient_clipping,
    )


def worth_keeping(x: Arguments) -> tuple[str]:
    """The field of `Residuals` from which a gradient is computed."""
    return ("output",) if x.input.dtype is torch.float32 else ("h",)


def gru_forward(x: Arguments, keep: Sequence[str] = ()) -> tuple[Result, Residuals]:
    """Every h' and the last h' of each sequence, both new and contiguous.

    Args:
        x: the call, with arrays of any strides. The host never reads the packing; with an invalid one, kernels still
            read and write within bounds.
        keep: names of fields of `Residuals`.
    """
    H = x.input.shape[-1]
    dtype = torch.float32 if "h" in keep else x.input.dtype
    y, (last,) = recurrent.run_forward(_recurrence(recurrent.widened(x, H)), dtype=dtype)
    y, last = recurrent.narrowed((y, last), Result._fields, H)
    if "h" in keep:
        return Result(y.to(x.input.dtype), last), Residuals(h=y)
    return Result(y, last), NO_RESIDUALS


class _Factors(NamedTuple):
    """The values of every token that the backward loop reads, ``(T, N, H)`` in float32: r, f, and the factors of the
    three preactivations' gradients, which the loop replaces by the gradients."""

    r: Tensor
    f: Tensor
    z_factor: Tensor
    f_factor: Tensor
    r_factor: Tensor


def gru_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of the six arrays in their order, of the initial state and of the recurrent bias.

    Args:
        x: as in `gru_forward`.
        cotangents: cotangents of the output and of the output state, with any strides; None means zeros.
        residuals: h' of every step that `gru_forward` returned.

    Returns:
        Six gradients in the dtypes of the arrays, that of the state in float32 and, if there is one, that of the bias.
        Sums over heads and tokens are in float32 and in a fixed order.
    """
    H = x.input.shape[-1]
    widened = recurrent.widened
    gradients = _backward(widened(x, H), widened(cotangents, H), widened(residuals, H))
    return recurrent.narrowed(gradients, Arguments._fields, H)


def _backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """`gru_backward` of a width that kernels take."""
    r, y = _recurrence(x), residuals.output if residuals.h is None else residuals.h
    assert y is not None
    if r.shape.empty:
        of_bias = [] if x.recurrent_bias is None else [torch.zeros_like(x.recurrent_bias)]
        return [*(torch.zeros_like(each) for each in x[:6]), *r.states(), *of_bias]
    packing, dlast = r.packing(tokens=True), cotangents.doutput_state
    factors = _factors(x, r, packing, y)
    steps = Steps(factors, len(factors), (4, 3, 2))
    du = steps.du
    last = None if dlast is None else (dlast,)
    (dstate,) = recurrent.run_backward(r, packing, cotangents.doutput, last, steps)
    dWr, dWf, dW, *of_bias = recurrent.weight_gradients(r, packing, y, du, scale=factors.r)
    dxr, dxf, dx = (recurrent.input_gradient(d, inputs) for d, inputs in zip(du, r.inputs, strict=True))
    return [dx, dW, dxf, dWf, dxr, dWr, dstate, *of_bias]


def _factors(x: Arguments, recurrence: Recurrence, packing: Packing, y: Tensor) -> _Factors:
    from torch_impl._gru.triton import factors_kernels as kernels

    operand, shape = Operand.of(recurrence.dtype), recurrence.shape
    T, N, H = shape.T, shape.N, shape.H
    r, f, az, af, ar = (y.new_empty((T, N, H), dtype=torch.float32) for _ in range(5))
    bias = None if x.recurrent_bias is None else x.recurrent_bias.contiguous()
    candidate = _inputs(N, x=x.input) | _weights(N, W=x.weight) | {"bias": bias}
    gates = _inputs(N, xf=x.forget_input, xr=x.reset_input) | _weights(N, Wf=x.forget_weight, Wr=x.reset_weight)
    history = dict(
        **recurrent.strided(3, state=x.input_state), y=y, cu_seqlens=packing.cu_seqlens,
        sequence_of=packing.sequence_of, **shape.tokens, FORM=recurrence.cell.form,
        HAS_STATE=x.input_state is not None, PACKED=packing.cu_seqlens is not None, FAST=recurrent.fast(),
        **operand.constants(),
    )  # fmt: skip
    block = power_of_two(H)
    if block <= (16 if operand.wide else 64):
        tokens, how = (64, Launch(4)) if block <= 32 else (32, Launch(4 if torch.version.hip else 8))
        recurrent.launch(
            kernels.factors, -(-T // tokens) * N, y.device, how, **candidate, **gates, **history, r_out=r, f_out=f,
            az=az, af=af, ar=ar, BLOCK_H=block, BLOCK_T=tokens,
        )  # fmt: skip
        return _Factors(r=r, f=f, z_factor=az, f_factor=af, r_factor=ar)
    tokens, part = (32, 16) if operand.wide else (64, 32)
    units = min(block, 64)
    programs = -(-T // tokens) * N * -(-H // units)
    history |= dict(BLOCK_H=units, BLOCK_K=part, BLOCK_T=tokens, STAGES=3)
    how = Launch(8, 3)
    recurrent.launch(kernels.factors_gates, programs, y.device, how, **gates, **history, r_out=r, f_out=f, af=af, ar=ar)
    recurrent.launch(
        kernels.factors_candidate, programs, y.device, how, **candidate, **history, r_in=r, f_in=f, az=az, af=af, ar=ar
    )
    return _Factors(r=r, f=f, z_factor=az, f_factor=af, r_factor=ar)


def _inputs(N: int, **inputs: Tensor) -> dict[str, Any]:
    """Inputs with their strides and, as ``NAME_share``, the number of heads that read each of their heads."""
    return recurrent.strided(4, **inputs) | {f"{name}_share": N // x.shape[-2] for name, x in inputs.items()}


def _weights(N: int, **weights: Tensor) -> dict[str, Any]:
    """Weights, in the same form as `_inputs`."""
    return recurrent.strided(3, **weights) | {f"{name}_share": N // w.shape[0] for name, w in weights.items()}


ROWS = (
    Row(
        backend="triton",
        operation="gru",
        devices=("cuda", "cpu"),
        dtypes=DTYPES,
        largest=(("H", 1024),),
        unavailable=unavailable,
        options=("gradient_clipping", "reset_after"),
        implementation=Implementation(
            residuals=Residuals,
            forward=gru_forward,
            backward=gru_backward,
            worth_keeping=worth_keeping,
        ),
    ),
)
