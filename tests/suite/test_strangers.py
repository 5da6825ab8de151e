"""The strangers are what the catalogue says: the right ones equal the specification, the faulty ones do not."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import HEADS, GRUCase, MLSTMCase
from conformance.frameworks.implementation import Implementation
from conformance.frameworks.targets import load
from tests.suite.strangers.catalogue import FAULTY, RIGHT, target


def _calls(op: str) -> list[Any]:
    if op == "gru":
        return [
            GRUCase(2, 5, 3, HEADS[0], state=True, seed=1),
            GRUCase(2, 5, 2, HEADS[2], seed=2, clipping=0.05),
            GRUCase(3, 0, 2, HEADS[1], lengths=(2, 0, 3), state=True, seed=3),
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
    for case in _calls(op):
        arrays, cotangents, options = case.arrays("float64"), case.cotangent_arrays("float64"), case.options()
        try:
            with np.errstate(all="ignore"):
                call = Call(operation=op, arrays=arrays, options=options, cotangents=cotangents)
                outputs, gradients = implementation.vjp(call)
        except NotImplementedError:
            continue
        except RuntimeError:
            yield math.inf
            continue
        worst = 0.0
        expected, of_gradient = _expected(op, case, arrays, cotangents, options)
        for name, x in {**outputs, **{f"gradient of {key}": dx for key, dx in gradients.items()}}.items():
            wanted = {**expected, **{f"gradient of {key}": dx for key, dx in of_gradient.items()}}.get(name)
            if wanted is None:
                continue
            error = np.abs(x.values - wanted).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-300)
            worst = max(worst, math.inf if math.isnan(error) else error)
        yield worst


def _expected(
    op: str, case: Any, arrays: dict[str, Array], cotangents: dict[str, Array], options: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    values, of = ({name: x.values for name, x in group.items()} for group in (arrays, cotangents))
    if op == "gru":
        y, state = reference.gru(**values, **options)
        return {"y": y, "state": state}, reference.gru_backward(**values, **options, dy=of["y"], dstate=of["state"])
    state = reference.MLSTMState(*(values.pop(name) for name in ("C0", "n0", "m0"))) if "C0" in values else None
    h, last = reference.mlstm(**values, **options, initial_state=state, return_state=True)
    dstate = reference.MLSTMState(of["C"], of["n"], of["m"])
    gradients = reference.mlstm_backward(**values, initial_state=state, dh=of["h"], dstate=dstate)
    initial = gradients.pop("initial_state", None)
    if initial is not None:
        gradients |= dict(zip(("C0", "n0", "m0"), initial, strict=True))
    return {"h": h, **dict(zip("Cnm", last, strict=True))}, gradients


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_stranger_equals_the_specification(name: str) -> None:
    assert max(_errors(load(target(name), RIGHT[name].framework, "cpu"))) < 1e-11


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_stranger_does_not(name: str) -> None:
    # One call is enough; JAX would compile the others for nothing.
    assert any(error > 1e-4 for error in _errors(load(target(name), FAULTY[name].framework, "cpu")))
