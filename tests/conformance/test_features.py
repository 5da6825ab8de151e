"""Features of calls: each can be added to a plain call and taken away again, alone."""

import hypothesis
import pytest
from hypothesis import strategies as st

from conformance import cases
from conformance.cases import Limits
from conformance.features import described
from conformance.features.calls import TILES
from conformance.features.feature import Feature, avoiding, names, needed
from conformance.features.fwbw import FWBW, plain_fwbw
from conformance.features.mlstm import MLSTM, MLSTM_STEP, plain_mlstm, plain_mlstm_step
from conformance.features.sums import DECAY, SCANS, plain_sum
from conformance.operations import OPERATIONS

_GRU = described(OPERATIONS["gru"])
BY_OPERATION = {
    "mlstm": (MLSTM, plain_mlstm),
    "mlstm_step": (MLSTM_STEP, plain_mlstm_step),
    "fwbw": (FWBW, plain_fwbw),
    "gru": (_GRU.features, _GRU.plain),
    "rev_cumsum": (SCANS, plain_sum),
    "causal_forget_matrix": (DECAY, plain_sum),
}
EACH = [(op, feature) for op, (features, _) in BY_OPERATION.items() for feature in features]
ALWAYS = {
    # What every call of the operation has: a step reads at its floor or above it, and steps follow each other.
    "mlstm": {"several steps", "normaliser at its floor"},
    "mlstm_step": {"normaliser at its floor"},
    "fwbw": {"several steps", "normaliser at its floor"},
    "gru": {"several steps"},
    "rev_cumsum": {"several steps"},
    "causal_forget_matrix": {"several steps"},
}
MULTIPLES = ("S not a multiple of 16", "S not a multiple of the chunk", "S not a multiple of 64")
BROUGHT = {
    # What comes with a feature: packed sequences are several, and of other lengths than the chunk's.
    "packed": {"several sequences", "S not a multiple of the chunk", "S not a multiple of 64"},
    "max_seqlen": {"packed", "several sequences", "S not a multiple of the chunk", "S not a multiple of 64"},
    "grouped heads": {"several heads"},
    "empty initial memory": {"initial state"},
    "state cotangents": {"final state"},
    "S not a multiple of 4": {*MULTIPLES, "several chunks", "S above 64"},
    "S not a multiple of 16": {*MULTIPLES[1:], "several chunks", "S above 64"},
    "S not a multiple of the chunk": {"several chunks"},
    "S not a multiple of 64": {"S above 64"},
    "no rows": {"leading axes"},
    "uneven head dims": {"K differs from V"},
    "chunk_size": {"several chunks"},
    "m above 64": {"large input gates"},
}
for number, limit in enumerate(TILES):
    for letter in "KVH":
        narrower = {f"{letter} above {smaller}" for smaller in TILES[:number]}
        BROUGHT[f"{letter} above {limit}"] = narrower | ({"K differs from V"} if letter in "KV" else set())


def _drawn(op: str) -> st.SearchStrategy:
    limits = Limits("small", True, "float32", 130, ("contiguous", "strided"))
    chunk = Limits("chunk", True, "float32", 130, ("contiguous", "strided"))
    strategies = {
        "mlstm": (cases.mlstm, cases.packed_mlstm),
        "mlstm_step": (lambda limits: cases.mlstm(limits, S=1),),
        "fwbw": (cases.fwbw,),
        "gru": tuple(OPERATIONS["gru"].cases[kind] for kind in ("dense", "packed")),
        "rev_cumsum": (cases.sums,),
        "causal_forget_matrix": (cases.gate_sums,),
    }[op]
    return st.one_of(*(strategy(each) for strategy in strategies for each in (limits, chunk)))


@pytest.mark.parametrize("op", BY_OPERATION)
def test_a_plain_call_has_no_features_but_what_every_call_has(op):
    features, plain = BY_OPERATION[op]
    for seed in range(5):
        assert names(plain(seed), features) == ALWAYS[op]


@pytest.mark.parametrize(("op", "feature"), EACH, ids=[f"{op}-{feature.name}" for op, feature in EACH])
def test_a_feature_is_added_alone(op: str, feature: Feature):
    features, plain = BY_OPERATION[op]
    for seed in range(3):
        case = feature.added(plain(seed))
        assert feature.present(case)
        others = names(case, features) - {feature.name}
        assert others <= ALWAYS[op] | BROUGHT.get(feature.name, set()) | {"normaliser at its floor"}
        for dtype in ("float64", "float16"):
            assert case.arrays(dtype) if hasattr(case, "arrays") else case.scan(dtype)


@pytest.mark.parametrize("op", BY_OPERATION)
def test_a_feature_is_taken_away(op: str):
    features, _ = BY_OPERATION[op]

    @hypothesis.settings(max_examples=60, database=None, deadline=None, derandomize=True)
    @hypothesis.given(_drawn(op))
    def check(case):
        for feature in features:
            if not feature.present(case):
                continue
            other = feature.without(case)
            # No query reads above the floor of a memory that holds nothing.
            assert not feature.present(other) or feature.name == "normaliser at its floor"
            assert cases.from_json(cases.to_json(other)) == other

    check()


def test_a_refusal_is_blamed_on_the_feature_that_it_needs():
    case = cases.MLSTMCase(2, 7, 2, 3, 2, state="random", eps=1e-3, gates="resets")
    refused = needed(case, lambda case: case.state != "none", MLSTM)
    assert [feature.name for feature in refused] == ["initial state"]
    served = avoiding(case, {"initial state"}, MLSTM)
    assert served.state == "none" and served.eps == 1e-3 and served.seed == case.seed
