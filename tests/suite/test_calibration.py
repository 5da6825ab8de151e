"""The budget refuses nothing that is correct, and the calibration that says so is the one of this very budget."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.base.dtypes import rounded
from conformance.cases import FwbwCase, GRUCase, MLSTMCase, SLSTMCase
from conformance.operations import OPERATIONS
from tests.suite.calibration import results, variants_mlstm
from tests.suite.calibration.__main__ import CASES, calibrate_command
from tests.suite.calibration.arithmetic import (
    Arithmetic,
    compensated_sum,
    pairwise_sum,
    plain_sum,
    sequential_sum,
)
from tests.suite.calibration.families import SHARES, Family, families
from tests.suite.calibration.scoring import calibrate, judged
from tests.suite.calibration.subjects import SUBJECTS

KEPT = results.load(results.COMMITTED)
PAIRS = [(name, variant) for name, subject in SUBJECTS.items() for variant in subject.variants]
INDUCTOR = "inductor"
"""In the names of variants that take a minute to compile: `make calibration` runs them, these tests do not."""

GRU, SATURATED = {"B": 2, "state": True, "gates": "saturated"}, {"H": 3, "heads": (6, 3, 2, 1, 6, 2)}
COMPILED = ("gru, few shapes, compiled", "JAX scan, XLA")
FWBW = ("mlstm_fwbw_custom_grad", "pairwise, a tree of segments")
OF_FWBW = {"return_state": True, "use_initial_state": True}
REFUSED_ONCE = [
    (*COMPILED, "float64", GRUCase(**GRU, **SATURATED, S=5, scale=2.0, cotangents="output only")),
    (*COMPILED, "float64", GRUCase(**GRU, **SATURATED, S=5, scale=2.0, cotangents="one step", seed=4264)),
    (*COMPILED, "float64", GRUCase(**GRU, **SATURATED, S=65, scale=2.0, cotangents="output only", seed=1852)),
    (*COMPILED, "float32", GRUCase(**GRU, **SATURATED, S=65, cotangents="one step", seed=47664)),
    (
        "gru, products in TF32",
        "PyTorch loop, autograd",
        "float32",
        GRUCase(**GRU, S=130, H=5, heads=(2,) * 6, clipping=0.1, cotangents="one step", seed=12738),
    ),
    (
        "mlstm, few shapes, compiled",
        "JAX, all steps at once, XLA",
        "float32",
        MLSTMCase(2, 5, 3, 3, 2, state="random", gates="large m", cotangents="output only", seed=1394),
    ),
    (
        *FWBW,
        "float64",
        FwbwCase(
            MLSTMCase(2, 64, 1, 1, 11, state="random", gates="large m", held=0.5, scale=4.0, seed=41525), **OF_FWBW
        ),
    ),
    (
        *FWBW,
        "float64",
        FwbwCase(
            MLSTMCase(3, 65, 1, 1, 1, state="random", gates="extreme", held=0.2, cotangents="output only", seed=39438),
            **OF_FWBW,
        ),
    ),
    (
        "slstm_step",
        "four weights as one, through m",
        "float64",
        SLSTMCase(
            3,
            1,
            2,
            5,
            state="random",
            gates="remembering",
            scale=0.01,
            forget_gate="exp",
            cotangents="state only",
            seed=221,
        ),
    ),
]
"""Cases on which a correct variant was refused by earlier formulas.

