"""Launchers of the GRU's kernels, the plan by which they are chosen, and the row that says what they support.

What is launched, of what width, and why, stands with its bytes and latencies in ``docs/triton-gru.md``.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._triton.interpreter import DTYPES, interpreted, unavailable
from torch_impl._triton.launch import Launch, dot_precision, launch, power_of_two
from torch_impl._triton.tuning import tuned

ROWS = (Row("triton", "gru", devices=("cuda", "cpu"), dtypes=DTYPES, largest=(("H", 1024),), unavailable=unavailable),)

RESIDENT = 128
"""The widest head whose three weights stay with a program, in 16 bits; half of it in 32."""


class Plan(NamedTuple):
    """How a pass over the steps runs for one width and dtype.

    Attributes:
        block: units of a tile of the weights: all of H where they are resident.
        part: inputs of a tile that is streamed; None where the weights are resident.
        rows: lanes of a program.
        how: warps, and stages of the loop that loads: over the steps, or over the weights' tiles.
        unroll: steps of a resident kernel whose inputs are loaded together, so many steps before they are used.
    """

    block: int
    part: int | None
    rows: int
    how: Launch
    unroll: int = 1


def plan(H: int, wide: bool) -> Plan:
    """The plan for heads of ``H`` whose operands are of 32 bits (``wide``) or of 16."""
    block = power_of_two(H)
    if block <= RESIDENT and not wide:
        # A tile of AMD's matrix cores has 16 lanes at least.
        rows, unroll = (16, 2 if block < RESIDENT else 1) if torch.version.hip else (8, 4)
        return Plan(block, None, rows, Launch(block // 16, 2), unroll)
    if block <= RESIDENT // 2:
        return Plan(block, None, 8, Launch(1 if block == 16 else 4, 2))
    if wide:
        return Plan(128, 32, 8, Launch(8, 2))
    # 64 kB of shared memory on AMD, 227 on Hopper.
    return Plan(256, 32, 16, Launch(8, 2 if torch.version.hip else 3))


def plans(H: int, wide: bool) -> tuple[Plan, ...]:
    """Those that a pass over the steps may be tuned to, `plan`'s first. None spills on sm_90."""
    first = plan(H, wide)
    warps, stages = first.how
    if first.part is not None:
        return (first,) if wide else (first, first._replace(how=Launch(warps, stages - 1)))
    # What spills is left out: wide heads unrolled by much, sixteen lanes of 32-bit operands, a third stage of H = 128.
    most = (2 if first.block < RESIDENT else 1) if torch.version.hip else 8 if first.block == 16 else 4
    others = [first._replace(unroll=unroll) for unroll in (1, 2, 4, 8) if unroll <= most and not wide]
    if not wide or first.block == 16:
        others.append(first._replace(rows=16, unroll=first.unroll if first.block == 16 else min(first.unroll, 2)))
    if first.block < RESIDENT:
        others.append(first._replace(how=Launch(warps, stages + 1)))
    return tuple(dict.fromkeys((first, *others)))


class Operand(NamedTuple):
    """In what dtype the operands of products are, and how products of float32 operands are taken."""

    dtype: torch.dtype
    precision: str

    @classmethod
    def of(cls, values: torch.dtype, gradients: bool = False) -> "Operand":
        """Beside ``values``; a gradient beside float16 keeps float32's range, for it may lie below float16's."""
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
    """Whether kernels may use NVIDIA's own instructions."""
    return torch.version.hip is None and not interpreted()


