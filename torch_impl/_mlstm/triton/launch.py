"""The launchers of the mLSTM's kernels, their residuals, and the rows with what they support.

All work on the device is enqueued in order, in the tensors' own stream; nothing is read back. Triton is imported when
the first kernel is launched.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._differentiable import Implementation, NoResiduals
from torch_impl._mlstm.arguments import Arguments, Cotangents, Result, StepArguments, StepResult
from torch_impl._mlstm.triton.plans import (
    MLSTMPlan,
    backward_plans,
    block_length,
    forward_plans,
)
from torch_impl._records import Axes, fields
from torch_impl._triton.interpreter import DTYPES, unavailable
from torch_impl._triton.launch import Launch, capability, dot_precision, launch, offsets_on, power_of_two
from torch_impl._triton.tuning import tuned

LARGEST_HEAD = 512
"""The largest K and V that the kernels take."""

_OPERAND = "operand"
"""Role of the dtype in which computed operands of products are stored."""


class Residuals(NamedTuple):
    """Residuals of `mlstm_forward` for `mlstm_backward`, which recomputes those that are None.

    Attributes:
        G: decayed scores between every step and the steps of its block.
        alpha, iota, p, g, total: see `LogWeights`.
        M, m_last, argmax_last: see `StepStabilisers`.
        C_start, n_start, c_start, C_last, n_last: see `BlockMemories`.
    """

    G: Annotated[Tensor | None, Axes("B S N L", torch.float32, "B N S L", "keep_G")] = None
    alpha: Annotated[Tensor | None, Axes("B S N", torch.float32, "B N S", "keep_gates")] = None
    iota: Annotated[Tensor | None, Axes("B S N", torch.float32, "B N S", "keep_gates")] = None
    p: Annotated[Tensor | None, Axes("B S N", torch.float32, "B N S", "keep_gates")] = None
    g: Annotated[Tensor | None, Axes("B S N", torch.float32, "B N S", "keep_gates")] = None
    total: Annotated[Tensor | None, Axes("B blocks N", torch.float32, option="keep_gates")] = None
    M: Annotated[Tensor | None, Axes("B S N", torch.float32, "B N S", "keep_M")] = None
    m_last: Annotated[Tensor | None, Axes("B N", torch.float32, option="keep_M")] = None
    argmax_last: Annotated[Tensor | None, Axes("B N", torch.int32, option="keep_M")] = None
    C_start: Annotated[Tensor | None, Axes("B starts N K V", _OPERAND, option="keep_c")] = None
    n_start: Annotated[Tensor | None, Axes("B starts N K", torch.float32, option="keep_c")] = None
    c_start: Annotated[Tensor | None, Axes("B starts N V", torch.float32, option="keep_c")] = None
    C_last: Annotated[Tensor | None, Axes("B N K V", torch.float32, option="keep_c")] = None
    n_last: Annotated[Tensor | None, Axes("B N K", torch.float32, option="keep_c")] = None


NO_RESIDUALS = Residuals()


class StepStabilisers(NamedTuple):
    """m of every step, float32 and head-major; m at the end of every sequence, ``(B, N)``, and the step that attains
    it, int32."""

    M: Tensor
    m_last: Tensor
    argmax_last: Tensor


class LogWeights(NamedTuple):
    """Log gates and sums of them in units of exp(m), in float32 and head-major: α, ι, p, g of every step. For every
    block, ``(blocks, N)``: the total decay of a memory."""

    alpha: Tensor
    iota: Tensor
    p: Tensor
    g: Tensor
    total: Tensor


class BlockMemories(NamedTuple):
    """C and n at the start of every block, with one more entry per sequence, ``(blocks + B, N, ·)``; C and n at the end
    of every sequence, ``(B, N, ·)``.

    With a centre c, ``(blocks + B, N, V)`` in float32, the stored C at the start of blocks is R = C − n cᵀ.
    """

    C_start: Tensor
    n_start: Tensor
    c_start: Tensor | None
    C_last: Tensor
    n_last: Tensor


def _from_kernels(own: Residuals, keep: Sequence[str], packed: bool, B: int) -> Residuals:
    """The residuals to keep, from arrays in the kernels' layout: views, or copies if they are also returned."""
    kept = {}
    for field in fields(Residuals):
        x, axes = getattr(own, field.name), field.axes
        if field.name not in keep or axes is None:
            continue
        assert x is not None, f"mlstm_forward did not compute {field.name}"
        if _by_block(axes) and not packed:
            x = x.view(B, len(x) // max(B, 1), *x.shape[1:])
        kept[field.name] = x.clone() if field.name in _RETURNED else x.permute(axes.when(packed).from_memory)
    return Residuals(**kept)


_RETURNED = ("C_last", "n_last", "m_last")
"""Residuals that are also results, which the caller may overwrite."""


def _to_kernels(residuals: Residuals, packed: bool) -> Residuals:
    """Undo `_from_kernels`; the arrays are contiguous."""
    if all(x is None for x in residuals):
        return NO_RESIDUALS
    own = {}
    for field, x in zip(fields(Residuals), residuals, strict=True):
        if x is not None and field.axes is not None:
            x = x.permute(field.axes.when(packed).to_memory).contiguous()
            own[field.name] = x.flatten(0, 1) if _by_block(field.axes) and not packed else x
    return Residuals(**own)


def _by_block(axes: Axes) -> bool:
    return axes.letters.startswith(("B blocks", "B starts"))


def _residual_sizes(x: Arguments) -> dict[str, int]:
    L = block_length(x.v.dtype, x.chunk_size)
    blocks = -(-x.q.shape[1] // L)
    return {"L": L, "blocks": blocks, "starts": blocks + 1}


def _operand_dtype(values: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if values is torch.bfloat16 else torch.float32


class _Blocks(NamedTuple):
    """The division of all sequences into blocks: ``count`` is the maximum number in total, ``most`` that per sequence.

    ``table`` is what the kernels read of packed sequences: ``(bounds, before, sequences)`` on the device.
    """

    count: int
    most: int
    table: tuple[Tensor, ...] | None


def _blocks(q: Tensor, cu_seqlens: Tensor | None, L: int) -> _Blocks:
    if cu_seqlens is None:
        B, S = q.shape[:2]
        most = -(-S // L)
        return _Blocks(B * most, most, None)
    T, B = q.shape[0], cu_seqlens.shape[0] - 1
    count = T // L + B if B else 0
    # For any values, the bounds rise from 0 to T, so that no kernel accesses memory outside the arrays.
    bounds = torch.empty(B + 2, dtype=torch.int32, device=q.device)
    bounds[:1] = 0
    bounds[B:] = T
    if B > 1:
        bounds[1:B] = offsets_on(q.device, cu_seqlens)[1:-1].clamp(0, T).cummax(0).values
    before = torch.zeros(B + 1, dtype=torch.int32, device=q.device)
    torch.cumsum((bounds[1 : B + 1] - bounds[:B] + (L - 1)) // L, 0, dtype=torch.int32, out=before[1:])
    numbers = torch.arange(count, dtype=torch.int32, device=q.device)
    sequences = torch.searchsorted(before[1:], numbers, right=True, out_int32=True)
    return _Blocks(count, -(-T // L), (bounds, before, sequences))


def _addressable(x: Tensor, packed: bool) -> Tensor:
    """``x`` itself, or a copy if a stride within a tile (64 steps and the next, 512 columns) exceeds 32 bits."""
    step, _, *column = x.stride()[0 if packed else 1 :]
    return x.contiguous() if 65 * step + sum(LARGEST_HEAD * stride for stride in column) >= 2**31 else x


MULTIPLE = 16
"""Kernels read 16 bytes at a time, asynchronously, if K, V, strides and addresses are multiples of this. Otherwise they
would read two, and keep so many addresses that they spill 0.5 to 1.9 KB a thread: such arrays are copied instead."""


def _aligned(x: Tensor, axes: int = 1) -> Tensor:
    """``x`` itself, or a contiguous copy whose last axes are padded with zeros to multiples of `MULTIPLE`."""
    padded = [-(-size // MULTIPLE) * MULTIPLE for size in x.shape[-axes:]]
    long = (stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1)
    if padded == [*x.shape[-axes:]]:
        fits = x.data_ptr() % MULTIPLE == 0 and all(stride % MULTIPLE == 0 for stride in long)
        return x if fits else x.clone(memory_format=torch.contiguous_format)
    copy = x.new_zeros((*x.shape[:-axes], *padded))
    copy[(..., *map(slice, x.shape[-axes:]))] = x
    return copy


def _all_aligned(x: Any, **axes: int) -> Any:
    """A record whose named parts are aligned in so many of their last axes; parts that are None stay so."""
    parts = {name: (getattr(x, name), count) for name, count in axes.items()}
    return x._replace(**{name: _aligned(part, count) for name, (part, count) in parts.items() if part is not None})


def _cut(x: Any, K: int, V: int, **axes: str) -> Any:
    """Undo `_all_aligned`: the named parts without padding, given the letters of their last axes."""
    sizes = {"K": K, "V": V}
    cut = {}
    for name, letters in axes.items():
        part = getattr(x, name)
        if part is not None:
            cut[name] = part[(..., *(slice(sizes[letter]) for letter in letters))].contiguous()
    return x._replace(**cut)


MEMORIES = {"C_start": "KV", "n_start": "K", "c_start": "V", "C_last": "KV", "n_last": "K"}
"""The residuals that have the axes of a memory, and which."""


class _Inputs(NamedTuple):
    """The token arrays of a call, addressable in tiles, with their sizes and the precision of products."""

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    f: Tensor
    packed: bool
    B: int
    N: int
    K: int
    V: int
    S: int
    operand: torch.dtype
    precision: str
    scale: float

    @classmethod
    def of(cls, x: Arguments, scale: float) -> "_Inputs":
        """The inputs of a call, with the factor of its scores, 1/√K, in which K has no padding."""
        packed = x.cu_seqlens is not None
        q, k, v, i, f = (_addressable(part, packed) for part in (x.q, x.k, x.v, x.i, x.f))
        *lead, N, K = q.shape
        B = lead[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
        return cls(
            q=q, k=k, v=v, i=i, f=f, packed=packed, B=B, N=N, K=K, V=v.shape[-1],
            S=lead[-1],
            operand=_operand_dtype(v.dtype), precision=dot_precision(v.dtype), scale=scale,
        )  # fmt: skip

    @property
    def sizes(self) -> dict[str, int]:
        """S (of a packing, T), N, K and V, in the form in which kernels take them."""
        return {"S": self.S, "N": self.N, "K": self.K, "V": self.V}

    def strided(self, **arrays: Tensor) -> dict[str, Any]:
        """Arrays and, as ``NAME_strides``, their strides by sequence (0 if packed), step, head and the rest."""
        named: dict[str, Any] = {}
        for name, x in arrays.items():
            named[name] = x
            named[f"{name}_strides"] = (0, *x.stride()) if self.packed else tuple(x.stride())
        return named

    def per_step(self) -> Tensor:
        """A new head-major float32 array with one number per step."""
        lead = self.q.shape[:-2]
        shape = (self.N, *lead) if self.packed else (lead[0], self.N, lead[1])
        return self.q.new_empty(shape, dtype=torch.float32)

    def scores(self, L: int) -> Tensor:
        """A new head-major float32 array with L numbers per step."""
        steps = self.per_step()
        return steps.new_empty((*steps.shape, L))

    def states(self, *lead: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """New arrays with the shapes of C, in ``dtype``, and of n, in float32."""
        C = self.q.new_empty((*lead, self.N, self.K, self.V), dtype=dtype)
        return C, self.q.new_empty((*lead, self.N, self.K), dtype=torch.float32)


def _log_weights(
    x: _Inputs,
    blocks: _Blocks,
    L: int,
    m_first: Tensor | None,
    stabilisers: StepStabilisers | None = None,
    weights: LogWeights | None = None,
) -> tuple[StepStabilisers, LogWeights]:
    """Stabilisers and log weights of all steps; those that are given are not computed."""
    from torch_impl._mlstm.triton import chunk_kernels as kernels

    if stabilisers is not None and weights is not None:
        return stabilisers, weights
    sizes = {"table": blocks.table, "S": x.S, "N": x.N, "PACKED": x.packed, "L": L}
    kept = m_start = m_end = None
    if stabilisers is None:
        fall, peak, m_start, m_end = (x.q.new_empty((blocks.count, x.N), dtype=torch.float32) for _ in range(4))
        peak_step = x.q.new_empty((blocks.count, x.N), dtype=torch.int32)
        m_last, argmax_last = (x.q.new_empty((x.B, x.N), dtype=dtype) for dtype in (torch.float32, torch.int32))
        launch(
            kernels.gates, blocks.count * x.N, x.q.device, Launch(1),
            **x.strided(f=x.f, i=x.i), fall=fall, peak=peak, peak_step=peak_step, **sizes,
        )  # fmt: skip
        launch(
            kernels.stabilisers, x.B * x.N, x.q.device, Launch(4),
            fall=fall, peak=peak, peak_step=peak_step, m_first=m_first, m_start=m_start, m_end=m_end,
            m_last=m_last, argmax_last=argmax_last, **sizes, WIDTH=power_of_two(blocks.most, most=256),
        )  # fmt: skip
        stabilisers = StepStabilisers(M=x.per_step(), m_last=m_last, argmax_last=argmax_last)
    else:
        kept = stabilisers.M
    found = weights
    if found is None:
        alpha, iota, p, g = (x.per_step() for _ in range(4))
        total = x.q.new_empty((blocks.count, x.N), dtype=torch.float32)
        found = LogWeights(alpha=alpha, iota=iota, p=p, g=g, total=total)
    out = found._asdict() if weights is None else dict.fromkeys(LogWeights._fields)
    launch(
        kernels.log_weights, blocks.count * x.N, x.q.device, Launch(2),
        **x.strided(f=x.f, i=x.i), m_first=m_first, m_start=m_start, m_end=m_end, m_kept=kept,
        m_out=stabilisers.M if kept is None else None, alpha_out=out["alpha"], iota_out=out["iota"], p_out=out["p"],
        g_out=out["g"], total=out["total"], **sizes,
    )  # fmt: skip
    return stabilisers, found


def _tiles(x: _Inputs, side: int) -> dict[str, int]:
    BK, BV = power_of_two(x.K, most=side), power_of_two(x.V, most=side)
    return {"BK": BK, "BV": BV, "NK": -(-x.K // BK), "NV": max(-(-x.V // BV), 1)}


def _inside_tiles(x: _Inputs, plan: MLSTMPlan) -> dict[str, int]:
    NK, NV = -(-x.K // plan.BK), max(-(-x.V // plan.BV), 1)
    return {"L": plan.L, "BK": plan.BK, "BV": plan.BV, "NK": NK, "NV": NV}


class _State(NamedTuple):
    """A state or its cotangents in contiguous memory; each part may be None."""

    C: Tensor | None
    n: Tensor | None
    m: Tensor | None

    @classmethod
    def of(cls, C: Tensor | None, n: Tensor | None, m: Tensor | None) -> "_State":
        """The parts, copied if they are not contiguous."""
        return cls(*(None if part is None else part.contiguous() for part in (C, n, m)))


def _memories(
    x: _Inputs, blocks: _Blocks, plan: MLSTMPlan, weights: LogWeights, initial: _State, exact: bool, centred: bool
) -> BlockMemories:
    """C and n at the start of every ``plan.every``-th block; this is every block if they are centred.

    ``exact``: whether the writes to C keep the accuracy of float32, as a returned state requires.
    """
    from torch_impl._mlstm.triton import chunk_kernels as kernels

    C, n = initial.C, initial.n
    c_start = x.q.new_empty((blocks.count + x.B, x.N, x.V), dtype=torch.float32) if centred else None
    c_first = _centre(C, n, x.scale) if centred and C is not None and n is not None else None
    C_start, n_start = x.states(blocks.count // plan.every + x.B, dtype=x.operand)
    C_last, n_last = x.states(x.B)
    side, how = plan.state_tile, plan.states
    if exact and centred:
        # Centring a sum of several pieces takes the registers of a larger tile.
        side = min(side, 16 if x.v.dtype is torch.float16 else 32)
        how = how._replace(num_warps=8 if x.v.dtype is torch.float32 else 4)
    tiles = _tiles(x, side)
    launch(
        kernels.memories, x.B * x.N * tiles["NK"] * (tiles["NV"] + 1), x.q.device, how,
        **x.strided(k=x.k, v=x.v), g=weights.g, total=weights.total, C_first=C, n_first=n,
        c_first=c_first, C_start=C_start, n_start=n_start, c_start=c_start, C_last=C_last, n_last=n_last,
        table=blocks.table, **x.sizes,
        PACKED=x.packed, L=plan.L, EVERY=plan.every, **tiles,
        PRECISION="tf32x3" if exact and x.precision == "tf32" and x.v.dtype is torch.float16 else x.precision,
        PIECES=3 if exact and x.operand is torch.bfloat16 else 1,
    )  # fmt: skip
    return BlockMemories(C_start=C_start, n_start=n_start, c_start=c_start, C_last=C_last, n_last=n_last)


def _centre(C: Tensor, n: Tensor, scale: float) -> Tensor:
    """The c of an initial state for which C − n cᵀ is smallest, ``(B, N, V)``, followed by a weight: that of as many
    keys of length √K as make up n."""
    least = torch.finfo(n.dtype).tiny
    size = n.abs().amax(-1, keepdim=True).clamp(min=least)
    unit = n / size
    c = (C * unit[..., None]).sum(-2) / (unit.square().sum(-1, keepdim=True) * size).clamp(min=least)
    return torch.cat([c, unit.norm(dim=-1, keepdim=True) * (size * scale)], -1)


def mlstm_forward(x: Arguments, keep: Sequence[str] = (), plan: MLSTMPlan | None = None) -> tuple[Result, Residuals]:
    """h and the final state, and the residuals named in ``keep``, which do not affect the other results.

    Args:
        x: the call, with arrays ``(B, S, N, ·)``, or ``(T, N, ·)`` with a packing, with any strides. States are
            float32. The packing is read only on the device.
        keep: names of fields of `Residuals`.
        plan: the plan to use instead of the one tuned among `forward_plans`.
    """
    K, V = x.q.shape[-1], x.v.shape[-1]
    results, residuals = _forward(_all_aligned(x, q=1, k=1, v=1, C=2, n=1), K**-0.5, keep, plan)
    if K % MULTIPLE or V % MULTIPLE:
        results = _cut(results, K, V, h="V", C="KV", n="K")
        residuals = _cut(residuals, K, V, **MEMORIES)
    return results, residuals


def _forward(x: Arguments, scale: float, keep: Sequence[str], plan: MLSTMPlan | None) -> tuple[Result, Residuals]:
    """`mlstm_forward` of arrays that are aligned."""
    from torch_impl._mlstm.triton import chunk_kernels as kernels

    inputs = _Inputs.of(x, scale)
    device = x.q.device
    if plan is None:
        plan = _tuned("mlstm_forward", forward_plans, inputs, x, lambda plan: _forward(x, scale, (), plan))
    blocks = _blocks(x.q, x.cu_seqlens, plan.L)
    initial = _State.of(x.C, x.n, x.m)
    stabilisers, weights = _log_weights(inputs, blocks, plan.L, initial.m)
    # Residual memories are stored for every block, because the backward pass needs them all.
    keeps_memories = not set(BlockMemories._fields).isdisjoint(keep)
    stored = 1 if keeps_memories else plan.every
    memories = _memories(
        inputs, blocks, plan._replace(every=stored), weights, initial, exact=x.return_state, centred=keeps_memories
    )
    h = x.v.new_empty(x.v.shape)
    G = inputs.scores(plan.L) if "G" in keep else None
    tiles = _inside_tiles(inputs, plan)
    launch(
        kernels.outputs, blocks.count * inputs.N * tiles["NV"], device, plan.inside,
        **inputs.strided(q=inputs.q, k=inputs.k, v=inputs.v), m=stabilisers.M, **weights._asdict(),
        C_start=memories.C_start, n_start=memories.n_start, c_start=memories.c_start,
        **inputs.strided(h=h), G_out=G, table=blocks.table, **inputs.sizes, scale=scale, eps=x.eps,
        PACKED=inputs.packed, EVERY=plan.every, STORED=stored, **tiles, PRECISION=inputs.precision,
        STABILIZE_CORRECTLY=x.stabilize_correctly,
    )  # fmt: skip
    last = memories.C_last, memories.n_last, stabilisers.m_last
    if inputs.packed and not x.return_state:
        last = tuple(part.new_empty((0, *part.shape[1:])) for part in last)
    results = Result(h, *last)
    if not keep:
        return results, NO_RESIDUALS
    own = Residuals(**stabilisers._asdict(), **weights._asdict(), **memories._asdict(), G=G)
    return results, _from_kernels(own, keep, inputs.packed, inputs.B)


def mlstm_backward(
    x: Arguments, cotangents: Cotangents, residuals: Residuals = NO_RESIDUALS, plan: MLSTMPlan | None = None
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, i, f and of the initial C, n, m, each in the dtype of its primal.

    Args:
        x, plan: as in `mlstm_forward`.
        cotangents: cotangents of h and of the final state; None means zeros.
        residuals: residuals of `mlstm_forward`; the others are recomputed.
    """
    K, V = x.q.shape[-1], x.v.shape[-1]
    gradients = _backward(
        _all_aligned(x, q=1, k=1, v=1, C=2, n=1),
        K**-0.5,
        _all_aligned(cotangents, dh=1, dC=2, dn=1),
        _all_aligned(residuals, **{name: len(letters) for name, letters in MEMORIES.items()}),
        plan,
    )
    if K % MULTIPLE or V % MULTIPLE:
        gradients = _cut(gradients, K, V, q="K", k="K", v="V", C="KV", n="K")
    return tuple(gradients)


class _Gradients(NamedTuple):
    """Gradients of the arguments."""

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    f: Tensor
    C: Tensor
    n: Tensor
    m: Tensor


def _backward(
    x: Arguments, scale: float, cotangents: Cotangents, residuals: Residuals, plan: MLSTMPlan | None
) -> _Gradients:
    """`mlstm_backward` of arrays that are aligned."""
    from torch_impl._mlstm.triton import chunk_kernels as kernels

    inputs = _Inputs.of(x, scale)
    device = x.q.device
    initial, dlast = _State.of(x.C, x.n, x.m), _State.of(cotangents.dC, cotangents.dn, cotangents.dm)
    if plan is None:
        run = partial(_backward, x, scale, cotangents, residuals)
        plan = _tuned("mlstm_backward", backward_plans, inputs, x, run)
    kept = _to_kernels(residuals, inputs.packed)
    plan = plan._replace(L=_block_length_of(kept, plan.L, inputs))
    dh = x.v.new_zeros(()).expand(x.v.shape) if cotangents.dh is None else cotangents.dh
    dh = _addressable(dh, inputs.packed)
    blocks = _blocks(x.q, x.cu_seqlens, plan.L)
    stabilisers, weights = _log_weights(
        inputs, blocks, plan.L, initial.m, _part(StepStabilisers, kept), _part(LogWeights, kept)
    )
    memories = _part(BlockMemories, kept)
    if memories is None:
        memories = _memories(inputs, blocks, plan, weights, initial, exact=False, centred=True)
    dm_net = _net_of_memory(dlast, memories)

    inverse, shift, dnu, tau = (inputs.per_step() for _ in range(4))
    inside = _inside_tiles(inputs, plan)
    tokens = inputs.strided(q=inputs.q, k=inputs.k, v=inputs.v, dh=dh)
    launch(
        kernels.normalisers, blocks.count * inputs.N, device, Launch(8, plan.inside.num_stages),
        **tokens, m=stabilisers.M, alpha=weights.alpha, iota=weights.iota, p=weights.p,
        C_start=memories.C_start, n_start=memories.n_start, c_start=memories.c_start, G_kept=kept.G,
        inverse_out=inverse, shift_out=shift, dnu_out=dnu, tau_out=tau, table=blocks.table, **inputs.sizes,
        scale=scale, eps=x.eps, PACKED=inputs.packed, **inside, PRECISION=inputs.precision,
        STABILIZE_CORRECTLY=x.stabilize_correctly,
    )  # fmt: skip
    tiles = _tiles(inputs, plan.state_tile)
    parts = tiles["NV"] + 1
    dC_end, _ = inputs.states(blocks.count, dtype=inputs.operand)
    dn_end, dn_start = (tau.new_empty((blocks.count, inputs.N, parts, inputs.K)) for _ in range(2))
    dC_first, dn_first = inputs.states(inputs.B)
    launch(
        kernels.memory_gradients, inputs.B * inputs.N * tiles["NK"] * parts, device, plan.states,
        **inputs.strided(q=inputs.q, dh=dh), p=weights.p, inverse=inverse, dnu=dnu, tau=tau,
        total=weights.total, c_start=memories.c_start, dC_last=dlast.C,
        dn_last=dlast.n, dC_end=dC_end, dn_end=dn_end, dn_start=dn_start, dC_first=dC_first, dn_first=dn_first,
        table=blocks.table, **inputs.sizes, scale=scale, PACKED=inputs.packed, L=plan.L, **tiles,
        PRECISION=inputs.precision,
    )  # fmt: skip
    dq, dk, dv, di, df = (part.new_empty(part.shape) for part in (x.q, x.k, x.v, x.i, x.f))
    launch(
        kernels.gradients, blocks.count * inputs.N, device, plan.inside,
        **tokens, **inputs.strided(f=inputs.f), **weights._asdict(), inverse=inverse, shift=shift, tau=tau,
        C_start=memories.C_start, n_start=memories.n_start, dC_end=dC_end,
        dn_end=dn_end, dn_start=dn_start, dm_net=dm_net, argmax_last=stabilisers.argmax_last, G_kept=kept.G,
        **inputs.strided(dq=dq, dk=dk, dv=dv, di=di, df=df), table=blocks.table, **inputs.sizes, scale=scale,
        PACKED=inputs.packed, **inside, PARTS=parts, PRECISION=inputs.precision,
    )  # fmt: skip

    dm_first = torch.zeros_like(stabilisers.m_last)
    if initial.C is not None and initial.n is not None:
        dm_first += (initial.C * dC_first).sum((-2, -1)) + (initial.n * dn_first).sum(-1)
    if dm_net is not None:
        dm_first += torch.where(stabilisers.argmax_last == 0, dm_net, 0.0)
    return _Gradients(q=dq, k=dk, v=dv, i=di, f=df, C=dC_first, n=dn_first, m=dm_first)


def _net_of_memory(dlast: _State, memories: BlockMemories) -> Tensor | None:
    """The final m's cotangent less the part due to C and n, ``dm − ⟨C, dC⟩ − ⟨n, dn⟩``; None without dlast."""
    if all(part is None for part in dlast):
        return None
    dm = memories.n_last.new_zeros(memories.n_last.shape[:-1]) if dlast.m is None else dlast.m.clone()
    if dlast.C is not None:
        dm -= (memories.C_last * dlast.C).sum((-2, -1))
    if dlast.n is not None:
        dm -= (memories.n_last * dlast.n).sum(-1)
    return dm


def _part(record: type, kept: Residuals) -> Any:
    """The record, filled with residuals of the same names; None for those that were not kept."""
    found = {name: getattr(kept, name) for name in record._fields}
    return None if any(part is None for part in found.values()) else record(**found)


def _tuned(
    kernel: str,
    plans: Callable[..., tuple[MLSTMPlan, ...]],
    inputs: _Inputs,
    x: Arguments,
    run: Callable[[MLSTMPlan], Any],
) -> MLSTMPlan:
    # Plans do not depend on B, S and N.
    dtype, chunk = x.v.dtype, x.chunk_size
    sizes = f"{str(dtype).removeprefix('torch.')} {inputs.precision} K{inputs.K} V{inputs.V} chunk{chunk}"
    device = x.q.device
    return tuned(kernel, sizes, lambda: plans(dtype, inputs.K, inputs.V, chunk, capability(device)), device, run)


def _block_length_of(kept: Residuals, L: int, x: _Inputs) -> int:
    """The block length of the residuals; torch's matmul precision, on which ``L`` depends, may have changed since."""
    if kept.G is not None:
        return kept.G.shape[-1]
    if kept.total is not None:
        blocks = len(kept.total)
    elif kept.n_start is not None:
        blocks = len(kept.n_start) - x.B
    else:
        return L

    def count(L: int) -> int:
        S = x.q.shape[-3]
        return (S // L + x.B if x.B else 0) if x.packed else x.B * -(-S // L)

    return next(length for length in (L, 64, 32, 16) if count(length) == blocks)


def mlstm_step(x: StepArguments, keep: Sequence[str] = ()) -> tuple[StepResult, NoResiduals]:
    """One step on ``(B, N, ·)`` with any strides: h in the dtype of v, and C, n and m after the step in float32."""
    from torch_impl._mlstm.triton import step_kernel as kernels

    B, N, K = x.q.shape
    V = x.v.shape[-1]
    h, C, n, m = (part.new_empty(part.shape) for part in (x.v, x.C, x.n, x.m))
    BK, BV = power_of_two(K, most=64), power_of_two(V, most=32)
    NK, NV = -(-K // BK), max(-(-V // BV), 1)
    inputs = x._asdict()
    strides = {f"{name}_strides": inputs[name].stride() for name in ("q", "k", "v", "i", "f", "C", "n", "m")}
    arrays = {name: inputs[name] for name in ("q", "k", "v", "i", "f", "C", "n", "m")}
    launch(
        kernels.step, B * N * NV, x.q.device, Launch(2, 2), **arrays, **strides,
        h=h, C_out=C, n_out=n, m_out=m, N=N, K=K, V=V, scale=K**-0.5, eps=x.eps, BK=BK, BV=BV, NK=NK, NV=NV,
    )  # fmt: skip
    return StepResult(h, C, n, m), NoResiduals()


def _row(operation: str, implementation: Implementation) -> Row:
    return Row(
        backend="triton",
        operation=operation,
        devices=("cuda", "cpu"),
        dtypes=DTYPES,
        largest=(("K", LARGEST_HEAD), ("V", LARGEST_HEAD)),
        unavailable=unavailable,
        implementation=implementation,
    )


ROWS = (
    _row(
        "mlstm",
        Implementation(
            residuals=Residuals,
            forward=mlstm_forward,
            backward=mlstm_backward,
            sizes=_residual_sizes,
            dtypes=lambda x: {_OPERAND: _operand_dtype(x.v.dtype)},
        ),
    ),
    _row("mlstm_step", Implementation(residuals=NoResiduals, forward=mlstm_step)),
)
