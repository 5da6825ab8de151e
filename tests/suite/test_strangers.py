"""The strangers are what the catalogue says: the right ones equal the specification, the faulty ones do not."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conformance.cases import MLSTMCase
from conformance.frameworks.implementation import Implementation
from conformance.frameworks.targets import load
from conformance.operations import OPERATIONS
from conformance.operations.gru import gru_case
from tests.suite.strangers.catalogue import FAULTY, RIGHT, target


def _calls(op: str) -> list[Any]:
    if op == "gru":
        return [
            gru_case(2, 5, 3, (6, 3, 2, 1, 6, 2), state=True, seed=1),
            gru_case(2, 5, 2, (1, 4, 2, 4, 1, 2), seed=2, with_gradient_clipping=0.05),
            gru_case(3, 0, 2, (2,) * 6, lengths=(2, 0, 3), state=True, seed=3),
        ]
    return [
        MLSTMCase(2, 7, 2, 3, 2, seed=1),
        MLSTMCase(2, 37, 2, 5, 3, state="random", seed=2),
        MLSTMCase(1, 33, 1, 5, 3, gates="low m", seed=3),
        MLSTMCase(2, 40, 2, 3, 2, gates="resets", seed=4),
        MLSTMCase(3, 0, 2, 3, 2, lengths=(3, 0, 4), seed=5),
    ]


def _errors(implementation: Implementation) -> Iterator[float]:
    """Of each served call: the largest error of an output or a gradient, relative to its array."""
    (op,) = implementation.functions
    exact = load("reference", None, "cpu")
    for case in _calls(op):
        call = OPERATIONS[op].call_of(case, "float64")
        try:
            with np.errstate(all="ignore"):
                found = implementation.vjp(call)
        except NotImplementedError:
            continue
        except RuntimeError:
            yield math.inf
            continue
        worst = 0.0
        for got, wanted in zip(found, exact.vjp(call), strict=True):
            for name in got.keys() & wanted.keys():
                x = wanted[name].values
                error = np.abs(got[name].values - x).max(initial=0.0) / max(np.abs(x).max(initial=0.0), 1e-300)
                worst = max(worst, math.inf if math.isnan(error) else error)
        yield worst


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_stranger_equals_the_specification(name: str) -> None:
    assert max(_errors(load(target(name), RIGHT[name].framework, "cpu"))) < 1e-11


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_stranger_does_not(name: str) -> None:
    # One call is enough; JAX would compile the others for nothing.
    assert any(error > 1e-4 for error in _errors(load(target(name), FAULTY[name].framework, "cpu")))