class Shape(NamedTuple):
    """The letters of a call, ``T`` tokens in all; heads in groups of ``G`` that share all three weights."""

    B: int
    S: int
    T: int
    N: int
    H: int
    G: int

    @classmethod
    def of(cls, arrays: tuple[Tensor, ...], cu_seqlens: Tensor | None) -> "Shape":
        inputs, weights = arrays[::2], arrays[1::2]
        N = max(*(x.shape[-2] for x in inputs), *(w.shape[0] for w in weights))
        G = math.gcd(*(N // w.shape[0] for w in weights))
        if cu_seqlens is None:
            B, S = inputs[0].shape[:2]
            return cls(B, S, B * S, N, inputs[0].shape[-1], G)
        T = inputs[0].shape[0]
        return cls(cu_seqlens.shape[0] - 1, 0, T, N, inputs[0].shape[-1], G)

    @property
    def empty(self) -> bool:
        return 0 in (self.B, self.N, self.H)

    def programs(self, rows: int) -> int:
        return -(-self.B * self.G // rows) * (self.N // self.G)


class Packing(NamedTuple):
    """Packed sequences on their device: bounds, the longest first, every token's sequence. All None for dense ones."""

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


def _strides(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """As many strides as a kernel counts axes; packed tokens have no first one, and what is None has none at all."""
    own = () if x is None else x.stride()
    return (0,) * (axes - len(own)) + own


def _sources(arrays: tuple[Tensor, ...], N: int) -> list[Any]:
    """Every array with its strides and the number of heads that one of its heads serves."""
    sources = []
    for number, x in enumerate(arrays):
        weight = number % 2
        sources += [x, _strides(x, 3 if weight else 4), N // x.shape[0 if weight else -2]]
    return sources


def _tuned(kernel: str, shape: Shape, operand: Operand, device: torch.device, run: Callable[[Plan], Any]) -> Plan:
    sizes = f"{str(operand.dtype).removeprefix('torch.')} {operand.precision} H{shape.H}"
    return tuned(kernel, sizes, lambda: plans(shape.H, operand.wide), device, run)


def forward(
    arrays: tuple[Tensor, ...], state: Tensor | None, cu_seqlens: Tensor | None, chosen: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """Every h' and the last of each sequence.

    Args:
        arrays: input, weight, forget_input, forget_weight, reset_input, reset_weight, of any strides.
        state: ``(B, N, H)`` in float32, or None.
        cu_seqlens: ``(B+1,)``, never read by the host; a bad one reads and writes within bounds.
        chosen: how to run, in place of what `plans` are tuned to.

    Returns:
        ``(output, output_state)``, the first in the arrays' dtype, the second in float32; both fresh and contiguous.
    """
    from torch_impl._gru.triton import forward_kernels as kernels

    x, packed = arrays[0], cu_seqlens is not None
    shape = Shape.of(arrays, cu_seqlens)
    y = x.new_empty((*x.shape[:-2], shape.N, shape.H))
    last = x.new_empty((shape.B, shape.N, shape.H), dtype=torch.float32)
    if shape.empty:
        return y, last
    packing = Packing.of(cu_seqlens, shape.T, tokens=False, device=x.device)
    operand = Operand.of(x.dtype)
    if chosen is None:
        chosen = _tuned("gru_forward", shape, operand, x.device, lambda plan: forward(arrays, state, cu_seqlens, plan))
    programs = shape.programs(chosen.rows)
    args = [*_sources(arrays, shape.N), state, _strides(state, 3), y, last, packing.cu_seqlens, packing.order]
    constants = dict(HAS_STATE=state is not None, PACKED=packed, BLOCK_H=chosen.block, ROWS=chosen.rows, FAST=_fast(),
                     STAGES=chosen.how.num_stages, **operand.constants())  # fmt: skip
    if chosen.part is None:
        launch(
            kernels.forward_resident, programs, x.device, chosen.how, *args, *shape, UNROLL=chosen.unroll, **constants
        )
    else:
        scratch = (programs, 2, -(-shape.H // chosen.block) * chosen.block, chosen.rows)
        operands, carries = x.new_empty(scratch, dtype=operand.dtype), x.new_empty(scratch, dtype=torch.float32)
        launch(kernels.forward_streamed, programs, x.device, chosen.how, *args, operands, carries, *shape,
               BLOCK_K=chosen.part, **constants)  # fmt: skip
    return y, last


def backward(
    arrays: tuple[Tensor, ...],
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    y: Tensor,
    dy: Tensor | None,
    dlast: Tensor | None,
    clip: float | None,
) -> list[Tensor]:
    """Gradients of the six arrays in their order and of the initial state.

    Args:
        arrays, state, cu_seqlens: as `forward` took them.
        y: the output that it gave.
        dy, dlast: cotangents of the output and of the output state, of any strides; None is zeros.
        clip: bound of what reaches a state from the step after it, None for none.

    Returns:
        Six gradients in the arrays' dtypes and the state's in float32. Sums over heads and tokens are in float32 and of
        one fixed order.
    """
    shape = Shape.of(arrays, cu_seqlens)
    if shape.empty:
        return [*(torch.zeros_like(x) for x in arrays), y.new_empty((shape.B, shape.N, shape.H), dtype=torch.float32)]
    packing = Packing.of(cu_seqlens, shape.T, tokens=True, device=y.device)
    r, f, *du = _factors(arrays, state, packing, y, shape)
    dstate = _walk(arrays, packing, dy, dlast, clip, r, f, du, shape)
    weights = _weights(arrays, state, packing, y, r, du, shape)
    gradients = []
    for dx, x, dW, W in zip((du[0], du[1], du[2]), arrays[::2], weights, arrays[1::2], strict=True):
        gradients += [_gather(dx, x), dW.to(W.dtype)]
    return [*gradients, dstate]


def _gather(du: Tensor, x: Tensor) -> Tensor:
    """``(T, N, H)`` summed over the heads that one of x's serves, in x's shape and dtype."""
    heads = x.shape[-2]
    if heads != du.shape[1]:
        du = du.unflatten(1, (heads, du.shape[1] // heads)).sum(2)
    return du.to(x.dtype).view(x.shape)


def _factors(
    arrays: tuple[Tensor, ...], state: Tensor | None, packing: Packing, y: Tensor, shape: Shape
) -> list[Tensor]:
    """r and f in float32; a_z, a_f, a_r, each ``(T, N, H)``, in the dtype in which their du are wanted."""
    from torch_impl._gru.triton import backward_kernels as kernels

    packed, operand, (_, S, T, N, H, _) = packing.cu_seqlens is not None, Operand.of(y.dtype), shape
    r, f = (y.new_empty((T, N, H), dtype=torch.float32) for _ in range(2))
    az, af, ar = (
        y.new_empty(
            (T, N, H), dtype=torch.bfloat16 if y.dtype is torch.bfloat16 and x.shape[-2] == N else torch.float32
        )
        for x in arrays[::2]
    )
    sources = _sources(arrays, N)
    history = [state, _strides(state, 3), y, packing.cu_seqlens, packing.sequence_of]
    constants = dict(HAS_STATE=state is not None, PACKED=packed, FAST=_fast(), **operand.constants())
    block = power_of_two(H)
    if block <= (16 if operand.wide else 64):
        tokens, how = (64, Launch(4)) if block <= 32 else (32, Launch(4 if torch.version.hip else 8))
        launch(kernels.factors, -(-T // tokens) * N, y.device, how, *sources, *history, r, f, az, af, ar, S, T, N, H,
               BLOCK_H=block, BLOCK_T=tokens, **constants)  # fmt: skip
        return [r, f, az, af, ar]
    tokens, part = (32, 16) if operand.wide else (64, 32)
    units = min(block, 64)
    programs = -(-T // tokens) * N * -(-H // units)
    constants |= dict(BLOCK_H=units, BLOCK_K=part, BLOCK_T=tokens, STAGES=3)
    how = Launch(8, 3)
    launch(
        kernels.factors_gates, programs, y.device, how, *sources[6:], *history, r, f, af, ar, S, T, N, H, **constants
    )
    launch(
        kernels.factors_candidate,
        programs,
        y.device,
        how,
        *sources[:6],
        *history,
        r,
        f,
        az,
        af,
        S,
        T,
        N,
        H,
        **constants,
    )
    return [r, f, az, af, ar]


class _Copies:
    """Copies for a pass that writes in place and is only measured; made when they are first asked for."""

    def __init__(self, originals: list[Tensor]):
        self._originals = originals
        self._copies: list[Tensor] = []

    def tensors(self) -> list[Tensor]:
        self._copies = self._copies or [x.clone() for x in self._originals]
        return self._copies


def _walk(
    arrays: tuple[Tensor, ...],
    packing: Packing,
    dy: Tensor | None,
    dlast: Tensor | None,
    clip: float | None,
    r: Tensor,
    f: Tensor,
    du: list[Tensor],
    shape: Shape,
    chosen: Plan | None = None,
) -> Tensor:
    """Walk back; the factors in ``du`` become gradients. Returns the gradient of the initial states."""
    from torch_impl._gru.triton import backward_kernels as kernels

    packed, operand = packing.cu_seqlens is not None, Operand.of(arrays[0].dtype, gradients=True)
    if chosen is None:
        spare = _Copies(du)
        chosen = _tuned(
            "gru_backward", shape, operand, r.device,
            lambda plan: _walk(arrays, packing, dy, dlast, clip, r, f, spare.tensors(), shape, plan),
        )  # fmt: skip
    programs = shape.programs(chosen.rows)
    dstate = r.new_empty((shape.B, shape.N, shape.H))
    sources = _sources(arrays, shape.N)
    args = [*sources[3:6], *sources[9:12], *sources[15:],
            dy, _strides(dy, 4), dlast, _strides(dlast, 3), dstate, r, f, *du,
            packing.cu_seqlens, packing.order]  # fmt: skip
    bound = 0.0 if clip is None else clip
    constants = dict(HAS_DY=dy is not None, HAS_DLAST=dlast is not None, CLIP=clip is not None, PACKED=packed,
                     BLOCK_H=chosen.block, ROWS=chosen.rows, STAGES=chosen.how.num_stages,
                     **operand.constants())  # fmt: skip
    if chosen.part is None:
        launch(kernels.backward_resident, programs, r.device, chosen.how, *args, bound, *shape, UNROLL=chosen.unroll,
               **constants)  # fmt: skip
    else:
        scratch = (-(-shape.H // chosen.block) * chosen.block, chosen.rows)
        operands, carries = r.new_empty((programs, 3, *scratch), dtype=operand.dtype), r.new_empty((programs, *scratch))
        launch(kernels.backward_streamed, programs, r.device, chosen.how, *args, operands, carries, bound, *shape,
               BLOCK_K=chosen.part, **constants)  # fmt: skip
    return dstate


def _weights(
    arrays: tuple[Tensor, ...],
    state: Tensor | None,
    packing: Packing,
    y: Tensor,
    r: Tensor,
    du: list[Tensor],
    shape: Shape,
) -> list[Tensor]:
    """The weights' gradients, summed in float32 over tokens and over the heads that one weight serves."""
    from torch_impl._gru.triton import backward_kernels as kernels

    packed, operand, (_, S, T, N, H, _) = packing.cu_seqlens is not None, Operand.of(y.dtype, gradients=True), shape
    block, tokens = (min(power_of_two(H), 32), 16) if operand.wide else (min(power_of_two(H), 64), 64)
    tiles = (-(-H // block)) ** 2
    chunks = max(1, min(-(-T // 256), -(-1024 // (tiles * N))))
    span = -(-T // (chunks * tokens)) * tokens
    chunks = -(-T // span) if span else 0
    dW, dWf, dWr = (y.new_empty((chunks, N, H, H), dtype=torch.float32) for _ in range(3))
    launch(kernels.weights_gradient, chunks * N * tiles, y.device, Launch(2 if block == 16 else 4, 2),
           state, _strides(state, 3), y, packing.cu_seqlens, packing.sequence_of,
           r, *du, dW, dWf, dWr, span, S, T, N, H, HAS_STATE=state is not None, PACKED=packed,
           BLOCK_I=block, BLOCK_J=block, BLOCK_T=tokens, STAGES=2, **operand.constants())  # fmt: skip
    return [
        dw.sum(0).unflatten(0, (w.shape[0], N // w.shape[0])).sum(1)
        for dw, w in zip((dW, dWf, dWr), arrays[1::2], strict=True)
    ]
