"""A target that returns no final state is judged on h alone, with as many examples as any other."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase, from_json, to_json
from conformance.frameworks.targets import load
from conformance.operations import OPERATIONS
from tests.conformance.judging import judged_file

STATELESS = """
from tests.suite.strangers.torch_loops import mlstm_loop

loop = mlstm_loop({faults})

def mlstm(q, k, v, i, f, *, return_state=False, **options):
    if return_state:
        raise NotImplementedError("it returns no final state")
    return loop(q, k, v, i, f, **options)
"""
WITH_STATES = "from tests.suite.strangers.torch_loops import mlstm_loop\n\nmlstm = mlstm_loop()\n"


judged = partial(judged_file, options=RunOptions(max_steps=40, shrink_seconds=2.0), framework="torch")


@pytest.mark.parametrize("law", ["value", "gradient", "permutation", "packed", "floor"])
def test_a_right_target_is_judged_on_as_many_examples(tmp_path: Path, law: str) -> None:
    whole = judged(tmp_path, WITH_STATES, f"mlstm.{law}")
    bare = judged(tmp_path, STATELESS.format(faults=""), f"mlstm.{law}")
    assert whole.status == bare.status == "passed", bare.reason
    assert bare.refused.cases > 0 and set(bare.refused.features) == {"final state"}
    assert bare.examples >= whole.examples - 2


@pytest.mark.parametrize("fault", ["normaliser detached", "gradient does not reach the forget gate"])
def test_a_wrong_gradient_is_found(tmp_path: Path, fault: str) -> None:
    result = judged(tmp_path, STATELESS.format(faults=repr(fault)), "mlstm.gradient")
    assert result.status == "failed"
    assert {found.kind.where for found in result.counterexamples} & {"gradient of q", "gradient of f"}
    assert all("return_state=False" in found.case for found in result.counterexamples)


def test_a_wrong_value_is_found(tmp_path: Path) -> None:
    result = judged(tmp_path, STATELESS.format(faults="'1/sqrt(K) left out'"), "mlstm.value")
    assert result.status == "failed" and result.counterexamples[0].kind.where == "h"


@pytest.mark.parametrize("law", ["split_and_carry", "ties"])
def test_a_law_about_states_is_not_served(tmp_path: Path, law: str) -> None:
    result = judged(tmp_path, STATELESS.format(faults=""), f"mlstm.{law}")
    assert result.status == "not served" and "no final state" in (result.reason or "")


def test_the_call_names_the_switch_only_to_turn_it_on() -> None:
    given: list[dict[str, Any]] = []

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        given.append(options)
        return (v, (0, 0, 0)) if options.get("return_state") else v

    for returned in (True, False):
        case = MLSTMCase(1, 2, 1, 1, 1, return_state=returned)
        assert set(case.cotangent_arrays("float64")) == set("hCnm" if returned else "h")
        outputs = OPERATIONS["mlstm"].call(mlstm, case.arrays("float64"), case.options())
        assert set(outputs) == set("hCnm" if returned else "h")
    assert given == [{"return_state": True}, {}]


def test_a_gradient_without_states_is_that_with_cotangents_of_zero() -> None:
    operation = OPERATIONS["mlstm"]
    for lengths in (None, (3, 0, 4)):
        case = MLSTMCase(2, 5, 2, 3, 2, lengths=lengths, state="random", seed=3)
        bare = from_json(to_json(case) | {"return_state": False})
        implementation = load("reference", None, "cpu")
        call = operation.call_of(case, "float64")
        for name in "Cnm":
            call.cotangents[name].values[...] = 0
        _, expected = implementation.vjp(call)
        outputs, gradients = implementation.vjp(operation.call_of(bare, "float64"))
        assert set(outputs) == {"h"} and set(gradients) == set(expected) <= set(operation.primals)
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(gradient.values, expected[name].values)


def test_a_case_stored_without_the_field_returns_its_state() -> None:
    stored = to_json(MLSTMCase(1, 2, 1, 1, 1))
    del stored["return_state"]
    assert from_json(stored).return_state
