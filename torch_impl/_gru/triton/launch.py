"""Launchers of the GRU's kernels, and the row with what they support.

``docs/triton-gru.md`` explains which kernel is launched for which width, with the bytes and latencies behind it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._differentiable import Implementation
from torch_impl._gru.arguments import Arguments, Cotangents, Result
from torch_impl._gru.triton.plans import GRUPlan, plans
from torch_impl._records import Axes
from torch_impl._triton.interpreter import DTYPES, interpreted, unavailable
from torch_impl._triton.launch import Launch, capability, dot_precision, launch, power_of_two
from torch_impl._triton.tuning import tuned


class Residuals(NamedTuple):
    """The output only, from which the backward pass recomputes everything else."""

    output: Annotated[Tensor | None, Axes("B S N H")] = None


NO_RESIDUALS = Residuals()


class Operand(NamedTuple):
    """The dtype of the operands of products, and the precision of products of float32 operands."""

    dtype: torch.dtype
    precision: str

    @classmethod
    def of(cls, values: torch.dtype, gradients: bool = False) -> "Operand":
        """The operands for ``values``. Gradients of float16 values keep float32's range, as they may be tiny."""
        wide = values is torch.float32 or (gradients and values is torch.float16)
        return cls(torch.float32 if wide else values, dot_precision(values))

    @property
    def wide(self) -> bool:
        return self.dtype is torch.float32

    def constants(self) -> dict[str, Any]:
        import triton.language as tl  # pyright: ignore[reportMissingImports]

        names = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
        return {"OPERAND": names[self.dtype], "PRECISION": self.precision}


def _fast() -> bool:
    """Whether kernels may use instructions that only NVIDIA's GPUs have."""
    return torch.version.hip is None and not interpreted()


