"""Launchers of the recurrences' kernels, for any cell.

``docs/triton-gru.md`` explains which kernel is launched for which width, with the bytes and latencies behind it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_impl._recurrent.triton.cell import Cell
from torch_impl._recurrent.triton.plans import Plan, plans
from torch_impl._triton.interpreter import interpreted
from torch_impl._triton.launch import Launch, capability, dot_precision, launch, offsets_on, power_of_two
from torch_impl._triton.tuning import tuned

R = TypeVar("R", bound=Any)


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


def fast() -> bool:
    """Whether kernels may use instructions that only NVIDIA's GPUs have."""
    return torch.version.hip is None and not interpreted()


class Shape(NamedTuple):
    """The letters of a call, with ``T`` tokens in total; groups of ``group`` heads share all weights.

    S is 0 if sequences are packed.
    """

    B: int
    S: int
    T: int
    N: int
    H: int
    group: int

    @classmethod
    def of(cls, x: Tensor, N: int, weights: Sequence[Tensor], cu_seqlens: Tensor | None) -> "Shape":
        """The shape of a call with an input ``x`` and N heads."""
        group = math.gcd(*(N // max(w.shape[0], 1) for w in weights))
        if cu_seqlens is None:
            B, S = x.shape[:2]
            return cls(B=B, S=S, T=B * S, N=N, H=x.shape[-1], group=group)
        return cls(B=cu_seqlens.shape[0] - 1, S=0, T=x.shape[0], N=N, H=x.shape[-1], group=group)

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
        cu_seqlens = offsets_on(device, cu_seqlens).to(torch.int64).contiguous()
        order = torch.argsort(cu_seqlens.diff(), descending=True, stable=True)
        if not tokens:
            return cls(cu_seqlens, order, None)
        number = torch.arange(T, device=cu_seqlens.device)
        sequence_of = torch.searchsorted(cu_seqlens[1:], number, right=True).clamp_(max=len(cu_seqlens) - 2)
        return cls(cu_seqlens, order, sequence_of)


MULTIPLE, WIDE = 16, 32
"""Kernels read 16 bytes at a time if H is a multiple of the first; otherwise, above the second, they would spill."""


def width(H: int) -> int:
    """The number of units that kernels compute: H, padded if it is large and not a multiple of 16. A padded unit has
    weights and inputs of 0, and its h stays 0."""
    return H if H <= WIDE else -(-H // MULTIPLE) * MULTIPLE


def widened(record: R, H: int) -> R:
    """The record with the axes of length H of its arrays padded with zeros to `width`: the last one, of weights two."""
    more = width(H) - H
    if not more:
        return record
    arrays = {name: x for name, x in record._asdict().items() if isinstance(x, Tensor) and name != "cu_seqlens"}
    return record._replace(**{name: pad(x, (0, more) * _axes(name)) for name, x in arrays.items()})


def narrowed(arrays: Iterable[Tensor], names: Sequence[str], H: int) -> list[Tensor]:
    """Undo `widened` for arrays with the axes of the fields with these names; they stay contiguous."""
    found = [*arrays]
    if width(H) == H:
        return found
    axes = map(_axes, names[: len(found)])
    return [x[(..., *(slice(H),) * count)].contiguous() for x, count in zip(found, axes, strict=True)]


def _axes(name: str) -> int:
    return 2 if "weight" in name else 1


class Recurrence(NamedTuple):
    """A call as the kernels of any cell see it, with arrays of any strides; h is the first part of a state.

    Attributes:
        name: the name under which plans are tuned.
        inputs: by gate, ``(B, S, heads, H)``, or ``(T, heads, H)`` with `cu_seqlens`.
        weights: by gate, ``(heads, H, H)``.
        bias: of the last gate's product in the form "apart", ``(heads, H)``; None means zeros.
        initial: the parts of the initial state, each ``(B, N, H)`` in float32; None for the empty state.
        clip: the bound on the gradient of h; None disables clipping.
    """

    name: str
    cell: Cell
    shape: Shape
    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    bias: Tensor | None
    initial: tuple[Tensor, ...] | None
    cu_seqlens: Tensor | None
    clip: float | None

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs[0].dtype

    def packing(self, tokens: bool) -> Packing:
        return Packing.of(self.cu_seqlens, self.shape.T, tokens, self.device)

    def of_weights(self) -> dict[str, Any]:
        """The weights with their strides and, as ``W_shares``, the number of heads that read each of their heads."""
        return each_strided(3, W=self.weights) | {"W_shares": tuple(self.shape.N // w.shape[0] for w in self.weights)}

    def states(self) -> tuple[Tensor, ...]:
        """Room for the parts of a state of every sequence."""
        size = (self.shape.B, self.shape.N, self.shape.H)
        return tuple(self.inputs[0].new_empty(size, dtype=torch.float32) for _ in self.cell.empty)


def strides_of(axes: int, x: Tensor | None) -> tuple[int, ...]:
    """As many strides as kernels have axes: packed tokens have none for the first axis, and None has none at all."""
    own = () if x is None else x.stride()
    return (0,) * (axes - len(own)) + own


def strided(axes: int, **arrays: Tensor | None) -> dict[str, Any]:
    """Arrays and, as ``NAME_strides``, their strides."""
    return arrays | {f"{name}_strides": strides_of(axes, x) for name, x in arrays.items()}


def each_strided(axes: int, **tuples: tuple[Tensor, ...] | None) -> dict[str, Any]:
    """Tuples of arrays and, as ``NAME_strides``, the strides of each."""
    strides = {
        f"{name}_strides": None if arrays is None else tuple(strides_of(axes, x) for x in arrays)
        for name, arrays in tuples.items()
    }
    return tuples | strides


def _tuned(kernel: str, r: Recurrence, operand: Operand, run: Callable[[Plan], Any]) -> Plan:
    sizes = f"{str(operand.dtype).removeprefix('torch.')} {operand.precision} H{r.shape.H}"

    def offered() -> tuple[Plan, ...]:
        return plans(r.shape.H, operand.wide, capability(r.device), r.cell.gates)

    return tuned(f"{r.name}_{kernel}", sizes, offered, r.device, run)


def run_forward(
    r: Recurrence,
    kept: tuple[Tensor, ...] | None = None,
    plan: Plan | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """h of every step, and the parts of the last state; all are new and contiguous.

    The host never reads the packing; with an invalid one, kernels still read and write within bounds.

    Args:
        kept: arrays ``(T, N, H)`` that receive what the cell keeps; None keeps nothing.
        plan: the plan to use instead of the one tuned among `plans`.
        dtype: that of h; None means that of the inputs.
    """
    from torch_impl._recurrent.triton import forward_kernels as kernels

    shape, cell, x = r.shape, r.cell, r.inputs[0]
    y, last = x.new_empty((*x.shape[:-2], shape.N, shape.H), dtype=dtype), r.states()
    if shape.empty:
        return y, last
    packing, operand = r.packing(tokens=False), Operand.of(r.dtype)
    if plan is None:
        plan = _tuned("forward", r, operand, lambda plan: run_forward(r, kept, plan, dtype))
    programs = shape.programs(plan.rows)
    arguments = dict(
        **each_strided(4, x=r.inputs), x_shares=tuple(shape.N // x.shape[-2] for x in r.inputs), **r.of_weights(),
        bias=None if r.bias is None else r.bias.contiguous(), **each_strided(3, initial=r.initial), y=y, last=last,
        kept=kept, cu_seqlens=packing.cu_seqlens, order=packing.order, **shape._asdict(), ADVANCE=cell.advance,
        LATE=cell.late, FORM=cell.form, EMPTY=cell.empty, KEEP=kept is not None, HAS_STATE=r.initial is not None,
        PACKED=packing.cu_seqlens is not None, BLOCK_H=plan.block, ROWS=plan.rows, FAST=fast(),
        STAGES=plan.how.num_stages, **operand.constants(),
    )  # fmt: skip
    if plan.part is None:
        launch(kernels.forward_resident, programs, r.device, plan.how, **arguments, UNROLL=plan.unroll)
    else:
        late = cell.gates - 2 if cell.form == "late" else 0
        tile = (-(-shape.H // plan.block) * plan.block, plan.rows)
        launch(
            kernels.forward_streamed, programs, r.device, plan.how, **arguments, BLOCK_K=plan.part,
            operands=y.new_empty((programs, 2, *tile), dtype=operand.dtype),
            carries=y.new_empty((programs, len(cell.empty) + late, *tile), dtype=torch.float32),
        )  # fmt: skip
    return y, last


class Steps(NamedTuple):
    """The arrays of the backward pass's loop, each ``(T, N, H)`` and contiguous.

    Attributes:
        arrays: first those that the cell reads, then others that the loop writes to.
        read: the number of those that the cell reads.
        into: by gate, the number of the array that receives the gradients of its preactivations. One that is read is
            replaced.
    """

    arrays: tuple[Tensor, ...]
    read: int
    into: tuple[int, ...]

    @property
    def du(self) -> tuple[Tensor, ...]:
        return tuple(self.arrays[number] for number in self.into)

    def copied(self) -> "Steps":
        """A copy for a pass that is only measured."""
        return self._replace(arrays=tuple(x.clone() if n in self.into else x for n, x in enumerate(self.arrays)))


def run_backward(
    r: Recurrence,
    packing: Packing,
    dy: Tensor | None,
    dlast: tuple[Tensor, ...] | None,
    steps: Steps,
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Fill ``steps.du``. Returns the gradients of the parts of the initial state.

    Args:
        dy: cotangent of every h, with any strides; None means zeros.
        dlast: cotangents of the parts of the last state, ``(B, N, H)``; None means zeros.
    """
    from torch_impl._recurrent.triton import backward_kernels as kernels

    shape, cell, operand = r.shape, r.cell, Operand.of(r.dtype, gradients=True)
    if plan is None:
        spare: list[Steps] = []

        def run(plan: Plan) -> None:
            if not spare:
                spare.append(steps.copied())
            run_backward(r, packing, dy, dlast, spare[0], plan)

        plan = _tuned("backward", r, operand, run)
    programs, dinitial = shape.programs(plan.rows), r.states()
    arguments = dict(
        **r.of_weights(), **strided(4, dy=dy), **each_strided(3, dlast=dlast), dinitial=dinitial, arrays=steps.arrays,
        READ=steps.read, INTO=steps.into, cu_seqlens=packing.cu_seqlens, order=packing.order,
        clip=0.0 if r.clip is None else r.clip, **shape._asdict(), BACKWARD=cell.backward, LATE=cell.late_backward,
        FORM=cell.form, STATES=len(cell.empty), HAS_DY=dy is not None, HAS_DLAST=dlast is not None,
        CLIP=r.clip is not None,
        PACKED=packing.cu_seqlens is not None, BLOCK_H=plan.block, ROWS=plan.rows, STAGES=plan.how.num_stages,
        **operand.constants(),
    )  # fmt: skip
    if plan.part is None:
        launch(kernels.backward_resident, programs, r.device, plan.how, **arguments, UNROLL=plan.unroll)
    else:
        tile = (-(-shape.H // plan.block) * plan.block, plan.rows)
        launch(
            kernels.backward_streamed, programs, r.device, plan.how, **arguments, BLOCK_K=plan.part,
            operands=dinitial[0].new_empty((programs, cell.gates, *tile), dtype=operand.dtype),
            carries=dinitial[0].new_empty((programs, len(cell.empty), *tile)),
        )  # fmt: skip
    return dinitial


def weight_gradients(
    r: Recurrence, packing: Packing, y: Tensor, du: tuple[Tensor, ...], scale: Tensor | None = None
) -> list[Tensor]:
    """The gradients of the weights and, if there is one, of the bias, summed over tokens and over the heads that share
    them: sums in float32, results in the dtypes of the weights.

    Args:
        scale: in the forms "late" and "apart", ``(T, N, H)``: the factor of h or du in the last gate's product.
    """
    from torch_impl._recurrent.triton import backward_kernels as kernels

    operand, shape = Operand.of(r.dtype, gradients=True), r.shape
    T, N, H = shape.T, shape.N, shape.H
    block, tokens = (min(power_of_two(H), 32), 16) if operand.wide else (min(power_of_two(H), 64), 64)
    late = r.cell.form == "late"
    if capability(r.device) == 8 and not late:
        # Wider tiles spill.
        block = min(block, 32)
    # Fewer warps spill under Triton 3.9.
    middle = 8 if r.cell.gates == 3 and not operand.wide else 4
    warps = {16: 1, 32: middle}.get(block, 4 if late else 8)
    tiles = (-(-H // block)) ** 2
    chunks = max(1, min(-(-T // 256), -(-1024 // (tiles * N))))
    span = -(-T // (chunks * tokens)) * tokens
    chunks = -(-T // span) if span else 0
    dW = tuple(y.new_empty((chunks, N, H, H), dtype=torch.float32) for _ in r.weights)
    dbias = None if r.bias is None else y.new_empty((chunks, N, H), dtype=torch.float32)
    launch(
        kernels.weights_gradient, chunks * N * tiles, y.device, Launch(warps, 2),
        **strided(3, state=None if r.initial is None else r.initial[0]), y=y, cu_seqlens=packing.cu_seqlens,
        sequence_of=packing.sequence_of, scale=scale, du=du, dW=dW, dbias=dbias, span=span, **shape.tokens,
        FORM=r.cell.form, HAS_STATE=r.initial is not None, PACKED=packing.cu_seqlens is not None, BLOCK_I=block,
        BLOCK_J=block, BLOCK_T=tokens, STAGES=2, APART=capability(r.device) == 9, **operand.constants(),
    )  # fmt: skip
    pairs = [*zip(dW, r.weights, strict=True)] + ([] if r.bias is None else [(dbias, r.bias)])
    return [
        partial.sum(0).unflatten(0, (w.shape[0], N // w.shape[0])).sum(1).to(w.dtype)
        for partial, w in pairs
        if partial is not None
    ]


def input_gradient(du: Tensor, x: Tensor) -> Tensor:
    """``(T, N, H)`` summed over the heads that read one head of ``x``, with the shape and dtype of ``x``."""
    heads = x.shape[-2]
    if heads != du.shape[1]:
        du = du.unflatten(1, (heads, du.shape[1] // heads)).sum(2)
    return du.to(x.dtype).view(x.shape)


def room_for_gradients(x: Tensor, T: int, N: int) -> Tensor:
    """An array ``(T, N, H)`` for the gradients of the preactivations that ``x`` is an input of: in bfloat16 if they are
    the gradient itself, in float32 if they are summed over heads, or of values whose range is smaller."""
    exact = x.dtype is not torch.bfloat16 or x.shape[-2] != N
    return x.new_empty((T, N, x.shape[-1]), dtype=torch.float32 if exact else torch.bfloat16)
