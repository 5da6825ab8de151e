"""Cases: they can be written down, spread over every branch, and come in all sizes."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from conformance import cases
from conformance.base.options import RunOptions
from conformance.cases import FwbwCase, MLSTMCase, SumCase
from conformance.frameworks.implementation import Implementation
from conformance.judge.draws import planned, sampled
from conformance.laws import Law, all_laws
from conformance.laws._answers import expected_gradient
from conformance.laws.checker import Checker
from conformance.operations.fwbw import FWBW
from conformance.operations.mlstm import MLSTM
from conformance.tolerance.budget import Expected

BY_BRANCH = (
    "mlstm.gradient",
    "mlstm.chunk_invariance",
    "mlstm.packed_gradient",
    "mlstm_step.gradient",
    "fwbw.gradient",
    "fwbw.by_hand",
    "fwbw.keep",
    "fwbw.zero_state",
)
OPERATIONS = ("rev_cumsum", "causal_forget_matrix", "dtilde_matrix", "mlstm", "mlstm_step", "fwbw", "gru")
OF_ALL_KINDS = ("value", "gradient", "sequence", "packed", "packed_gradient", "by_hand", "chunk_invariance")
DRAWN = [law for law in all_laws() if law.cases is not None]


def named(law: Law) -> str:
    return law.id


def test_a_class_that_never_joined_is_refused() -> None:
    with pytest.raises(TypeError, match="has not joined"):
        cases.to_json(object())
    with pytest.raises(ValueError, match="no kind of case named 'Case'"):
        cases.from_json({"kind": "Case"})
    with pytest.raises(ValueError, match="named MLSTMCase already"):
        cases.register()(MLSTMCase)


class Target(Implementation):
    """A target that nobody calls."""

    framework = "numpy"
    layouts = ("contiguous",)
    keeps_contract = True


class Collector:
    """The cases on which a law is tried."""

    def __init__(self, eager: bool, dtype: str, law: Law, options: RunOptions):
        target = Target("a target", {})
        target.eager = eager
        self.checker = Checker(target, dtype)
        draws = planned(law, dtype, target, options)
        draws = [draw for draw in draws if not draw.shrinks_only]
        self.cases = [case for draw in draws for case in sampled(draw.cases, draw.seed, draw.examples)]


@cache
def drawn(law: Law, eager: bool, dtype: str, seed: int) -> Collector:
    """The cases on which a law is tried, at the default number of examples."""
    return Collector(eager, dtype, law, RunOptions(seed=seed))


def law_of(name: str) -> Law:
    return next(law for law in all_laws() if law.id == name)


def seeds_of(dtype: str) -> range:
    return range(5 if dtype == "float32" else 2)


def runs(law: Law, eager: bool) -> Iterator[tuple[str, int, Collector]]:
    for dtype in law.usual_dtypes(eager):
        for seed in seeds_of(dtype) if dtype in ("float32", "bfloat16") else ():
            yield dtype, seed, drawn(law, eager, dtype, seed)


def gradient_of(checker: Checker, case: FwbwCase | MLSTMCase) -> Expected:
    return expected_gradient(FWBW if isinstance(case, FwbwCase) else MLSTM, checker, case)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", BY_BRANCH)
def test_each_branch_has_a_tenth_of_the_elements_and_kinks_are_rare(name: str, eager: bool) -> None:
    all_kinks, all_elements = 0, 0
    for dtype, seed, collector in runs(law_of(name), eager):
        counts, kinks, elements = Counter(), 0, 0
        for case in collector.cases:
            expected = gradient_of(collector.checker, case)
            counts.update(expected.spread)
            kinks, elements = kinks + expected.kinks, elements + expected.elements
        steps, attained = counts["above"] + counts["floor"], counts["carry"] + counts["write"]
        shares = {branch: counts[branch] / steps for branch in ("above", "floor")}
        shares |= {branch: counts[branch] / attained for branch in ("carry", "write", "m0")}
        assert min(shares.values()) >= 0.1, (dtype, seed, shares)
        # One run of a step has 120 elements, of which the two of a token share a normaliser.
        assert kinks <= max(0.01 * elements, 2), (dtype, seed, kinks, elements)
        all_kinks, all_elements = all_kinks + kinks, all_elements + elements
    assert all_kinks <= 0.01 * all_elements, (all_kinks, all_elements)


@pytest.mark.parametrize("name", ["mlstm.eps_gradient", "mlstm_step.eps_gradient"])
def test_kinks_are_rare_among_cases_with_eps(name: str) -> None:
    for dtype, seed, collector in runs(law_of(name), eager=True):
        expected = [gradient_of(collector.checker, case) for case in collector.cases]
        kinks, elements = (sum(getattr(each, count) for each in expected) for count in ("kinks", "elements"))
        assert kinks <= 0.01 * elements, (dtype, seed, kinks, elements)


def kinds(case: Any) -> set[str]:
    """The properties of a case that no law may miss."""
    inner = getattr(case, "inner", case)
    found = {"long"} if inner.steps >= 1000 else set()
    if inner.steps < 1:
        return found
    if isinstance(inner, SumCase):
        return found | {{"ordinary": "well-conditioned", "small": "small"}.get(inner.values, "")} - {""}
    if inner.gates == "ordinary" and inner.scale == 1 and inner.cotangents == "dense":
        found.add("well-conditioned")
    return found | ({"small"} if inner.gates == "small" and inner.scale < 0.1 else set())


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
@pytest.mark.parametrize("law", [law for law in DRAWN if law.name in OF_ALL_KINDS and law.op in OPERATIONS], ids=named)
def test_no_law_misses_long_well_conditioned_or_small_inputs(law: Law, eager: bool) -> None:
    for seed in range(2):
        found = set().union(*(kinds(case) for case in drawn(law, eager, "float32", seed).cases))
        assert found >= {"well-conditioned", "small"} | ({"long"} if "long" in law.strata else set()), seed


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_no_case_is_longer_than_it_may_be(eager: bool) -> None:
    for law in DRAWN:
        collector = Collector(eager, "float32", law, RunOptions(max_steps=40, examples=4))
        assert max((getattr(case, "steps", 0) for case in collector.cases), default=0) <= 40, law.id


@pytest.mark.parametrize("law", all_laws(), ids=named)
def test_the_cases_of_every_law_come_back_from_json(law: Law) -> None:
    found = law.rows() if law.rows is not None else drawn(law, False, "float32", 0).cases
    for case in found:
        again = cases.from_json(json.loads(json.dumps(cases.to_json(case))))
        assert again.describe() == case.describe() and type(again) is type(case)
        assert law.rows is not None or again == case
