"""Launch plans: how weights are cut and passes launched. The value does not depend on the plan."""

from typing import NamedTuple

import torch

from torch_impl._triton.launch import Launch, power_of_two

RESIDENT = 128
"""The widest head whose 16-bit weights stay in one program; for 32-bit weights it is half as wide."""


class Plan(NamedTuple):
    """Launch plan of a pass over the steps, for one head width and dtype.

    Attributes:
        block: units of a tile of the weights; all of H if the weights are resident.
        part: inputs of a streamed tile; None if the weights are resident.
        rows: rows of a program.
        how: warps, and stages of the loop that loads: over the steps, or over the tiles of the weights.
        unroll: number of steps of a resident kernel whose inputs are loaded together.
    """

    block: int
    part: int | None
    rows: int
    how: Launch
    unroll: int = 1


def default_plan(H: int, wide: bool, capability: int | None = 9, gates: int = 3) -> Plan:
    """The plan for heads of ``H`` units with operands of 32 bits (``wide``) or 16 bits, and a cell with so many gates.

    Plans depend on the compute ``capability`` (None for other GPUs): those of one spill on another.
    """
    block = power_of_two(H)
    # Four weights of 128 × 128 need 168 kB of shared memory in the backward pass.
    few = gates <= 3
    if block <= (RESIDENT if few or capability == 9 else RESIDENT // 2) and not wide:
        # A tile of AMD's matrix cores has at least 16 rows.
        rows, unroll = (16, 2 if block < RESIDENT else 1) if torch.version.hip else (8, 4)
        if block == 64 or (capability == 8 and block > 64):
            # Four steps spill.
            unroll = min(unroll, 2)
        if not few:
            # Two steps spill at H = 16, and need too much shared memory at H = 128.
            unroll = 1
        return Plan(block, None, rows, Launch(block // 16, 2), unroll)
    if block <= (RESIDENT // 2 if capability in (8, 9) or (few and capability == 10) else RESIDENT // 4):
        return Plan(block, None, 8, Launch(1 if block == 16 else 4, 2))
    if wide and not few:
        return Plan(64, 16, 8, Launch(8, 2))
    if wide:
        # Wider tiles spill on sm_90 and sm_100.
        block, part = {9: (16, 16), 10: (32, 16)}.get(capability or 0, (64, 32))
        return Plan(block, part, 8, Launch(4 if capability in (8, 9) else 8, 2))
    if not few:
        return Plan(64 if capability in (8, 10) else 128, 32, 16, Launch(4 if capability == 8 else 8, 2))
    if capability == 8:
        return Plan(128, 32, 16, Launch(8, 3))
    # 64 kB of shared memory on AMD, 227 on Hopper; three stages spill on sm_100.
    return Plan(256, 32, 16, Launch(8, 2 if torch.version.hip or capability == 10 else 3))


def plans(H: int, wide: bool, capability: int | None = 9, gates: int = 3) -> tuple[Plan, ...]:
    """The plans among which a pass over the steps is tuned; that of `default_plan` is first."""
    first = default_plan(H, wide, capability, gates)
    warps, stages = first.how
    if first.part is not None:
        return (first,) if wide or gates > 3 else (first, first._replace(how=Launch(warps, stages - 1)))
    # Plans that spill are omitted: wide heads unrolled by much, sixteen rows of 32-bit operands, a third stage at H =
    # 128.
    most = (2 if first.block < RESIDENT else 1) if torch.version.hip else {16: 8, 64: 2}.get(first.block, 4)
    if gates > 3:
        most = min(most, 1 if first.block in (16, RESIDENT) else 2)
    # Two steps of three gates spill at H = 32, where four do not.
    unrolls = [unroll for unroll in (1, 2, 4, 8) if unroll <= most and (first.block, unroll, gates) != (32, 2, 3)]
    others = [first._replace(unroll=unroll) for unroll in unrolls if not wide]
    if not wide or (first.block == 16 and gates == 3):
        others.append(first._replace(rows=16, unroll=min(first.unroll, 2)))
    if first.block < RESIDENT:
        others.append(first._replace(how=Launch(warps, stages + 1)))
    return tuple(dict.fromkeys((first, *others)))
