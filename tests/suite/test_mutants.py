"""The mutants: each row applies, the committed score is complete and of these rows, and a sample is caught again."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import reference
from conformance.base.options import RunOptions
from conformance.laws import all_laws
from conformance.rows import ROWS, correct, families, foreign, taped
from conformance.rows.row import Row, changes
from tests.calls.registry import all_laws as calls
from tests.suite.mutants.__main__ import mutants_command
from tests.suite.mutants.planting import TENSOR_OPERATIONS, Setting
from tests.suite.mutants.score import SCORE, first_broken, sample, score
from tests.suite.mutants.visibility import why_unseen

SAMPLE = 12
ROTATION = 3
"""Another number tries another sample."""

(HARMLESS,) = changes("""
    @ gru _gru.py _times

    no fault
    - np.einsum("ni,nij->nj", h, W)
    + +np.einsum("ni,nij->nj", h, W)
""")


def committed(setting: Setting = Setting.SPECIFICATION) -> dict:
    return json.loads(SCORE.read_text(encoding="utf-8"))[setting.value]


def test_there_are_enough_mutants_of_every_operation() -> None:
    assert len(ROWS) >= 60
    operations = {law.op for law in (*all_laws(), *calls())}
    assert {mutant.op for mutant in ROWS} <= operations
    assert operations - {mutant.op for mutant in ROWS} == set(), "an operation has laws and no mutant"


def test_no_two_mutants_are_alike() -> None:
    assert len({(mutant.op, mutant.name) for mutant in ROWS}) == len(ROWS)
    assert len({mutant.digest for mutant in ROWS}) == len(ROWS)


NOT_PLANTED = (*correct.ROWS, *foreign.ROWS, *taped.ROWS, *taped.CLIPPED.values(), *families.USUAL)


@pytest.mark.parametrize("row", dict.fromkeys((*ROWS, *NOT_PLANTED)), ids=lambda row: f"{row.op}: {row.name}")
def test_a_row_applies(row: Row) -> None:
    text = (Path(reference.__file__).parent / row.module).read_text(encoding="utf-8")
    changed = row.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_a_row_that_has_rotted_says_so() -> None:
    def rotten(replace: str, function: str = "f") -> Row:
        return Row(op="gru", name="rotten", module="_gru.py", function=function, replace=replace, by="0")

    source = "def f(x):\n    y = x + 1\n    return y * (x + 1)\n"
    with pytest.raises(ValueError, match=r"row 'rotten': what it replaces stands 0 times in f of _gru\.py"):
        rotten("x + 2").applied(source)
    with pytest.raises(ValueError, match="stands 2 times"):
        rotten("x + 1").applied(source)
    with pytest.raises(ValueError, match=r"_gru\.py has no function g"):
        rotten("x + 1", "g").applied(source)


def test_the_committed_score_is_of_the_present_rows_and_whole() -> None:
    found = committed()
    rows = [(row["op"], row["name"], row["digest"]) for row in found["rows"]]
    here = [(mutant.op, mutant.name, mutant.digest) for mutant in ROWS]
    assert rows == here, "run `make mutants` again"
    assert (found["score"], found["caught"], found["mutants"]) == (1.0, len(ROWS), len(ROWS))
    assert found["seeds"] == list(range(10)) and found["needed"] == 9
    assert found["examples"] == RunOptions().examples
    assert all(row["caught"] >= 9 for row in found["rows"])
    assert set(found["unmutated"]) == {mutant.op for mutant in ROWS}
    assert not any(found["unmutated"].values())


@pytest.mark.parametrize("setting", [Setting.REFUSING, Setting.TENSORS], ids=lambda setting: setting.value)
def test_a_committed_score_of_what_can_be_seen_has_all_faults_of_its_operations(setting: Setting) -> None:
    found = committed(setting)
    here = [(mutant.op, mutant.name, mutant.digest) for mutant in ROWS if mutant.op in TENSOR_OPERATIONS]
    told = [(row["op"], row["name"], row["digest"]) for row in (*found["rows"], *found["unseen"])]
    assert sorted(told) == sorted(here), "run `make mutants-adapted` again"
    assert found["caught"] == found["mutants"] == len(found["rows"]) and found["score"] == 1.0
    assert found["seeds"] == list(range(10)) and all(row["caught"] >= 9 for row in found["rows"])
    assert set(found["unmutated"]) == set(TENSOR_OPERATIONS) and not any(found["unmutated"].values())


def test_the_page_tells_the_committed_scores() -> None:
    page = " ".join((Path(reference.__file__).parents[1] / "docs" / "conformance.md").read_text("utf-8").split())
    behind, loops = committed(Setting.REFUSING), committed(Setting.TENSORS)
    faults = len(behind["rows"]) + len(behind["unseen"])
    assert f"Of {faults} faults of the mLSTM" in page
    assert f"sees {behind['mutants']} behind the adapter" in page and f"sees {loops['mutants']} in the loops" in page


def test_hardly_a_mutant_is_caught_by_a_crash_alone() -> None:
    # A wrong shape or label may well raise further on; a fault that does nothing else tests no law.
    crashes = [(row["op"], row["name"]) for row in committed()["rows"] if row["raised"] == row["caught"]]
    assert 20 * len(crashes) <= len(ROWS), crashes


@pytest.mark.parametrize("mutant", sample(ROWS, SAMPLE, ROTATION), ids=lambda mutant: f"{mutant.op}: {mutant.name}")
def test_a_mutant_is_caught(mutant: Row) -> None:
    # What broke when the score was measured goes first: only where it has ceased to are all the others tried.
    recorded = next((row["laws"] for row in committed()["rows"] if row["digest"] == mutant.digest), ())
    broken = first_broken(mutant, RunOptions(ops=(mutant.op,), shrink_seconds=0.0), tuple(recorded))
    assert broken is not None, f"no law of {mutant.op} breaks: {mutant.name}"
    assert broken.law.op == mutant.op and broken.counterexample is not None


@pytest.mark.parametrize("row", correct.ROWS, ids=lambda row: f"{row.op}: {row.name}")
def test_a_correct_row_breaks_no_law(row: Row) -> None:
    # Arithmetic is that of float64, so that this dtype tries how far another order may be off.
    options = RunOptions(ops=(row.op,), laws=("value", "gradient"), dtypes=("float64",), shrink_seconds=0.0)
    broken = first_broken(row, options)
    assert broken is None, broken and broken.reason


@pytest.mark.parametrize("op", ["rev_cumsum", "mlstm_step", "stack_params"])
def test_a_copy_without_a_fault_breaks_no_law(op: str) -> None:
    assert score(None, op, (0,)).passes


@pytest.mark.parametrize("op", ["causal_forget_matrix", "dtilde_matrix"])
def test_a_loop_on_tensors_without_a_fault_breaks_no_law(op: str) -> None:
    pytest.importorskip("torch")
    assert score(None, op, (0,), setting=Setting.TENSORS).passes


def test_why_a_fault_cannot_be_seen_is_told() -> None:
    unseen = [row for row in ROWS if row.op == "rev_cumsum_off" and "backward" in row.function]
    assert why_unseen(unseen[0], Setting.REFUSING) is None
    backward = next(row for row in ROWS if row.function == "rev_cumsum_backward")
    steps = {"replace": "range(y.shape[-1] - 1)", "by": "range(0, y.shape[-1] - 1)"}
    harmless = replace(backward, function="rev_cumsum", **steps)
    assert why_unseen(harmless, Setting.REFUSING) == "no served call has another value or gradient"
    assert why_unseen(backward, Setting.TENSORS) == "no served call reaches it"
    assert why_unseen(replace(HARMLESS, op="stack_params"), Setting.REFUSING) == "its operation is not served"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(mutants_command, arguments)
    return done.exit_code, done.output


def test_the_command_prints_the_score_and_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "score.json"
    status, said = run("--op", "rev_cumsum_off", "--mutant", "late", "--seeds", "2", "--json", str(path))
    assert status == 0
    assert "1 of 1 mutants caught (100%)" in said and "2/2" in said
    found = json.loads(path.read_text(encoding="utf-8"))["specification"]
    assert found["unmutated"] == {"rev_cumsum_off": 0} and found["needed"] == 2
    assert [row["laws"] for row in found["rows"]] == [{"rev_cumsum_off.gradient float64": 2}]
