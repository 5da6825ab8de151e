"""The cases on which laws are tested: Hypothesis strategies for shapes, packings, gates, strides and cotangents.

A case is a small number of small numbers and words. NumPy draws its arrays from one integer seed, so that a case
shrinks quickly and a failure can be described in one line.
"""

from conformance.cases._case import (
    CHUNK_STEPS,
    CLIPPING,
    COTANGENTS,
    LONG_STEPS,
    PINS,
    SEEDS,
    STRATA,
    USUAL,
    Limits,
    Sequences,
    as_drawn,
    emptied,
    from_json,
    generator,
    pinned,
    register,
    simpler,
    simplicity,
    to_json,
)
from conformance.cases._fwbw import FwbwCase, fwbw
from conformance.cases._gates import GATES
from conformance.cases._mlstm import (
    MLSTMCase,
    chunk_sizes,
    halved_mlstm,
    mlstm,
    packed_mlstm,
    sharded_mlstm,
    some_in_chunks,
    some_without_states,
    without_states,
)
from conformance.cases._recurrence import OPTION, RecurrenceCase, RecurrenceCases
from conformance.cases._sums import SumCase, gate_sums, sums

__all__ = [
    "CHUNK_STEPS",
    "CLIPPING",
    "COTANGENTS",
    "FwbwCase",
    "GATES",
    "LONG_STEPS",
    "Limits",
    "MLSTMCase",
    "OPTION",
    "PINS",
    "RecurrenceCase",
    "RecurrenceCases",
    "SEEDS",
    "STRATA",
    "Sequences",
    "SumCase",
    "USUAL",
    "as_drawn",
    "chunk_sizes",
    "emptied",
    "from_json",
    "fwbw",
    "gate_sums",
    "generator",
    "halved_mlstm",
    "sharded_mlstm",
    "mlstm",
    "packed_mlstm",
    "pinned",
    "register",
    "simpler",
    "simplicity",
    "some_in_chunks",
    "some_without_states",
    "sums",
    "to_json",
    "without_states",
]