They did not know the errors of XLA's tanh, nor those that reach the other steps of a GRU through its weights, nor the
rounding of the log weight with which each step reads the initial memory, nor that of m just below the floor of |n·q̂|,
nor how many roundings a product with the weights of the sLSTM has.
"""


def test_every_operation_is_calibrated() -> None:
    assert {subject.op for subject in SUBJECTS.values()} == set(OPERATIONS)
    assert set(KEPT) <= set(SUBJECTS)


@pytest.mark.parametrize(("name", "variant"), PAIRS)
def test_the_committed_calibration_is_of_this_budget_and_found_no_false_alarm(name: str, variant: str) -> None:
    subject = SUBJECTS[name]
    kept = KEPT[name]
    assert kept["constants"] == results.constants(), "a constant changed: run `make calibration`"
    assert kept["formula"] == results.formula(subject.op, subject.modules), (
        "the formula changed: run `make calibration`"
    )
    assert set(kept["variants"]) <= set(subject.variants)
    found = kept["variants"][variant]
    assert found["cases"] >= CASES == 10_000
    assert found["false_alarms"] == 0
    assert set(found["worst_by_dtype"]) == set(subject.dtypes)


def test_readme_says_how_many_variants_were_judged() -> None:
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    said = f"{len(PAIRS)} correct variants of the operations were judged on 10,000 cases each"
    assert f"{said}, and none was refused" in readme


@pytest.mark.parametrize(("name", "variant", "dtype", "case"), REFUSED_ONCE)
def test_what_was_refused_once_passes(
    name: str, variant: str, dtype: str, case: GRUCase | MLSTMCase | FwbwCase | SLSTMCase
) -> None:
    subject = SUBJECTS[name]
    one = replace(subject, variants={variant: subject.variants[variant]})
    found = judged(one, Family(dtype, "small", (case,)))[variant]
    assert max(ratio.max() for ratio, _ in found.values()) < 1


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_has_variants_by_hand_and_by_both_frameworks(op: str) -> None:
    names = [variant for subject in SUBJECTS.values() if subject.op == op for variant in subject.variants]
    assert sum("PyTorch" not in name and "JAX" not in name for name in names) >= 6
    for said in ("autograd", "XLA", INDUCTOR):
        assert any(said in name for name in names), said


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_sample_of_cases_raises_no_false_alarm(name: str, request: pytest.FixtureRequest) -> None:
    subject = SUBJECTS[name]
    variants = {variant: form for variant, form in subject.variants.items() if INDUCTOR not in variant}
    if not variants:
        pytest.skip("its variants take a minute to compile")
    sample = replace(subject, variants=variants, strata=tuple(s for s in subject.strata if s != "long"))
    if not subject.eager and request.config.getoption("grids") != "whole":
        # Every dtype of every stratum would compile programs of its own: subjects share them out.
        at = [*SUBJECTS].index(name)
        dtype, stratum = (values[at % len(values)] for values in (sample.dtypes, sample.strata))
        sample = replace(sample, dtypes=(dtype,), strata=(stratum,))
    for score in calibrate(sample, 30, seed=11):
        assert score.cases >= 28
        assert not score.refused, (score.variant, score.refused[0])
        assert 0 < score.worst_ratio <= 1


def test_a_difference_of_running_sums_is_refused() -> None:
    """Σ_{s≥t} x as the total less the earlier terms: right on paper, off by the roundoff of the total."""

    def cancelling(x: np.ndarray) -> np.ndarray:
        late = np.cumsum(x[..., ::-1], axis=-1, dtype=x.dtype)[..., ::-1]
        return x.sum(axis=-1, keepdims=True, dtype=x.dtype) - late + x

    subject = replace(SUBJECTS["rev_cumsum"], variants={"cancelling": cancelling}, dtypes=("float32",))
    (score,) = calibrate(subject, 200, seed=0)
    assert score.false_alarms > 10


def test_a_memory_in_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 values: 16-bit operands may hide it in other dtypes, where the law `accumulation` finds it."""

    def rounded_memory(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = x + y
        return rounded(total, "bfloat16").astype(total.dtype) if total.ndim > 1 else total, np.zeros_like(total)

    monkeypatch.setattr(variants_mlstm, "two_sum", rounded_memory)
    compensated = {"compensated": SUBJECTS["mlstm"].variants["compensated"]}
    subject = replace(SUBJECTS["mlstm"], variants=compensated, dtypes=("float32",), strata=("chunk",))
    (score,) = calibrate(subject, 32, seed=0)
    assert score.false_alarms > score.cases / 2


def test_an_array_is_taken_apart_by_cases() -> None:
    """One wrong element of one of sixteen cases is one false alarm, in every operation."""
    for op in OPERATIONS:
        subject = SUBJECTS[op]
        variant = next(iter(subject.variants.values()))
        (family,) = _families(op, ("small",), ("float32",), 16)
        for call in subject.calls(family, subject.precision):
            outputs, _ = call.run(variant)
            for where in call.compared[0]:
                wrong = np.zeros(outputs[where].shape)
                wrong.reshape(-1)[wrong.size // 2 :][:1] = 1.0
                rows = call.by_case(where, wrong)
                assert len(rows) == len(family.cases) == 16, (op, where)
                assert rows.sum() == rows.max(initial=0.0) == (1.0 if wrong.size else 0.0), (op, where)


def _families(op: str, strata: tuple[str, ...], dtypes: tuple[str, ...], count: int) -> list[Family]:
    label, (strategy, _) = next(iter(SUBJECTS[op].strategies.items()))
    return list(families(strategy, f"{op} {label}", strata, dtypes, count, seed=0))


def test_cases_come_in_the_suites_proportions_and_in_families_of_one_shape() -> None:
    found = _families("mlstm", ("small", "chunk", "long"), ("float32", "float16"), 200)
    for stratum, share in SHARES.items():
        assert sum(len(family.cases) for family in found if family.stratum == stratum) == 200 * share
    for family in found:
        assert len({(case.B, case.S, case.N, case.K, case.V, case.state, case.eps) for case in family.cases}) == 1
    assert len({case.gates for family in found for case in family.cases}) > 5


@pytest.mark.parametrize("add", [plain_sum, sequential_sum, pairwise_sum, compensated_sum])
def test_sums_are_computed_in_their_own_dtype(add) -> None:
    x = np.float32(1) + np.arange(7, dtype=np.float32).reshape(7, 1)
    assert add(x, 0).dtype == np.float32 and add(x, 0).tolist() == [28.0]
    assert add(x[:0], 0).tolist() == [0.0]


def test_a_compensated_sum_keeps_what_a_plain_one_loses() -> None:
    x = np.array([1.0, 1e8, 1.0, -1e8], dtype=np.float32)
    assert compensated_sum(x, 0) == 2 and sequential_sum(x, 0) != 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_operand_is_rounded_to_the_significand_of_its_dtype(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=500).astype(np.float32)
    assert np.array_equal(Arithmetic(dtype, operands=True).operand(x), rounded(x, dtype).astype(np.float32))
    assert Arithmetic(dtype).operand(x) is x and Arithmetic("float32", operands=True).operand(x) is x


def test_the_command_measures_keeps_and_does_not_measure_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    arguments = ["--op", "rev_cumsum", "--variant", "sequential", "--cases", "40", "--json", str(kept)]
    first = CliRunner().invoke(calibrate_command, arguments)
    assert first.exit_code == 0, first.output
    assert "0 false alarms" in first.output
    written = json.loads(kept.read_text())
    assert written["rev_cumsum"]["variants"]["sequential"]["cases"] == 40
    written["rev_cumsum"]["variants"]["sequential"]["false_alarms"] = 3
    kept.write_text(json.dumps(written))
    assert CliRunner().invoke(calibrate_command, arguments).exit_code == 1


def test_an_unknown_operation_exits_2_with_the_names() -> None:
    found = CliRunner().invoke(calibrate_command, ["--op", "mlsmt"])
    assert found.exit_code == 2 and "name one of rev_cumsum" in found.output


def test_the_hash_of_the_formula_sees_code_and_not_prose(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    hashes = []
    for text in ('"""One."""\nK = 3\n', '"""Two."""\nK = 3  # why\n', '"""One."""\nK = 4\n'):
        module.write_text(text)
        hashes.append(results.code_of(module))
    assert hashes[0] == hashes[1] != hashes[2]
