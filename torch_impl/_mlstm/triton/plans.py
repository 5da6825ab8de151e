"""Launch plans of the mLSTM's kernels: how tiles are cut and launched. The value does not depend on the plan."""

from typing import NamedTuple

import torch

from torch_impl._triton.launch import Launch, dot_precision, power_of_two


class MLSTMPlan(NamedTuple):
    """Launch plan of one direction: its tile sizes and the launches of its kernels.

    Attributes:
        L: steps per block, the tile of the work inside chunks.
        every: blocks per chunk; a memory is stored at the start of each chunk.
        BK, BV: tile of the work inside blocks.
        state_tile: edge of the tile of C that a program of the state pass holds.
    """

    L: int
    every: int
    BK: int
    BV: int
    state_tile: int
    states: Launch
    inside: Launch


def block_length(dtype: torch.dtype, chunk: int = 0) -> int:
    """Steps per block for values of ``dtype``, in either direction; ``chunk`` is that of `forward_plan`."""
    # Float32 products run on the scalar units, which need their operands in registers.
    most = 32 if _scalar(dtype) else 64
    return min(most, power_of_two(chunk)) if chunk else most


def _scalar(dtype: torch.dtype) -> bool:
    return dot_precision(dtype) == "ieee" and dtype is not torch.bfloat16


def forward_plan(dtype: torch.dtype, K: int, V: int, chunk: int = 0, capability: int | None = 9) -> MLSTMPlan:
    """Sizes for `mlstm_forward`.

    Args:
        chunk: number of steps between stored memories, rounded up to a power of two; 0 for the plan's own choice.
        capability: compute capability (None for GPUs that are not NVIDIA's). The products of 9 read shared memory,
            which leaves registers for larger tiles.
    """
    wide = capability == 9
    if _scalar(dtype):
        plan = MLSTMPlan(32, 4, power_of_two(K, most=32), power_of_two(V, most=64), 32, Launch(4, 2), Launch(4, 1))
    elif dtype is torch.bfloat16:
        BK, BV = (64, 128) if wide else (32, 64)
        warps = 4 if wide or torch.version.hip else 8
        plan = MLSTMPlan(64, 2, power_of_two(K, most=BK), power_of_two(V, most=BV), 64, Launch(4, 3), Launch(warps, 2))
    else:
        BK, tile = (64, 64) if wide else (32, 32)
        # For float16 values, a product that contributes to the returned states is split into three, and four warps are
        # short of registers.
        launch = Launch(8 if wide and dtype is torch.float16 else 4, 2)
        plan = MLSTMPlan(64, 2, power_of_two(K, most=BK), power_of_two(V, most=64), tile, launch, launch)
    return _with_chunk(plan, chunk)


def backward_plan(dtype: torch.dtype, K: int, V: int, chunk: int = 0, capability: int | None = 9) -> MLSTMPlan:
    """Sizes for `mlstm_backward`, whose chunks are single blocks; the arguments are those of `forward_plan`."""
    wide = capability == 9
    # Four of AMD's warps have as many threads as eight warps elsewhere, with twice the registers per warp.
    warps = 4 if torch.version.hip else 8
    if _scalar(dtype):
        # These and the next spill nothing under Triton 3.6 and 3.9; on capability 8 and 10, what one of them takes
        # spills on the other.
        states = Launch(8, 2 if capability in (9, 10) else 3)
        plan = MLSTMPlan(32, 1, power_of_two(K, most=32), power_of_two(V, most=16), 32, states, Launch(warps, 2))
    elif dtype is torch.bfloat16:
        BV = 64 if wide else 32
        # Four warps take all of the 255 registers on capability 9, and spill under Triton 3.7.
        states = Launch(8 if capability in (9, 10) else 4, 3)
        plan = MLSTMPlan(64, 1, power_of_two(K, most=64), power_of_two(V, most=BV), 64, states, Launch(warps, 2))
    else:
        BK, BV, tile = (64, 32, 64) if wide else (32, 16, 32)
        plan = MLSTMPlan(
            64, 1, power_of_two(K, most=BK), power_of_two(V, most=BV), tile, Launch(4, 2), Launch(warps, 2)
        )
    return _with_chunk(plan, chunk)._replace(every=1)


def forward_plans(
    dtype: torch.dtype, K: int, V: int, chunk: int = 0, capability: int | None = 9
) -> tuple[MLSTMPlan, ...]:
    """The plans among which `mlstm_forward` is tuned; that of `forward_plan` is first. All have blocks of the same
    length; none spills on sm_90."""
    first = forward_plan(dtype, K, V, chunk, capability)
    warps, stages = first.inside
    others = [
        first._replace(inside=Launch(12 - warps, stages)),
        first._replace(inside=Launch(warps, 3 if stages < 3 else 1)),
        first._replace(states=Launch(first.states.num_warps, 5 - first.states.num_stages)),
    ]
    # For float16 values, any other number of blocks per chunk spills.
    if not chunk and dtype is not torch.float16:
        others += [first._replace(every=first.every * 2), first._replace(every=max(first.every // 2, 1))]
    return first, *others


def backward_plans(
    dtype: torch.dtype, K: int, V: int, chunk: int = 0, capability: int | None = 9
) -> tuple[MLSTMPlan, ...]:
    """The plans among which `mlstm_backward` is tuned; that of `backward_plan` is first. None spills on sm_90 if Triton
    3.6 compiles it; the larger tiles do under 3.9, so they are not the default."""
    first = backward_plan(dtype, K, V, chunk, capability)
    warps = first.inside.num_warps
    states = first._replace(states=Launch(first.states.num_warps, 5 - first.states.num_stages))
    if _scalar(dtype):
        larger = first._replace(BV=power_of_two(V, most=32), inside=Launch(warps, 1))
        others = (larger, first._replace(BK=max(first.BK // 2, 16)))
    else:
        larger = first._replace(BK=power_of_two(K, most=128)) if capability == 9 and dtype is torch.bfloat16 else first
        others = (
            larger,
            larger._replace(inside=Launch(warps, 1)),
            larger._replace(BV=max(first.BV // 2, 16)),
            first._replace(inside=Launch(warps, 1)),
        )
    return tuple(dict.fromkeys((first, *others, states)))


def _with_chunk(plan: MLSTMPlan, chunk: int) -> MLSTMPlan:
    if not chunk:
        return plan
    chunk = power_of_two(chunk)
    L = min(plan.L, chunk)
    return plan._replace(L=L, every=chunk // L)
