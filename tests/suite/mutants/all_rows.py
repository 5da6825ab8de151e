"""All mutants, in the order of the operations."""

from tests.suite.mutants.mutant import Mutant
from tests.suite.mutants.rows import (
    accumulate,
    calls,
    decay,
    fwbw,
    fwbw_backward,
    gru,
    gru_backward,
    layers,
    mlstm,
    mlstm_backward,
    mlstm_chunkwise,
    mlstm_sharded,
    mlstm_step,
    scan,
    sharding,
    sizes,
    slstm,
)

_FAMILIES = (
    scan,
    decay,
    mlstm,
    mlstm_chunkwise,
    mlstm_backward,
    mlstm_sharded,
    mlstm_step,
    fwbw,
    fwbw_backward,
    gru,
    gru_backward,
    slstm,
    accumulate,
    sharding,
    layers,
    calls,
    sizes,
)

MUTANTS: tuple[Mutant, ...] = tuple(mutant for family in _FAMILIES for mutant in family.ROWS)
