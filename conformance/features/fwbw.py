"""Features of calls of the fwbw interface: those of the mLSTM call inside, and its own."""

from dataclasses import replace

from conformance.cases import FwbwCase, MLSTMCase
from conformance.features.feature import Feature, of_field
from conformance.features.mlstm import CHUNK, FINAL_STATE, MLSTM, plain_mlstm, rich_mlstm


def _inner(feature: Feature) -> Feature:
    """The feature of the mLSTM call inside a call of the fwbw interface."""
    return replace(
        feature,
        present=lambda case: feature.present(_whole(case)),
        without=lambda case: _with_inner(case, feature.without(_whole(case))),
        added=lambda case: _with_inner(case, feature.added(_whole(case))),
    )


def _whole(case: FwbwCase) -> MLSTMCase:
    """The mLSTM call with the configuration's choice of state and chunk size."""
    state = case.inner.state if case.use_initial_state else "none"
    return replace(case.inner, state=state, chunk_size=case.chunk_size)


def _with_inner(case: FwbwCase, inner: MLSTMCase) -> FwbwCase:
    state = inner.state != "none"
    return replace(case, inner=replace(inner, chunk_size=None), use_initial_state=state, chunk_size=inner.chunk_size)


_NOT_FWBW = ("packed", "max_seqlen", "several heads", "chunk_size", "eps", "final state", "state cotangents")
FWBW = (
    *(_inner(feature) for feature in MLSTM if feature.name not in _NOT_FWBW),
    replace(FINAL_STATE, sentence=f"{FINAL_STATE.sentence}, which then has cotangents"),
    of_field(
        "stabilize_correctly",
        True,
        False,
        name="floor of 1",
        sentence="stabilize_correctly=False puts 1 in place of the normaliser's floor",
        phrase="where stabilize_correctly is False",
    ),
    Feature(
        name="kept residuals",
        sentence="keep_G, keep_M or keep_c asks for residuals to be kept instead of recomputed",
        phrase="where residuals are kept",
        present=lambda case: bool(set(case.keep) - {"keep_gates"}),
        without=lambda case: replace(case, keep=("keep_gates",)),
        added=lambda case: replace(case, keep=("keep_G", "keep_gates", "keep_M", "keep_c")),
    ),
    of_field(
        "flat_gates",
        True,
        False,
        name="gates (B, T, 1)",
        sentence="the gates have a last axis of 1",
    ),
)


def plain_fwbw(seed: int) -> FwbwCase:
    """The plainest call of the fwbw interface."""
    return FwbwCase(replace(plain_mlstm(seed), return_state=True), chunk_size=CHUNK, stabilize_correctly=True)


def rich_fwbw(seed: int) -> FwbwCase:
    inner = replace(rich_mlstm(seed), N=1)
    return FwbwCase(inner, chunk_size=4, return_state=True, use_initial_state=True, stabilize_correctly=True)
