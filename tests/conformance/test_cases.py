"""What the laws are tried on: cases that can be written down, that spread over every branch, that come in all sizes."""

import json

import pytest

from conformance import cases
from conformance.cases import FwbwCase, GRUCase, MLSTMCase, SumCase

CASES = (
    MLSTMCase(2, 5, 3, 3, 2, state="random", gates="large m", eps=1e-3, seed=65535),
    MLSTMCase(3, 0, 1, 1, 1, lengths=(4, 0, 1), wide_gates=True),
    MLSTMCase(0, 0, 1, 1, 1, lengths=()),
    FwbwCase(MLSTMCase(2, 5, 1, 3, 2, state="empty"), chunk_size=None, keep=("keep_G", "keep_c"), flat_gates=False),
    GRUCase(2, 5, 3, cases.HEADS[0], clipping=-0.1, scale=0.01),
    SumCase((2, 3), 5, "wide", "strided", 7),
    SumCase((), 0),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_a_case_comes_back_from_json_as_it_was(case: object) -> None:
    again = cases.from_json(json.loads(json.dumps(cases.to_json(case))))
    assert again == case and type(again) is type(case) and hash(again) == hash(case)


def test_a_class_that_never_joined_is_refused() -> None:
    with pytest.raises(TypeError, match="has not joined"):
        cases.to_json(object())
    with pytest.raises(ValueError, match="no kind of case named 'Case'"):
        cases.from_json({"kind": "Case"})
    with pytest.raises(ValueError, match="named MLSTMCase already"):
        cases.register()(MLSTMCase)
