"""Which features of a call a fault needs, found by experiments with a target of four answers."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.diagnosis.experiments import Experiments
from conformance.features.feature import of_field
from conformance.formulas.judged import Clock
from conformance.tolerance.compared import ArrayOutcome


@dataclass(frozen=True)
class Toy:
    """A case with two features, and a seed from which its elements are drawn."""

    packed: bool = True
    strided: bool = True
    seed: int = 0
    steps: int = 100

    @property
    def features(self) -> str:
        return " ".join(name for name in ("packed", "strided") if getattr(self, name))


FEATURES = tuple(of_field(name, False, True, name=name, sentence=f"it is {name}") for name in ("packed", "strided"))
ALONE = {"packed strided"}
"""Where a fault shows with the first elements: in calls with both features."""


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (ALONE, ["packed", "strided"]),
        (ALONE | {"packed"}, ["packed"]),
        (ALONE | {"strided"}, ["strided"]),
        # Without either one alone it shows after all: both look like coincidences, and "on every call" would be wrong.
        (ALONE | {"packed", "strided"}, ["packed", "strided"]),
    ],
    ids=["neither", "one", "the other", "both"],
)
def test_a_feature_is_a_coincidence_if_other_elements_show_the_fault_without_it(shown: set, expected: list) -> None:
    def is_wrong(case: Any) -> bool:
        return case.features in (ALONE if case.seed == 0 else shown)

    def judge(case: Any) -> Any:
        wrong = ArrayOutcome(where="y", nature="number", worst=9.0, error=1.0, wrong=1.0)
        return SimpleNamespace(case=case, wrong_arrays=(wrong,) if is_wrong(case) else ())

    experiments = Experiments(FEATURES, judge, Clock(60.0))  # type: ignore[arg-type]
    found = experiments.needed(Toy(), judge(Toy()), is_wrong, is_wrong)
    assert [feature.name for feature in found] == expected
    plain = replace(Toy(), packed=False, strided=False)
    assert not is_wrong(plain) and not is_wrong(replace(plain, seed=1)), "a plain call is always right"
