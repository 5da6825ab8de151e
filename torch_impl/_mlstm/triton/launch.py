"""The launchers of the mLSTM's kernels, and the rows that say what they take.

Everything on the device is asked for in order, in the tensors' own stream; nothing is read back. Triton is imported
when the first kernel is about to run.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._triton.interpreter import DTYPES, unavailable
from torch_impl._triton.launch import Launch, dot_precision, hopper, launch, power_of_two
from torch_impl._triton.tuning import tuned

ROWS = tuple(
    Row("triton", operation, ("cuda", "cpu"), DTYPES, (("K", 512), ("V", 512)), unavailable=unavailable)
    for operation in ("mlstm", "mlstm_step")
)


class Gates(NamedTuple):
    """Log decay: a, i, p, g of every step, head-major, and of every block its total, its largest g and that one's step,
    ``(blocks, N)``. float32 but for the last, which is int32."""

    a: Tensor
    i: Tensor
    p: Tensor
    g: Tensor
    total: Tensor
    most: Tensor
    attained: Tensor


class Memories(NamedTuple):
    """C and n at the start of every block (one of a lane more than it has), ``(blocks + B, N, ·)``; m at a block's two
    ends, ``(blocks, N)``; C, n and m at the end of every lane, ``(B, N, ·)``, and the step that attains that m.

    With a centre c, ``(blocks + B, N, V)`` in float32, C at the start of blocks is R = C − n cᵀ.
    """

    C: Tensor
    n: Tensor
    centre: Tensor | None
    m_start: Tensor
    m_end: Tensor
    C_last: Tensor
    n_last: Tensor
    m_last: Tensor
    step_last: Tensor


class Kept(NamedTuple):
    """What `mlstm_forward` leaves for `mlstm_backward`, each None where that computes it again.

    Attributes:
        G: decayed scores of every step with the steps of its block, float32 and head-major, ``(B, N, S, L)``.
        gates: log decay.
        M: m of every step, head-major.
        c: the memories.
    """

    G: Tensor | None = None
    gates: Gates | None = None
    M: Tensor | None = None
    c: Memories | None = None


NOTHING = Kept()


class Plan(NamedTuple):
    """Tile sizes of one direction, with the launches of its kernels.

    Attributes:
        L: steps a block, the tile of the work inside chunks.
        every: blocks a chunk, at whose start a memory is kept.
        BK, BV: tile of the work inside blocks.
        state_tile: sides of the tile of C that a program of the state pass holds.
    """

    L: int
    every: int
    BK: int
    BV: int
    state_tile: int
    states: Launch
    inside: Launch


def block_length(dtype: torch.dtype, chunk: int = 0) -> int:
    """Steps a block beside values of ``dtype``, in either direction; ``chunk`` as in `forward_plan`."""
    # Float32 products run on the scalar units, which want their operands in registers.
    most = 32 if _scalar(dtype) else 64
    return min(most, power_of_two(chunk)) if chunk else most


def _scalar(dtype: torch.dtype) -> bool:
    return dot_precision(dtype) == "ieee" and dtype is not torch.bfloat16


def forward_plan(dtype: torch.dtype, K: int, V: int, chunk: int = 0, wide: bool = True) -> Plan:
    """Sizes for `mlstm_forward`.

    Args:
        chunk: the steps between kept memories, to the next power of two; 0 for the plan's own.
        wide: whether registers allow the larger tiles (`hopper`).
    """
    if _scalar(dtype):
        plan = Plan(32, 4, power_of_two(K, most=32), power_of_two(V, most=64), 32, Launch(4, 2), Launch(4, 1))
    elif dtype is torch.bfloat16:
        BK, BV = (64, 128) if wide else (32, 64)
        plan = Plan(64, 2, power_of_two(K, most=BK), power_of_two(V, most=BV), 64, Launch(4, 3), Launch(4, 2))
    else:
        BK, tile = (64, 64) if wide else (32, 32)
        # Beside float16 a product of the states that are returned is three.
        states = Launch(8 if wide and dtype is torch.float16 else 4, 2)
        plan = Plan(64, 2, power_of_two(K, most=BK), power_of_two(V, most=64), tile, states, Launch(4, 2))
    return _with_chunk(plan, chunk)


def backward_plan(dtype: torch.dtype, K: int, V: int, chunk: int = 0, wide: bool = True) -> Plan:
    """Sizes for `mlstm_backward`, whose chunks are single blocks; arguments as in `forward_plan`."""
    # Four of AMD's warps have as many threads as eight others, and twice the registers each.
    warps = 4 if torch.version.hip else 8
    if _scalar(dtype):
        plan = Plan(32, 1, power_of_two(K, most=32), power_of_two(V, most=32), 32, Launch(8, 2), Launch(warps, 1))
    elif dtype is torch.bfloat16:
        BK = 128 if wide and K <= 128 else 64
        BV, states = (64, Launch(4, 3)) if wide else (32, Launch(8, 3))
        plan = Plan(64, 1, power_of_two(K, most=BK), power_of_two(V, most=BV), 64, states, Launch(warps, 2))
    else:
        BK, BV, tile = (64, 32, 64) if wide else (32, 16, 32)
        plan = Plan(64, 1, power_of_two(K, most=BK), power_of_two(V, most=BV), tile, Launch(4, 2), Launch(warps, 2))
    return _with_chunk(plan, chunk)._replace(every=1)


def forward_plans(dtype: torch.dtype, K: int, V: int, chunk: int = 0, wide: bool = True) -> tuple[Plan, ...]:
    """Those that `mlstm_forward` may be tuned to, `forward_plan`'s first. All have blocks of one length; none spills
    on sm_90."""
    first = forward_plan(dtype, K, V, chunk, wide)
    warps, stages = first.inside
    others = [
        first._replace(inside=Launch(12 - warps, stages)),
        first._replace(inside=Launch(warps, stages % 3 + 1)),
        first._replace(states=Launch(first.states.num_warps, 5 - first.states.num_stages)),
    ]
    # Beside float16 any other number of blocks a chunk spills.
    if not chunk and dtype is not torch.float16:
        others += [first._replace(every=first.every * 2), first._replace(every=max(first.every // 2, 1))]
    return first, *others


def backward_plans(dtype: torch.dtype, K: int, V: int, chunk: int = 0, wide: bool = True) -> tuple[Plan, ...]:
    """Those that `mlstm_backward` may be tuned to, likewise."""
    first = backward_plan(dtype, K, V, chunk, wide)
    warps, stages = first.inside
    return (
        first,
        first._replace(inside=Launch(warps, stages % 3 + 1)),
        first._replace(inside=Launch(warps, 1 if stages != 1 else 3)),
        first._replace(states=Launch(first.states.num_warps, 5 - first.states.num_stages)),
        first._replace(BK=max(first.BK // 2, 16)),
        first._replace(BV=max(first.BV // 2, 16)),
    )


def _with_chunk(plan: Plan, chunk: int) -> Plan:
    if not chunk:
        return plan
    chunk = power_of_two(chunk)
    L = min(plan.L, chunk)
    return plan._replace(L=L, every=chunk // L)


class _Blocks(NamedTuple):
    """How the steps of all lanes are cut into blocks: ``count`` of them at most, ``most`` in any lane at most.

    ``table`` is what the kernels read: ``(S, blocks a lane)``, or packed ``(bounds, before, lanes)`` on the device.
    """

    count: int
    most: int
    table: tuple[Any, ...]


def _blocks(q: Tensor, cu_seqlens: Tensor | None, L: int) -> _Blocks:
    if cu_seqlens is None:
        B, S = q.shape[:2]
        most = -(-S // L)
        return _Blocks(B * most, most, (S, most))
    T, B = q.shape[0], cu_seqlens.shape[0] - 1
    count = T // L + B if B else 0
    # Whatever the values are, the bounds rise from 0 to T, so that no kernel leaves the arrays.
    bounds = torch.empty(B + 2, dtype=torch.int32, device=q.device)
    bounds[:1] = 0
    bounds[B:] = T
    if B > 1:
        bounds[1:B] = cu_seqlens[1:-1].to(q.device).clamp(0, T).cummax(0).values
    before = torch.zeros(B + 1, dtype=torch.int32, device=q.device)
    torch.cumsum((bounds[1 : B + 1] - bounds[:B] + (L - 1)) // L, 0, dtype=torch.int32, out=before[1:])
    numbers = torch.arange(count, dtype=torch.int32, device=q.device)
    lanes = torch.searchsorted(before[1:], numbers, right=True, out_int32=True)
    return _Blocks(count, -(-T // L), (bounds, before, lanes))


def _addressable(x: Tensor, packed: bool) -> Tensor:
    """``x`` itself, or a copy where a stride within a tile (64 steps and the next, 512 columns) exceeds 32 bits."""
    step, _, *column = x.stride()[0 if packed else 1 :]
    return x.contiguous() if 65 * step + sum(512 * stride for stride in column) >= 2**31 else x


class _Call(NamedTuple):
    """What all kernels of a call share."""

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
    rows: tuple[int, int]
    operand: torch.dtype
    precision: str

    def strided(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """A tensor and its strides along sequence, step, head and what follows; a packed one has 0 for the first."""
        return x, (0, *x.stride()) if self.packed else tuple(x.stride())

    def per_step(self) -> Tensor:
        """A head-major float32 array."""
        lead = self.q.shape[:-2]
        shape = (self.N, *lead) if self.packed else (lead[0], self.N, lead[1])
        return self.q.new_empty(shape, dtype=torch.float32)

    def scores(self, L: int) -> Tensor:
        """A head-major float32 array of L numbers a step."""
        steps = self.per_step()
        return steps.new_empty((*steps.shape, L))

    def states(self, *lead: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """C-like in ``dtype`` and n-like in float32."""
        C = self.q.new_empty((*lead, self.N, self.K, self.V), dtype=dtype)
        return C, self.q.new_empty((*lead, self.N, self.K), dtype=torch.float32)


def _call(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu_seqlens: Tensor | None) -> _Call:
    packed = cu_seqlens is not None
    q, k, v, i, f = (_addressable(x, packed) for x in (q, k, v, i, f))
    *lead, N, K = q.shape
    B = lead[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    rows = (0, lead[0]) if packed else (N * lead[1], lead[1])
    operand = torch.bfloat16 if v.dtype is torch.bfloat16 else torch.float32
    return _Call(q, k, v, i, f, packed, B, N, K, v.shape[-1], rows, operand, dot_precision(v.dtype))


def _gates(x: _Call, blocks: _Blocks, L: int) -> Gates:
    from torch_impl._mlstm.triton import chunk_kernels as mlstm_chunk

    a, i, p, g = (x.per_step() for _ in range(4))
    total, most = (x.q.new_empty((blocks.count, x.N), dtype=torch.float32) for _ in range(2))
    gates = Gates(a, i, p, g, total, most, x.q.new_empty((blocks.count, x.N), dtype=torch.int32))
    launch(
        mlstm_chunk.gates, blocks.count * x.N, x.q.device, Launch(1), *x.strided(x.f), *x.strided(x.i), *gates[:4],
        x.rows, *gates[4:], blocks.table, x.N, PACKED=x.packed, L=L,
    )  # fmt: skip
    return gates


def _tiles(x: _Call, side: int) -> dict[str, int]:
    BK, BV = power_of_two(x.K, most=side), power_of_two(x.V, most=side)
    return {"BK": BK, "BV": BV, "NK": -(-x.K // BK), "NV": max(-(-x.V // BV), 1)}


def _memories(
    x: _Call,
    blocks: _Blocks,
    plan: Plan,
    gates: Gates,
    initial: tuple[Tensor | None, Tensor | None, Tensor | None],
    exact: bool,
    centred: bool,
) -> Memories:
    """C and n at the start of every ``plan.every``-th block, which is every one where they are centred.

    ``exact``: whether what is written to C keeps float32's accuracy, as a state that is returned must.
    """
    from torch_impl._mlstm.triton import chunk_kernels as mlstm_chunk

    C, n, m = initial
    centre = x.q.new_empty((blocks.count + x.B, x.N, x.V), dtype=torch.float32) if centred else None
    first = _centre(C, n) if centred and C is not None and n is not None else None
    m_start, m_end = (torch.empty_like(gates.total) for _ in range(2))
    m_last, step_last = (x.q.new_empty((x.B, x.N), dtype=dtype) for dtype in (torch.float32, torch.int32))
    launch(
        mlstm_chunk.stabilisers, x.B * x.N, x.q.device, Launch(4), *gates[4:], m, m_start, m_end, m_last, step_last,
        blocks.table, x.N, PACKED=x.packed, WIDTH=power_of_two(blocks.most, most=256),
    )  # fmt: skip
    starts = x.states(blocks.count // plan.every + x.B, dtype=x.operand)
    lasts = x.states(x.B)
    side, how = plan.state_tile, plan.states
    if exact and centred:
        # To centre what is summed in several pieces takes the registers of a larger tile.
        side = min(side, 16 if x.v.dtype is torch.float16 else 32)
        how = how._replace(num_warps=8 if x.v.dtype is torch.float32 else 4)
    tiles = _tiles(x, side)
    launch(
        mlstm_chunk.memories, x.B * x.N * tiles["NK"] * (tiles["NV"] + 1), x.q.device, how, *x.strided(x.k),
        *x.strided(x.v), gates.g, x.rows, gates.total, m_start, m_end, C, n, first, *starts, centre, *lasts,
        blocks.table, x.N, x.K, x.V,
        PACKED=x.packed, L=plan.L, EVERY=plan.every, **tiles,
        PRECISION="tf32x3" if exact and x.precision == "tf32" and x.v.dtype is torch.float16 else x.precision,
        PIECES=3 if exact and x.operand is torch.bfloat16 else 1,
    )  # fmt: skip
    return Memories(*starts, centre, m_start, m_end, *lasts, m_last, step_last)


def _centre(C: Tensor, n: Tensor) -> Tensor:
    """Of an initial state the c for which C − n cᵀ is smallest, ``(B, N, V)``, and behind it a weight: that of as many
    keys of length √K as make up n."""
    least = torch.finfo(n.dtype).tiny
    size = n.abs().amax(-1, keepdim=True).clamp(min=least)
    unit = n / size
    c = (C * unit[..., None]).sum(-2) / (unit.square().sum(-1, keepdim=True) * size).clamp(min=least)
    return torch.cat([c, unit.norm(dim=-1, keepdim=True) * (size * n.shape[-1] ** -0.5)], -1)


def mlstm_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    C: Tensor | None = None,
    n: Tensor | None = None,
    m: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    chunk: int = 0,
    eps: float = 0.0,
    stabilized: bool = True,
    keep_G: bool = False,
    keep_gates: bool = False,
    keep_M: bool = False,
    keep_c: bool = False,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Kept]:
    """h, the final C, n and m, and what is kept of the rest for `mlstm_backward`.

    Args:
        q, k, v, i, f: ``(B, S, N, ·)``, or ``(T, N, ·)`` with `cu_seqlens`, on any strides.
        C, n, m: the initial state in float32, None for zeros.
        cu_seqlens: ``(B+1,)``, read on the device alone.
        chunk: the steps between memories that are kept, 0 for what suits the sizes.
        eps: added to the normaliser; ``stabilized``: whether its floor is exp(−min(m, 64)) or 1.
        keep_G, keep_gates, keep_M, keep_c: which fields of `Kept` to keep. They change no other result.
        plan: tile sizes, in place of those of `forward_plan`.
    """
    from torch_impl._mlstm.triton import chunk_kernels as mlstm_chunk

    x = _call(q, k, v, i, f, cu_seqlens)
    C, n, m = (None if part is None else part.contiguous() for part in (C, n, m))
    if plan is None:
        plan = tuned(
            "mlstm_forward",
            _sizes(x, chunk),
            lambda: forward_plans(v.dtype, x.K, x.V, chunk, hopper(q.device)),
            q.device,
            lambda plan: mlstm_forward(
                q, k, v, i, f, C, n, m, cu_seqlens, chunk=chunk, eps=eps, stabilized=stabilized, plan=plan
            ),
        )
    blocks = _blocks(q, cu_seqlens, plan.L)
    gates = _gates(x, blocks, plan.L)
    # Kept memories are those of every block, as the backward pass wants them.
    stored = 1 if keep_c else plan.every
    memories = _memories(x, blocks, plan._replace(every=stored), gates, (C, n, m), exact=True, centred=keep_c)
    h = v.new_empty(v.shape)
    G, M = x.scores(plan.L) if keep_G else None, x.per_step() if keep_M else None
    NK, NV = -(-x.K // plan.BK), max(-(-x.V // plan.BV), 1)
    launch(
        mlstm_chunk.outputs, blocks.count * x.N * NV, q.device, plan.inside, *x.strided(x.q), *x.strided(x.k),
        *x.strided(x.v), *gates[:4], x.rows, gates.total, memories.m_start, memories.C, memories.n,
        memories.centre, *x.strided(h), M, G, blocks.table, x.N, x.K, x.V, x.K**-0.5, eps,
        PACKED=x.packed, L=plan.L, EVERY=plan.every, STORED=stored, BK=plan.BK, BV=plan.BV, NK=NK, NV=NV,
        PRECISION=x.precision, FLOOR=stabilized,
    )  # fmt: skip
    kept = Kept(G, gates if keep_gates else None, M, memories if keep_c else None)
    return h, memories.C_last, memories.n_last, memories.m_last, kept


def mlstm_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    cu_seqlens: Tensor | None,
    dh: Tensor | None,
    dC: Tensor | None = None,
    dn: Tensor | None = None,
    dm: Tensor | None = None,
    kept: Kept = NOTHING,
    *,
    chunk: int = 0,
    eps: float = 0.0,
    stabilized: bool = True,
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, i, f and of the initial C, n, m, each in the dtype of its primal.

    Args:
        dh: cotangent of h, None for zeros; ``dC, dn, dm``: those of the final state, each None for zeros.
        kept: what `mlstm_forward` left; the rest is computed again.
        others: as in `mlstm_forward`.
    """
    from torch_impl._mlstm.triton import chunk_kernels as mlstm_chunk

    x = _call(q, k, v, i, f, cu_seqlens)
    C, n, m, dC, dn, dm = (None if part is None else part.contiguous() for part in (C, n, m, dC, dn, dm))
    options = {"chunk": chunk, "eps": eps, "stabilized": stabilized}
    if plan is None:
        plan = tuned(
            "mlstm_backward",
            _sizes(x, chunk),
            lambda: backward_plans(v.dtype, x.K, x.V, chunk, hopper(q.device)),
            q.device,
            lambda plan: mlstm_backward(q, k, v, i, f, C, n, m, cu_seqlens, dh, dC, dn, dm, kept, **options, plan=plan),
        )
    plan = plan._replace(L=_kept_length(kept, plan.L, x))
    if dh is None:
        dh = v.new_zeros(()).expand(v.shape)
    dh = _addressable(dh, x.packed)
    device = q.device
    blocks = _blocks(q, cu_seqlens, plan.L)
    gates = kept.gates or _gates(x, blocks, plan.L)
    c = kept.c or _memories(x, blocks, plan, gates, (C, n, m), exact=False, centred=True)

    through_m = None
    if dC is not None or dn is not None or dm is not None:
        through_m = torch.zeros_like(c.m_last) if dm is None else dm.clone()
        if dC is not None:
            through_m -= (c.C_last * dC).sum((-2, -1))
        if dn is not None:
            through_m -= (c.n_last * dn).sum(-1)

    M = x.per_step() if kept.M is None else kept.M
    inverse, shift, dnu, tau = (x.per_step() for _ in range(4))
    inside = {"L": plan.L, "BK": plan.BK, "BV": plan.BV, "NK": -(-x.K // plan.BK), "NV": max(-(-x.V // plan.BV), 1)}
    launch(
        mlstm_chunk.normalisers, blocks.count * x.N, device, Launch(8, plan.inside.num_stages), *x.strided(x.q),
        *x.strided(x.k), *x.strided(x.v), *x.strided(dh), gates.a, gates.i, gates.p, x.rows, c.m_start, c.C, c.n,
        c.centre, kept.M, kept.G, M, inverse, shift, dnu, tau, blocks.table, x.N, x.K, x.V, x.K**-0.5, eps,
        PACKED=x.packed, **inside, PRECISION=x.precision, FLOOR=stabilized,
    )  # fmt: skip
    tiles = _tiles(x, plan.state_tile)
    parts = tiles["NV"] + 1
    dC_end, _ = x.states(blocks.count, dtype=x.operand)
    dn_end, dn_start = (M.new_empty((blocks.count, x.N, parts, x.K)) for _ in range(2))
    dC_first, dn_first = x.states(x.B)
    launch(
        mlstm_chunk.returning, x.B * x.N * tiles["NK"] * (tiles["NV"] + 1), device, plan.states, *x.strided(x.q),
        *x.strided(dh), gates.p, M, inverse, dnu, tau, x.rows, gates.total, c.m_start, c.m_end, c.centre, dC, dn,
        dC_end, dn_end, dn_start, dC_first, dn_first, blocks.table, x.N, x.K, x.V, x.K**-0.5,
        PACKED=x.packed, L=plan.L, **tiles, PRECISION=x.precision,
    )  # fmt: skip
    d = [y.new_empty(y.shape) for y in (q, k, v, i, f)]
    launch(
        mlstm_chunk.gradients, blocks.count * x.N, device, plan.inside, *x.strided(x.q), *x.strided(x.k),
        *x.strided(x.v), *x.strided(x.f), *x.strided(dh), *gates[:4], M, inverse, shift, tau, x.rows, gates.total,
        c.m_start, c.m_end, c.C, c.n, dC_end, dn_end, dn_start, through_m, c.step_last, kept.G,
        *(part for dx in d for part in x.strided(dx)), blocks.table, x.N, x.K, x.V, x.K**-0.5,
        PACKED=x.packed, **inside, PARTS=parts, PRECISION=x.precision,
    )  # fmt: skip

    dm_first = torch.zeros_like(c.m_last)
    if C is not None and n is not None:
        dm_first += (C * dC_first).sum((-2, -1)) + (n * dn_first).sum(-1)
    if through_m is not None:
        dm_first += torch.where(c.step_last == 0, through_m, 0.0)
    return *d, dC_first, dn_first, dm_first


def _sizes(x: _Call, chunk: int) -> str:
    """What plans hang on: nothing of B, S and N."""
    return f"{str(x.v.dtype).removeprefix('torch.')} {x.precision} K{x.K} V{x.V} chunk{chunk}"


def _kept_length(kept: Kept, L: int, x: _Call) -> int:
    """The block length of what was kept: torch's matmul precision, which ``L`` hangs on, may have changed since."""
    if kept.G is not None:
        return kept.G.shape[-1]
    part = kept.gates.total if kept.gates is not None else kept.c.m_start if kept.c is not None else None
    if part is None:
        return L

    def count(L: int) -> int:
        S = x.q.shape[-3]
        return (S // L + x.B if x.B else 0) if x.packed else x.B * -(-S // L)

    return next(length for length in (L, 64, 32, 16) if count(length) == len(part))


def mlstm_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, C: Tensor, n: Tensor, m: Tensor, *, eps: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step on ``(B, N, ·)``, on any strides: h in the dtype of v, and the C, n and m after the step in float32."""
    from torch_impl._mlstm.triton import step_kernel as kernels

    B, N, K = q.shape
    V = v.shape[-1]
    h, C_out, n_out, m_out = v.new_empty(v.shape), C.new_empty(C.shape), n.new_empty(n.shape), m.new_empty(m.shape)
    BK, BV = power_of_two(K, most=64), power_of_two(V, most=32)
    NK, NV = -(-K // BK), max(-(-V // BV), 1)
    inputs = (part for x in (q, k, v, i, f, C, n, m) for part in (x, x.stride()))
    launch(
        kernels.step, B * N * NV, q.device, Launch(2, 2), *inputs,
        h, C_out, n_out, m_out, N, K, V, K**-0.5, eps, BK=BK, BV=BV, NK=NK, NV=NV,
    )  # fmt: skip
    return h, C_out, n_out, m_out
