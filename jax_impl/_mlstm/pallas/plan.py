"""The tiling of the mLSTM's chunkwise kernels."""

from typing import NamedTuple

from jax_impl._pallas import L


class Plan(NamedTuple):
    """The tiling of a kernel.

    Attributes:
        terms: number of bfloat16 terms of an operand.
        wide: number of columns of the tiles of V (`states`) or of the output (`mix`).
        stages: number of TMA stages.
        interpret: whether the GPU interpreter runs the kernel.
    """

    terms: int
    wide: int
    stages: int
    interpret: bool


def plan_for(terms: int, columns: int, interpret: bool) -> Plan:
    """The plan for an output of ``columns`` columns."""
    wide = 2 * L if terms == 1 and columns % (2 * L) == 0 else L
    return Plan(terms=terms, wide=wide, stages=3 if terms == 1 and wide == L else 2, interpret=interpret)
