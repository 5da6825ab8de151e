"""Strangers with faults: the first cause is the true one, and a right stranger has none."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from conformance.base.options import QUICK_EXAMPLES, RunOptions
from conformance.cases import MLSTMCase
from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.causes import array_line
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.envelope import suggested
from conformance.diagnosis.patterns import patterns
from conformance.formulas import formula_named
from conformance.formulas.judged import Judge
from conformance.frameworks.targets import load
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import run
from conformance.operations import OPERATIONS
from conformance.tolerance.compared import ArrayOutcome
from tests.suite.diagnosing import cells, diagnosis
from tests.suite.strangers.catalogue import FAULTY, RIGHT, target
from tests.suite.strangers.torch_loops import gru_loop, mlstm_chunks, mlstm_loop


@cache
def _diagnosed(name: str) -> Diagnosis:
    stranger = {**RIGHT, **FAULTY}[name]
    return diagnosis(load(target(name), stranger.framework, "cpu"))


def _of_torch(mlstm: Callable) -> TorchImplementation:
    return TorchImplementation("stranger", {"mlstm": mlstm}, "cpu")


def _with_output(change: Callable[..., torch.Tensor], *faults: str) -> TorchImplementation:
    """A loop whose output ``h`` is changed by a function of h and q."""
    loop = mlstm_loop(*faults)

    def mlstm(q: Any, *arrays: Any, **options: Any) -> Any:
        found = loop(q, *arrays, **options)
        return (change(found[0], q), *found[1:]) if isinstance(found, tuple) else change(found, q)

    return _of_torch(mlstm)


def test_a_right_stranger_has_no_cause_and_is_right_wherever_it_was_tried():
    found = _diagnosed("torch_gru")
    assert found.causes == ()
    (envelope,) = found.envelopes
    statuses = {cell.value for row in envelope.rows for cell in row.cells.values()}
    assert statuses <= {"right", "not tried"} and "right" in statuses
    assert "Right wherever it was tried" in envelope.summary


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("detached", "The gradient of mlstm equals the gradient with the normaliser held constant"),
        ("no_scale", "mlstm equals the formula without 1/√K"),
        ("reset_after", "gru equals the formula with the reset gate after the recurrent product"),
        ("heads_tiled", "gru equals the formula with shared heads tiled, not repeated"),
    ],
)
def test_a_known_formula_is_recognised(name, sentence):
    first = _diagnosed(name).causes[0]
    assert first.sentence.startswith(sentence)
    assert first.formula is not None
    assert any(array.nature is not None for array in first.arrays)
    assert first.explains
    assert first.stored["kind"] in ("MLSTMCase", "GRUCase")


def test_a_feature_that_a_failure_needs_is_named():
    loop = mlstm_loop()

    def undefined(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        """NaN at a step whose forget gate is −∞, and nowhere else."""
        found = loop(q, k, v, i, f, **options)
        h = torch.where(torch.isneginf(f)[..., None], torch.nan, found[0] if isinstance(found, tuple) else found)
        return (h, *found[1:]) if isinstance(found, tuple) else h

    found = diagnosis(_of_torch(undefined), laws=("value", "finite"), max_steps=33)
    assert "forget gates of -inf" in found.causes[0].features and found.causes[0].formula is None
    assert "infinite" in found.causes[0].sentence
    assert cells(found, "forget gates of -inf")["float32"][0] == "wrong"
    assert cells(found, "plain call")["float32"] == ("right", "right")


SUMS = "mlstm equals the formula with log decays as differences of cumulative sums"


def test_differences_of_cumulative_sums_are_recognised_and_explain_nan_at_resets() -> None:
    chunks = _of_torch(mlstm_chunks("differences of cumulative sums", length=64))
    found = diagnosis(chunks, laws=("finite",), dtypes=("float32", "float64"), examples=3)
    (cause,) = found.causes
    assert cause.sentence == SUMS
    assert {str(check) for check in cause.explains} == {"mlstm.finite (float32)", "mlstm.finite (float64)"}
    for feature in ("forget gates of -1e30", "forget gates of -inf"):
        assert set(cells(found, feature).values()) == {("wrong", "wrong")}
    (envelope,) = found.envelopes
    assert "wrong where a forget gate is minus infinite (a hard reset), and where a finite forget" in envelope.summary


def test_a_logarithm_of_a_sigmoid_is_one_cause_of_nan_at_resets_and_at_large_gates() -> None:
    def guarded(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return mlstm_loop(log_gate=lambda f: torch.log(torch.sigmoid(f)))(q, k, v, i, f, **options)

    found = diagnosis(_of_torch(guarded), laws=("gradient", "finite"), examples=10, max_steps=33)
    cause, *others = found.causes
    # At gates of 6 to 8 the logarithm's gradient loses digits as well (errors of 2e-5 to 6e-5 of an element, 1e-7 with
    # logsigmoid), which is another cause than NaN.
    wrong = {(array.where, array.nature) for other in others for array in other.arrays if array.nature}
    assert wrong <= {("gradient of f", "number")}
    assert {str(check) for check in cause.explains} == {"mlstm.finite (float32)", "mlstm.gradient (float32)"}
    name = "the formula with log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0"
    assert cause.sentence == f"The gradient of mlstm equals the gradient of {name}"
    for feature in ("forget gates of -1e30", "forget gates of -inf"):
        assert cells(found, feature)["float32"] == ("right", "wrong")


def test_a_log_gate_in_16_bits_is_one_cause_of_all_laws_that_it_breaks() -> None:
    def rounded(f: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.logsigmoid(f).to(torch.bfloat16).to(f.dtype)

    narrow, wide = mlstm_loop(log_gate=rounded), mlstm_loop()

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return (narrow if f.dtype == torch.bfloat16 else wide)(q, k, v, i, f, **options)

    laws = ("value", "gradient", "accumulation")
    found = diagnosis(_of_torch(mlstm), laws=laws, dtypes=("bfloat16",), examples=8, max_steps=65)
    (cause,) = found.causes
    assert cause.sentence.startswith("mlstm equals the formula with log σ(f) rounded to the 16 bits of f")
    assert "mlstm.accumulation (bfloat16)" in map(str, cause.explains)


def test_a_decay_matrix_from_differences_of_cumulative_sums_is_recognised() -> None:
    def causal_forget_matrix(a: torch.Tensor) -> torch.Tensor:
        sums = a.cumsum(dim=-1)
        lower = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool).tril()
        return torch.where(lower, sums[..., :, None] - sums[..., None, :], -torch.inf)

    stranger = TorchImplementation("stranger", {"causal_forget_matrix": causal_forget_matrix}, "cpu")
    found = diagnosis(stranger, dtypes=("float64", "float32"), examples=10)
    said = "causal_forget_matrix equals the formula with differences of cumulative sums"
    assert found.causes[0].sentence == said
    assert {"causal_forget_matrix.value (float32)", "causal_forget_matrix.value (float64)"} <= {
        str(check) for check in found.causes[0].explains
    }


def test_nan_at_resets_is_not_taken_for_differences_of_cumulative_sums() -> None:
    assert all(SUMS not in cause.sentence for cause in _diagnosed("nan_at_resets").causes)


def _promises(found: Diagnosis) -> list[str]:
    return suggested(found).get(found.envelopes[0].op, [])


@pytest.mark.parametrize(("factor", "promise"), [(4, "S % 4 == 0"), (16, "S % 16 == 0")])
def test_the_number_that_has_to_divide_S_is_found(factor: int, promise: str) -> None:
    loop = gru_loop()

    def dropping(*arrays: torch.Tensor, **options: Any) -> Any:
        """The last steps that do not fill a block are 0."""
        y, state = loop(*arrays, **options)
        S = y.shape[1]
        kept = torch.arange(S) < S - S % factor
        return torch.where(kept[None, :, None, None], y, 0.0), state

    stranger = TorchImplementation("stranger", {"gru": dropping}, "cpu")
    found = diagnosis(stranger, laws=("value",), only="values", promises=("not packed",), examples=3)
    assert found.causes[0].sentence.endswith(f"where S % {factor} ≠ 0")
    assert [text for text in _promises(found) if text.startswith("S")] == [promise]


def test_a_quick_run_names_the_first_cause() -> None:
    refusing = _of_torch(mlstm_loop("normaliser detached", "packed sequences refused"))
    options = RunOptions(ops=("mlstm",), quick=True, examples=QUICK_EXAMPLES)
    results = list(run(refusing, options))
    broken = next(result for result in results if result.status == "failed")
    assert broken.examples == 1 and broken.saved > 0
    found = diagnose(refusing, options, results)
    assert "the gradient with the normaliser held constant" in found.causes[0].sentence
    # Experiments have the time that the law saved, which does not suffice for every feature.
    assert cells(found, "plain call") == {"float32": ("right", "wrong")}
    assert cells(found, "layout") == {"float32": ("not tried", "not tried")}
    assert "Not tried for lack of time: " in found.envelopes[0].summary
    assert "without --quick there are more experiments" in found.note


@pytest.mark.parametrize("seed", range(3))
def test_a_quick_run_sees_what_fails_at_a_hard_reset_alone(seed: int) -> None:
    loaded = load(target("differences_of_sums"), "torch", "cpu")
    options = RunOptions(ops=("mlstm",), quick=True, examples=QUICK_EXAMPLES, seed=seed)
    assert [result.law.name for result in run(loaded, options) if result.status == "failed"] == ["value", "gradient"]


def test_two_wrong_values_and_a_gradient_of_its_own_are_recognised_together() -> None:
    first = _diagnosed("floor_of_1_and_no_initial_m").causes[0]
    name = (
        "the formula with 1 in place of the normaliser's floor, max(|n·q̂|, 1) and formula with 0 in place of the "
        "initial m and gradient with the stabiliser m differentiated in eps and in the floor"
    )
    assert first.formula == name and first.sentence == f"mlstm equals {name}"
    known = formula_named(OPERATIONS["mlstm"], name)
    assert known is not None and known.name == name and known.changes_value


def test_a_formula_is_recognised_beside_another_fault_which_is_a_cause_of_its_own() -> None:
    loop = mlstm_loop("normaliser detached")

    def mlstm(*arrays: Any, initial_state: Any = None, **options: Any) -> Any:
        """The initial n and m have no gradient."""
        if initial_state is not None:
            C, n, m = initial_state
            initial_state = (C, n.detach(), m.detach())
        return loop(*arrays, initial_state=initial_state, **options)

    found = diagnosis(_of_torch(mlstm), laws=("gradient",))
    first, *others = found.causes
    name = "the gradient with the normaliser held constant, its floor's dependence on m included"
    assert first.formula == name
    assert [cause.features for cause in others] == [("initial state",)]


def _patterns(factor: float, *cases: MLSTMCase) -> list[dict[str, str]]:
    """The patterns of each case where h is off by a factor and the normaliser has no gradient."""
    target = _with_output(lambda h, q: factor * h, "normaliser detached")
    judge = Judge(target, OPERATIONS["mlstm"], "float32")
    return [patterns([judge(case)]) for case in cases]


def test_no_pattern_is_named_where_the_values_are_too_few_to_tell() -> None:
    one = MLSTMCase(1, 1, 1, 1, 1, removed=("normaliser at its floor",), return_state=False)
    ones, several = replace(one, elements="ones"), replace(one, S=3, K=2, V=4)
    # The gradients of q and k are h there, and nothing else.
    assert _patterns(1.0, ones) == [{}]
    of_ones, of_one, of_several = _patterns(2.0, ones, one, several)
    assert "h" not in of_ones
    assert of_one["h"] == of_several["h"] == "is 2 × what it should be"


def test_a_pattern_is_what_all_calls_show() -> None:
    def one_and_a_half(h: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return h * torch.where(q[:, :1, :, :1] > 0, 2.0, 0.5)

    judge = Judge(_with_output(one_and_a_half), OPERATIONS["mlstm"], "float32", gradients=False)
    trials = [judge(MLSTMCase(1, 1, 1, 2, 3, seed=seed, return_state=False)) for seed in range(6)]
    alone = [patterns([trial]) for trial in trials]
    assert {each["h"] for each in alone} == {"is 2 × what it should be", "is ½ × what it should be"}
    assert patterns(trials) == {}


def test_a_cause_explains_no_checks_of_dtypes_that_it_is_not_seen_in() -> None:
    def rounded(h: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return h * 1.1 if q.dtype == torch.bfloat16 and q.shape[1] > 1 else h

    found = diagnosis(
        _with_output(rounded, "NaN where a gate is minus infinity"),
        laws=("value", "finite"),
        dtypes=("float64", "float32", "bfloat16"),
        examples=3,
        max_steps=33,
    )
    of_16_bits = [cause for cause in found.causes if cause.dtype == "bfloat16"]
    assert of_16_bits
    for cause in of_16_bits:
        assert {check.dtype for check in cause.explains} == {"bfloat16"}
    assert {"mlstm.finite (float64)", "mlstm.finite (float32)"} <= {
        str(check) for cause in found.causes for check in cause.explains
    }


def _gru_of_one(*arrays: torch.Tensor, **options: Any) -> Any:
    if arrays[0].shape[-1] != 1:
        raise NotImplementedError("H must be 1")
    y, state = gru_loop()(*arrays, **options)
    return (1.5 * y if y.dtype == torch.bfloat16 else y), state


def test_a_cause_names_no_feature_that_a_promise_forces() -> None:
    stranger = TorchImplementation("stranger", {"gru": _gru_of_one}, "cpu")
    for promises in (("H == 1",), ()):
        found = diagnosis(stranger, dtypes=("float64", "bfloat16"), promises=promises, examples=3)
        sentences = [cause.sentence for cause in found.causes]
        assert sentences and not any("where H" in sentence for sentence in sentences)
        # All laws held in float64, and yet each kind of call is tried there.
        (envelope,) = found.envelopes
        statuses = {row.feature: row.cells["float64"].value for row in envelope.rows}
        assert "not tried" not in statuses.values()
        assert statuses["plain call"] == ("right" if promises else "not served")


def test_an_error_where_next_to_nothing_is_expected_is_a_number_and_not_a_share() -> None:
    def off(error: float, distance: float) -> ArrayOutcome:
        return ArrayOutcome(where="h", nature="number", worst=9.0, error=error, wrong=0.5, distance=distance)

    assert array_line([off(0.5, 2.0)]) == "h 50 % off in 50 % of its elements"
    assert array_line([off(9.0, 18.0)]) == "h 900 % off in 50 % of its elements"
    said = "h off by 3.5e-08 where at most 3.9e-21 is expected in 50 % of its elements"
    assert array_line([off(8.9e12, 3.5e-8)]) == said
    assert array_line([off(math.inf, 3.5e-8)]) == "h off by 3.5e-08 where 0 is expected in 50 % of its elements"
    assert array_line([off(math.inf, math.inf)]) == "h ∞ off in 50 % of its elements"
