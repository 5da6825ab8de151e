"""Strangers with faults: the first cause is the true one, and a right stranger has none."""

from functools import cache

import pytest

from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.diagnose import diagnose
from conformance.options import RunOptions
from conformance.runner import run
from conformance.targets import load
from tests.suite.strangers.catalogue import FAULTY, RIGHT, target


@cache
def _diagnosed(name: str) -> Diagnosis:
    stranger = {**RIGHT, **FAULTY}[name]
    (op,) = stranger.functions
    options = RunOptions(
        ops=(op,), laws=("value", "gradient"), dtypes=("float32",), examples=6, max_steps=70, shrink_seconds=1.0
    )
    implementation = load(target(name), stranger.framework, "cpu")
    return diagnose(implementation, options, list(run(implementation, options)))


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
