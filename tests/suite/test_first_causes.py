"""The first cause is what is wrong with a stranger: no coincidence, and no part of another cause."""

from typing import Any

import pytest
import torch

from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.faults import Faults
from conformance.features.admission import Admission
from conformance.formulas.judged import Clock, Judge
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import run
from conformance.operations import OPERATIONS
from tests.suite.diagnosing import cells, diagnosis
from tests.suite.strangers.slstm_loop import NAMED, slstm_loop
from tests.suite.strangers.torch_loops import gru_loop, mlstm_loop

CONSTANT = "the gradient with the normaliser held constant, its floor's dependence on m included"
LOGARITHM = "the formula with log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0"


def _mlstm(function: Any) -> TorchImplementation:
    return TorchImplementation("stranger", {"mlstm": function}, "cpu")


def _gru(function: Any) -> TorchImplementation:
    return TorchImplementation("stranger", {"gru": function}, "cpu")


def test_a_formula_explains_the_calls_in_which_other_faults_show_too() -> None:
    loop = mlstm_loop("normaliser detached")

    def without_gradients(state: Any) -> Any:
        return None if state is None else (state[0], state[1].detach(), state[2].detach())

    def mlstm(*arrays: Any, initial_state: Any = None, return_state: bool = False, **options: Any) -> Any:
        """The n and m of the initial and the final state have no gradient."""
        h, last = loop(*arrays, initial_state=without_gradients(initial_state), return_state=True, **options)
        return (h, without_gradients(last)) if return_state else h

    found = diagnosis(_mlstm(mlstm), laws=("gradient", "functional"), examples=4, max_steps=16)
    first, *others = found.causes
    assert first.formula == CONSTANT
    assert {check for cause in others for check in cause.explains} <= set(first.explains)
    assert all(cause.features for cause in others)


def test_a_value_that_is_wrong_in_one_dtype_is_not_said_to_be_wrong_on_every_call() -> None:
    loop = gru_loop()

    def gru(*arrays: torch.Tensor, **options: Any) -> Any:
        """In float64, y has the digits of float32."""
        y, state = loop(*arrays, **options)
        return (y.to(torch.float32).to(y.dtype), state) if y.dtype == torch.float64 else (y, state)

    found = diagnosis(_gru(gru), laws=("value",), dtypes=("float64", "float32"), examples=3)
    (cause,) = found.causes
    assert cause.sentence == "The value of gru is wrong on every call that was tried in float64"


def test_a_feature_that_a_plain_call_lacks_is_not_needed() -> None:
    loop = gru_loop()

    def gru(*arrays: torch.Tensor, **options: Any) -> Any:
        """Inexact in 16 bits, but calls of four steps happen to be right."""
        y, state = loop(*arrays, **options)
        inexact = y.dtype == torch.bfloat16 and y.shape[1] != 4
        return (y + (y * 2**-5).to(y.dtype), state) if inexact else (y, state)

    found = diagnosis(_gru(gru), laws=("value",), dtypes=("bfloat16",), only="values", examples=3)
    assert found.causes
    assert not [cause.sentence for cause in found.causes if "multiple" in cause.sentence]


def test_a_feature_is_not_needed_if_other_draws_are_wrong_without_it() -> None:
    loop = mlstm_loop("packed sequences refused")

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, *, initial_state: Any = None, **options: Any) -> Any:
        """Twice as much where there is an initial state and the first forget gate of the sequence is positive."""
        found = loop(q, k, v, i, f, initial_state=initial_state, **options)
        h = found[0] if isinstance(found, tuple) else found
        if initial_state is not None and h.numel():
            h = torch.where(f[:, :1, :1, None] > 0, 2 * h, h)
        return (h, *found[1:]) if isinstance(found, tuple) else h

    operation = OPERATIONS["mlstm"]
    for seed in range(6):
        judge = Judge(_mlstm(mlstm), operation, "float32", gradients=False)
        faults = Faults(operation, {"float32": judge}, Clock(60.0), Admission(contract=False))
        for fault in faults.explain(MLSTMCase(2, 7, 2, 3, 2, state="random", seed=seed), "float32"):
            assert [feature.name for feature in fault.features] == ["initial state"]


def test_two_faults_in_one_call_are_the_two_that_were_found_in_others() -> None:
    pair = mlstm_loop("normaliser detached", "NaN where a gate is minus infinity")
    found = diagnosis(_mlstm(pair), laws=("gradient", "finite"), examples=4, max_steps=16)
    # Where both gates are −∞, values are NaN, too, which is a third fault.
    assert {cause.formula for cause in found.causes if cause.kind == "gradient"} <= {CONSTANT, LOGARITHM}
    assert {cause.formula for cause in found.causes} >= {CONSTANT, LOGARITHM}


def test_a_sentence_names_every_feature_and_no_number_of_them() -> None:
    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, *, initial_state: Any = None, **options: Any) -> Any:
        """Wrong where five features meet."""
        found = mlstm_loop()(q, k, v, i, f, initial_state=initial_state, **options)
        h = found[0] if isinstance(found, tuple) else found
        B, S, N, K = q.shape if q.ndim == 4 else (1, *q.shape)
        if initial_state is not None and B > 1 and N > 1 and S > 1 and v.shape[-1] != K:
            h = 2 * h
        return (h, *found[1:]) if isinstance(found, tuple) else h

    found = diagnosis(_mlstm(mlstm), laws=("value",), examples=20, max_steps=20, only="values")
    (cause,) = found.causes
    where = "a call has an initial state and there is more than one sequence and there is more than one head"
    assert cause.sentence.startswith(f"mlstm: the output h is 2 × what it should be where {where}")
    assert len(cause.features) > 3 and "rare calls" not in cause.sentence
    for clause in ("K differs from V", "S > 1"):
        assert f" and {clause}" in cause.sentence


def test_experiments_on_sizes_share_their_shapes() -> None:
    shapes, loop = set(), mlstm_loop("packed sequences refused", "normaliser detached")

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        shapes.add((*q.shape, v.shape[-1]))
        return loop(q, k, v, i, f, **options)

    implementation = _mlstm(mlstm)
    options = RunOptions(ops=("mlstm",), laws=("gradient",), dtypes=("float32",), examples=1, shrink_seconds=0.0)
    results = list(run(implementation, options))
    shapes.clear()
    found = diagnose(implementation, options, results)
    assert len(shapes) <= 10, sorted(shapes)
    for name in ("several heads", "several sequences", "K differs from V", "several chunks"):
        assert cells(found, name) == {"float32": ("right", "wrong")}


@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_of_an_slstm_is_named_by_its_formula(fault: str) -> None:
    found = diagnosis(TorchImplementation("stranger", {"slstm": slstm_loop(fault)}, "cpu"))
    assert found.causes[0].sentence.endswith(f"slstm equals {NAMED[fault]}")


def test_a_right_slstm_of_a_stranger_is_accepted() -> None:
    options = RunOptions(ops=("slstm",), laws=("value", "gradient"), dtypes=("bfloat16",), examples=6)
    results = list(run(TorchImplementation("stranger", {"slstm": slstm_loop()}, "cpu"), options))
    assert {result.status for result in results} == {"passed"}