class Shape(NamedTuple):
    """The letters of a call, with ``T`` tokens in total; groups of ``group`` heads share all three weights."""

    B: int
    S: int
    T: int
    N: int
    H: int
    group: int

    @classmethod
    def of(cls, x: Arguments) -> "Shape":
        """The shape of a call; S is 0 if sequences are packed."""
        N, H = x.heads, x.input.shape[-1]
        group = math.gcd(*(N // w.shape[0] for w in x.weights))
        if x.cu_seqlens is None:
            B, S = x.input.shape[:2]
            return cls(B=B, S=S, T=B * S, N=N, H=H, group=group)
        return cls(B=x.cu_seqlens.shape[0] - 1, S=0, T=x.input.shape[0], N=N, H=H, group=group)

    @property
    def empty(self) -> bool:
        return 0 in (self.B, self.N, self.H)

    def programs(self, rows: int) -> int:
        """Number of programs with the given number of rows, where a row is one head of one sequence."""
        return -(-self.B * self.group // rows) * (self.N // self.group)

    @property
    def tokens(self) -> dict[str, int]:
        """S, T, N and H, in the form in which kernels that are parallel over tokens take them."""
        return {"S": self.S, "T": self.T, "N": self.N, "H": self.H}


class Packing(NamedTuple):
    """Packed sequences on their device: bounds, order by length, every token's sequence. All None if they are dense."""

    cu_seqlens: Tensor | None
    order: Tensor | None
    sequence_of: Tensor | None

    @classmethod
    def of(cls, cu_seqlens: Tensor | None, T: int, tokens: bool, device: torch.device) -> "Packing":
        if cu_seqlens is None:
            return cls(None, None, None)
        cu_seqlens = cu_seqlens.to(device, torch.int64).contiguous()
        order = torch.argsort(cu_seqlens.diff(), descending=True, stable=True)
        if not tokens:
            return cls(cu_seqlens, order, None)
        number = torch.arange(T, device=cu_seqlens.device)
        sequence_of = torch.searchsorted(cu_seqlens[1:], number, right=True).clamp_(max=len(cu_seqlens) - 2)
        return cls(cu_seqlens, order, sequence_of)


def _strided(axes: int, **arrays: Tensor | None) -> dict[str, Any]:
    """Arrays and, as ``NAME_strides``, as many strides as kernels have axes: packed tokens have none for the first
    axis, and None has no strides at all."""
    named: dict[str, Any] = {}
    for name, x in arrays.items():
        own = () if x is None else x.stride()
        named[name], named[f"{name}_strides"] = x, (0,) * (axes - len(own)) + own
    return named


def _inputs(shape: Shape, **inputs: Tensor) -> dict[str, Any]:
    """Inputs with their strides and, as ``NAME_share``, the number of heads that read each of their heads."""
    return _strided(4, **inputs) | {f"{name}_share": shape.N // x.shape[-2] for name, x in inputs.items()}


def _weights(shape: Shape, **weights: Tensor) -> dict[str, Any]:
    """Weights, in the same form as `_inputs`."""
    return _strided(3, **weights) | {f"{name}_share": shape.N // w.shape[0] for name, w in weights.items()}


def _tuned(kernel: str, shape: Shape, operand: Operand, device: torch.device, run: Callable[[GRUPlan], Any]) -> GRUPlan:
    sizes = f"{str(operand.dtype).removeprefix('torch.')} {operand.precision} H{shape.H}"
    return tuned(kernel, sizes, lambda: plans(shape.H, operand.wide, capability(device)), device, run)


def gru_forward(x: Arguments, keep: Sequence[str] = (), plan: GRUPlan | None = None) -> tuple[Result, Residuals]:
    """Every h' and the last h' of each sequence, both new and contiguous.

    Args:
        x: the call, with arrays of any strides. The host never reads the packing; with an invalid one, kernels still
            read and write within bounds.
        keep: names of fields of `Residuals`.
        plan: the plan to use instead of the one tuned among `plans`.
    """
    from torch_impl._gru.triton import forward_kernels as kernels

    shape, device = Shape.of(x), x.input.device
    y = x.input.new_empty((*x.input.shape[:-2], shape.N, shape.H))
    last = x.input.new_empty((shape.B, shape.N, shape.H), dtype=torch.float32)
    results = Result(output=y, output_state=last)
    if shape.empty:
        return results, NO_RESIDUALS
    packing = Packing.of(x.cu_seqlens, shape.T, tokens=False, device=device)
    operand = Operand.of(x.input.dtype)
    if plan is None:
        plan = _tuned("gru_forward", shape, operand, device, lambda plan: gru_forward(x, plan=plan))
    programs = shape.programs(plan.rows)
    arguments = dict(
        **_inputs(shape, x=x.input, xf=x.forget_input, xr=x.reset_input),
        **_weights(shape, W=x.weight, Wf=x.forget_weight, Wr=x.reset_weight),
        **_strided(3, state=x.input_state), y=y, last=last, cu_seqlens=packing.cu_seqlens, order=packing.order,
        **shape._asdict(), HAS_STATE=x.input_state is not None, PACKED=packing.cu_seqlens is not None,
        BLOCK_H=plan.block, ROWS=plan.rows, FAST=_fast(), STAGES=plan.how.num_stages, **operand.constants(),
    )  # fmt: skip
    if plan.part is None:
        launch(kernels.forward_resident, programs, device, plan.how, **arguments, UNROLL=plan.unroll)
    else:
        scratch = (programs, 2, -(-shape.H // plan.block) * plan.block, plan.rows)
        operands, carries = y.new_empty(scratch, dtype=operand.dtype), y.new_empty(scratch, dtype=torch.float32)
        launch(
            kernels.forward_streamed, programs, device, plan.how, **arguments, operands=operands, carries=carries,
            BLOCK_K=plan.part,
        )  # fmt: skip
    return results, NO_RESIDUALS


class _Factors(NamedTuple):
    """The values of every token that the backward loop reads, ``(T, N, H)``: r and f in float32, and the factors of the
    three preactivations' gradients, which the loop replaces by the gradients."""

    r: Tensor
    f: Tensor
    z_factor: Tensor
    f_factor: Tensor
    r_factor: Tensor

    def copied(self) -> "_Factors":
        """A copy with separate factors, for a pass that writes in place and is only measured."""
        return self._replace(
            z_factor=self.z_factor.clone(), f_factor=self.f_factor.clone(), r_factor=self.r_factor.clone()
        )


def gru_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of the six arrays in their order and of the initial state.

    Args:
        x: as in `gru_forward`.
        cotangents: cotangents of the output and of the output state, with any strides; None means zeros.
        residuals: the output that `gru_forward` returned.

    Returns:
        Six gradients in the dtypes of the arrays, and that of the state in float32. Sums over heads and tokens are in
        float32 and in a fixed order.
    """
    shape, y = Shape.of(x), residuals.output
    assert y is not None
    if shape.empty:
        dstate = y.new_empty((shape.B, shape.N, shape.H), dtype=torch.float32)
        return [*(torch.zeros_like(each) for each in x[:6]), dstate]
    packing = Packing.of(x.cu_seqlens, shape.T, tokens=True, device=y.device)
    factors = _factors(x, packing, y, shape)
    dstate = _walk_back(x, packing, cotangents, factors, shape)
    du = (factors.z_factor, factors.f_factor, factors.r_factor)
    gradients = []
    for dx, inputs, dW, W in zip(
        du, x.inputs, _weight_gradients(x, packing, y, factors, shape), x.weights, strict=True
    ):
        gradients += [_gather(dx, inputs), dW.to(W.dtype)]
    return [*gradients, dstate]


def _gather(du: Tensor, x: Tensor) -> Tensor:
    """``(T, N, H)`` summed over the heads that read one head of ``x``, with the shape and dtype of ``x``."""
    heads = x.shape[-2]
    if heads != du.shape[1]:
        du = du.unflatten(1, (heads, du.shape[1] // heads)).sum(2)
    return du.to(x.dtype).view(x.shape)


def _factors(x: Arguments, packing: Packing, y: Tensor, shape: Shape) -> _Factors:
    """The factors, in the dtypes of the requested gradients."""
    from torch_impl._gru.triton import backward_kernels as kernels

    packed, operand, T, N, H = packing.cu_seqlens is not None, Operand.of(y.dtype), shape.T, shape.N, shape.H
    r, f = (y.new_empty((T, N, H), dtype=torch.float32) for _ in range(2))
    az, af, ar = (
        y.new_empty(
            (T, N, H), dtype=torch.bfloat16 if y.dtype is torch.bfloat16 and each.shape[-2] == N else torch.float32
        )
        for each in x.inputs
    )
    candidate = _inputs(shape, x=x.input) | _weights(shape, W=x.weight)
    gates = _inputs(shape, xf=x.forget_input, xr=x.reset_input) | _weights(shape, Wf=x.forget_weight, Wr=x.reset_weight)
    history = dict(
        **_strided(3, state=x.input_state), y=y, cu_seqlens=packing.cu_seqlens, sequence_of=packing.sequence_of,
        **shape.tokens, HAS_STATE=x.input_state is not None, PACKED=packed, FAST=_fast(), **operand.constants(),
    )  # fmt: skip
    block = power_of_two(H)
    if block <= (16 if operand.wide else 64):
        tokens, how = (64, Launch(4)) if block <= 32 else (32, Launch(4 if torch.version.hip else 8))
        launch(
            kernels.factors, -(-T // tokens) * N, y.device, how, **candidate, **gates, **history, r_out=r, f_out=f,
            az=az, af=af, ar=ar, BLOCK_H=block, BLOCK_T=tokens,
        )  # fmt: skip
        return _Factors(r=r, f=f, z_factor=az, f_factor=af, r_factor=ar)
    tokens, part = (32, 16) if operand.wide else (64, 32)
    units = min(block, 64)
    programs = -(-T // tokens) * N * -(-H // units)
    history |= dict(BLOCK_H=units, BLOCK_K=part, BLOCK_T=tokens, STAGES=3)
    how = Launch(8, 3)
    launch(kernels.factors_gates, programs, y.device, how, **gates, **history, r_out=r, f_out=f, af=af, ar=ar)
    launch(kernels.factors_candidate, programs, y.device, how, **candidate, **history, r_in=r, f_in=f, az=az, af=af)
    return _Factors(r=r, f=f, z_factor=az, f_factor=af, r_factor=ar)


def _walk_back(
    x: Arguments, packing: Packing, cotangents: Cotangents, factors: _Factors, shape: Shape, plan: GRUPlan | None = None
) -> Tensor:
    """Run the backward loop, which replaces factors by gradients. Returns the gradient of the initial states."""
    from torch_impl._gru.triton import backward_kernels as kernels

    operand, device, clip = Operand.of(x.input.dtype, gradients=True), factors.r.device, x.gradient_clipping
    if plan is None:
        spare: list[_Factors] = []

        def run(plan: GRUPlan) -> None:
            if not spare:
                spare.append(factors.copied())
            _walk_back(x, packing, cotangents, spare[0], shape, plan)

        plan = _tuned("gru_backward", shape, operand, device, run)
    programs = shape.programs(plan.rows)
    dstate = factors.r.new_empty((shape.B, shape.N, shape.H))
    dy, dlast = cotangents
    arguments = dict(
        **_weights(shape, W=x.weight, Wf=x.forget_weight, Wr=x.reset_weight), **_strided(4, dy=dy),
        **_strided(3, dlast=dlast), dstate=dstate, r_in=factors.r, f_in=factors.f, az=factors.z_factor,
        af=factors.f_factor, ar=factors.r_factor, cu_seqlens=packing.cu_seqlens, order=packing.order,
        clip=0.0 if clip is None else clip, **shape._asdict(), HAS_DY=dy is not None, HAS_DLAST=dlast is not None,
        CLIP=clip is not None, PACKED=packing.cu_seqlens is not None, BLOCK_H=plan.block, ROWS=plan.rows,
        STAGES=plan.how.num_stages, **operand.constants(),
    )  # fmt: skip
    if plan.part is None:
        launch(kernels.backward_resident, programs, device, plan.how, **arguments, UNROLL=plan.unroll)
    else:
        scratch = (-(-shape.H // plan.block) * plan.block, plan.rows)
        operands = dstate.new_empty((programs, 3, *scratch), dtype=operand.dtype)
        carries = dstate.new_empty((programs, *scratch))
        launch(
            kernels.backward_streamed, programs, device, plan.how, **arguments, operands=operands, carries=carries,
            BLOCK_K=plan.part,
        )  # fmt: skip
    return dstate


def _weight_gradients(x: Arguments, packing: Packing, y: Tensor, gradients: _Factors, shape: Shape) -> list[Tensor]:
    """The gradients of the weights, summed in float32 over tokens and over the heads that share a weight."""
    from torch_impl._gru.triton import backward_kernels as kernels

    operand, T, N, H = Operand.of(y.dtype, gradients=True), shape.T, shape.N, shape.H
    block, tokens = (min(power_of_two(H), 32), 16) if operand.wide else (min(power_of_two(H), 64), 64)
    tiles = (-(-H // block)) ** 2
    chunks = max(1, min(-(-T // 256), -(-1024 // (tiles * N))))
    span = -(-T // (chunks * tokens)) * tokens
    chunks = -(-T // span) if span else 0
    dW, dWf, dWr = (y.new_empty((chunks, N, H, H), dtype=torch.float32) for _ in range(3))
    launch(
        kernels.weights_gradient, chunks * N * tiles, y.device, Launch(2 if block == 16 else 4, 2),
        **_strided(3, state=x.input_state), y=y, cu_seqlens=packing.cu_seqlens, sequence_of=packing.sequence_of,
        r_in=gradients.r, duz=gradients.z_factor, duf=gradients.f_factor, dur=gradients.r_factor, dW=dW, dWf=dWf,
        dWr=dWr, span=span, **shape.tokens, HAS_STATE=x.input_state is not None,
        PACKED=packing.cu_seqlens is not None, BLOCK_I=block, BLOCK_J=block, BLOCK_T=tokens, STAGES=2,
        **operand.constants(),
    )  # fmt: skip
    return [
        dw.sum(0).unflatten(0, (w.shape[0], N // w.shape[0])).sum(1)
        for dw, w in zip((dW, dWf, dWr), x.weights, strict=True)
    ]


ROWS = (
    Row(
        backend="triton",
        operation="gru",
        devices=("cuda", "cpu"),
        dtypes=DTYPES,
        largest=(("H", 1024),),
        unavailable=unavailable,
        options=("gradient_clipping",),
        implementation=Implementation(
            residuals=Residuals,
            forward=gru_forward,
            backward=gru_backward,
            worth_keeping=lambda x: Residuals._fields,
        ),
    ),
)
