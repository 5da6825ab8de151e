"""Strangers with faults: the first cause is the true one, and a right stranger has none."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.diagnose import diagnose
from conformance.frameworks.torch import TorchImplementation
from conformance.implementation import Implementation
from conformance.options import RunOptions
from conformance.runner import run
from conformance.targets import load
from tests.suite.strangers.catalogue import FAULTY, RIGHT, target
from tests.suite.strangers.torch_loops import gru_loop, mlstm_chunks, mlstm_loop


@cache
def _diagnosed(name: str) -> Diagnosis:
    stranger = {**RIGHT, **FAULTY}[name]
    return _diagnosis(load(target(name), stranger.framework, "cpu"))


def _diagnosis(implementation: Implementation, **changed: Any) -> Diagnosis:
    (op,) = implementation.functions
    usual = {"laws": ("value", "gradient"), "dtypes": ("float32",), "examples": 6, "max_steps": 70}
    options = RunOptions(ops=(op,), shrink_seconds=1.0, **{**usual, **changed})
    return diagnose(implementation, options, list(run(implementation, options)))


def _of_torch(mlstm: Callable) -> TorchImplementation:
    return TorchImplementation("stranger", {"mlstm": mlstm}, "cpu")


def _with_output(change: Callable[..., torch.Tensor], *faults: str) -> TorchImplementation:
    """A loop whose output ``h`` is changed by a function of h and q."""
    loop = mlstm_loop(*faults)

    def mlstm(q: Any, *arrays: Any, **options: Any) -> Any:
        found = loop(q, *arrays, **options)
        return (change(found[0], q), *found[1:]) if isinstance(found, tuple) else change(found, q)

    return _of_torch(mlstm)


def _cells(found: Diagnosis, feature: str) -> dict[str, tuple[str, str]]:
    (envelope,) = found.envelopes
    row = next(row for row in envelope.rows if row.feature == feature)
    return {dtype: (cell.value, cell.gradient) for dtype, cell in row.cells.items()}


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
    first = _diagnosed("nan_at_resets").causes[0]
    assert "forget gates of -inf" in first.features
    assert "infinite" in first.sentence
    (envelope,) = _diagnosed("nan_at_resets").envelopes
    row = next(row for row in envelope.rows if row.feature == "forget gates of -inf")
    assert row.cells["float32"].gradient == "wrong"
    plain = next(row for row in envelope.rows if row.feature == "plain call")
    assert (plain.cells["float32"].value, plain.cells["float32"].gradient) == ("right", "right")


SUMS = "mlstm equals the formula with log decays as differences of cumulative sums"


def test_differences_of_cumulative_sums_are_recognised_and_explain_nan_at_resets() -> None:
    chunks = _of_torch(mlstm_chunks("differences of cumulative sums", length=64))
    found = _diagnosis(chunks, laws=("finite",), dtypes=("float32", "float64"), examples=3)
    (cause,) = found.causes
    assert cause.sentence == SUMS
    assert {str(check) for check in cause.explains} == {"mlstm.finite (float32)", "mlstm.finite (float64)"}
    for feature in ("forget gates of -1e30", "forget gates of -inf"):
        assert set(_cells(found, feature).values()) == {("wrong", "wrong")}
    (envelope,) = found.envelopes
    assert "wrong where a forget gate is minus infinite (a hard reset), and where a finite forget" in envelope.summary


def test_nan_at_resets_is_not_taken_for_differences_of_cumulative_sums() -> None:
    assert all(SUMS not in cause.sentence for cause in _diagnosed("nan_at_resets").causes)


def test_an_experiment_is_not_stricter_than_the_laws_that_held() -> None:
    def scaled(h: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Off by 1.3 tolerances in calls of 8 steps of head dim 16, which only experiments make."""
        return h * (1 + 2e-6) if q.shape[1] == 8 and q.shape[-1] == 16 else h

    stranger = _with_output(scaled, "NaN where a gate is minus infinity")
    found = _diagnosis(stranger, laws=("value", "gradient", "finite"), examples=3, max_steps=7)
    assert any(check.law == "mlstm.finite" for cause in found.causes for check in cause.explains)
    assert not any(check.law == "mlstm.value" for cause in found.causes for check in cause.explains)
    assert _cells(found, "S not a multiple of the chunk")["float32"] == ("right", "right")


def test_a_cause_explains_no_checks_of_dtypes_that_it_is_not_seen_in() -> None:
    def rounded(h: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return h * 1.1 if q.dtype == torch.bfloat16 and q.shape[1] > 1 else h

    found = _diagnosis(
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
        found = _diagnosis(stranger, dtypes=("float64", "bfloat16"), promises=promises, examples=3)
        sentences = [cause.sentence for cause in found.causes]
        assert sentences and not any("where H" in sentence for sentence in sentences)
        # All laws held in float64, whose cases count where there was nothing to find out by experiment.
        if promises:
            assert _cells(found, "plain call")["float64"] == ("right", "right")
