"""The GRU as the laws see it: what the oracle says of a case, and which arrays carry its state."""

from dataclasses import replace

from conformance import oracle
from conformance.budget import Expected
from conformance.cases import GRUCase
from conformance.checker import Checker
from conformance.laws._recurrence import Recurrence
from conformance.operations import GRU_ARRAYS

SEQUENCES = ("input", "forget_input", "reset_input")
WEIGHTS = ("weight", "forget_weight", "reset_weight")
HEAD_AXIS = {name: 0 if name in WEIGHTS else -2 for name in GRU_ARRAYS}


def _unchanging(case: GRUCase) -> GRUCase:
    """What a value may depend on: not the layout, not ``max_seqlen``, not where a law cuts."""
    return replace(case, layout="contiguous", room=None, cut=0.0)


def expected_value(checker: Checker, case: GRUCase) -> Expected:
    """The oracle's outputs, dense or packed."""

    def make() -> Expected:
        return oracle.gru(oracle.values(case.arrays(checker.dtype)), {}, checker.precision(case.steps))

    return checker.remember(("gru value", _unchanging(case)), make)


def expected_gradient(checker: Checker, case: GRUCase) -> Expected:
    def make() -> Expected:
        arrays, cotangents = case.arrays(checker.dtype), case.cotangent_arrays(checker.dtype)
        return oracle.gru_gradient(
            oracle.values(arrays), case.options(), oracle.values(cotangents), checker.precision(case.steps)
        )

    return checker.remember(("gru gradient", _unchanging(case)), make)


GRU = Recurrence(
    "gru",
    SEQUENCES,
    "y",
    {"state": "input_state"},
    WEIGHTS,
    expected_value,
    expected_gradient,
    oracle.gru,
    oracle.gru_gradient,
    # Clipping survives a cut: the late part's gradient of its initial state is clipped as the early part's cotangent.
    lambda expected, arrays: {},
)
