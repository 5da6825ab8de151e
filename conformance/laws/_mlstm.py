"""The mLSTM as the laws see it: what the oracle says of a case, and which arrays carry its state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.budget import Expected, Precision
from conformance.cases import MLSTMCase
from conformance.checker import Checker
from conformance.laws._recurrence import Arrays, Recurrence
from conformance.oracle import Values

CARRY = ("C", "n", "m")
FORMS = ("mlstm_recurrent", "mlstm_parallel", "mlstm_chunkwise")


def _unchanging(case: MLSTMCase) -> MLSTMCase:
    """What a value may depend on: not the chunk size, not the layout, not where a law cuts."""
    return replace(case, chunk_size=None, room=None, layout="contiguous", cut=0.0)


def expected_value(checker: Checker, case: MLSTMCase) -> Expected:
    """The oracle's outputs, with zeros for an initial state left out; a packed case is looped over."""

    def make() -> Expected:
        arrays, precision = oracle.values(case.arrays(checker.dtype)), checker.precision(case.steps)
        if case.lengths is None:
            return oracle.mlstm(arrays, case.options(), precision)
        calls = oracle.each_sequence(arrays, {}, case.lengths)
        return oracle.joined([oracle.mlstm(sequence, case.options(), precision) for sequence, _ in calls])

    return checker.remember(("mlstm value", _unchanging(case)), make)


def expected_gradient(checker: Checker, case: MLSTMCase) -> Expected:
    def make() -> Expected:
        arrays, cotangents = (
            oracle.values(case.arrays(checker.dtype)),
            oracle.values(case.cotangent_arrays(checker.dtype)),
        )
        return _gradient(arrays, case.options(), cotangents, checker.precision(case.steps))

    return checker.remember(("mlstm gradient", _unchanging(case)), make)


def _gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """The oracle's gradient, dense or packed."""
    if "cu_seqlens" not in arrays:
        return oracle.mlstm_gradient(arrays, options, cotangents, precision)
    lengths = tuple(int(length) for length in np.diff(arrays["cu_seqlens"]))
    calls = oracle.each_sequence(arrays, cotangents, lengths)
    return oracle.joined([oracle.mlstm_gradient(x, options, dx, precision) for x, dx in calls])


def _cut(expected: Expected, arrays: Arrays) -> Values:
    """With room for g of the early part, dm₀(late part) − ⟨C, dC⟩ − ⟨n, dn⟩, where it ought to cancel to 0."""
    assert expected.carried is not None
    of_g = expected.carried[:, None]
    with np.errstate(over="ignore"):
        gate = 1 / (1 + np.exp(arrays["f"].values))
    shares = {"i": of_g, "f": of_g * gate, "m0": expected.carried}
    return {name: expected.slack[name] + share for name, share in shares.items()}


MLSTM = Recurrence(
    "mlstm",
    tuple("qkvif"),
    "h",
    {"C": "C0", "n": "n0", "m": "m0"},
    (),
    expected_value,
    expected_gradient,
    oracle.mlstm,
    _gradient,
    _cut,
)
