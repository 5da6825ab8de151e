"""The sizes that people use: every value is tried, faults that begin with one are caught and named, `--sizes` too."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_impl
from conformance import oracle
from conformance.base.exceptions import UsageError
from conformance.base.options import QUICK_EXAMPLES, RunOptions
from conformance.cases import MLSTMCase, _recurrence, _usual
from conformance.diagnosis.diagnose import diagnose
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.draws import planned, sampled, usual_rows
from conformance.judge.runner import Runner, run
from conformance.judge.selection import agenda, options_of
from conformance.laws import EVERY, FEW, all_laws
from conformance.operations import OPERATIONS
from conformance.oracle import _large
from conformance.rows.row import Row
from conformance.rows.sizes import ROWS
from conformance.tolerance.budget import Precision
from tests.grids import larger
from tests.suite.mutants.planting import planted

TABLES = {name: table for name, table in vars(_usual).items() if isinstance(table, _usual.Sizes)}
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
MOST_MISSED = len(ROWS) // 2


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_value_is_in_a_row_and_the_first_rows_have_the_largest(name: str, seed: int) -> None:
    table = TABLES[name]
    rows = _usual.rows_of(table, seed)
    assert len(rows) <= EVERY
    for names, values in table.values.items():
        each = names.split(", ")
        found = [tuple(row[one] for one in each) for row in rows]
        wanted = [value if len(each) > 1 else (value,) for value in values]
        assert set(wanted) == set(found)
        assert any(row in wanted[:2] for row in found[:FEW]), f"no large {names} among the first rows"
    if "PACKED" in name:
        assert {row["B"] for row in rows[:FEW]} == set(_usual.PACKED)


def test_the_laws_of_values_gradients_packing_states_and_steps_are_tried_on_usual_sizes() -> None:
    tried = {law.id for law in all_laws() if law.usual}
    for op in ("mlstm", "gru", "slstm"):
        laws = ("value", "gradient", "packed", "packed_gradient", "split_and_carry")
        assert {f"{op}.{law}" for law in laws} <= tried
    assert {"mlstm_step.gradient", "slstm_step.gradient", "fwbw.gradient", "gru.reset_after"} <= tried
    assert {f"{op}.{law}" for op in ("rev_cumsum", "dtilde_matrix") for law in ("value", "gradient")} <= tried


def _mlstm_without(limit: int, letter: str) -> Any:
    """An mLSTM that is wrong beyond a size."""

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        if letter == "K":
            k = torch.where(torch.arange(k.shape[-1]) < limit, k, 0.0)
        if letter == "N":
            v = torch.where(torch.arange(v.shape[-2])[:, None] < limit, v, 0.0)
        if letter == "B" and "cu_seqlens" not in options:
            v = torch.where(torch.arange(len(v))[:, None, None, None] < limit, v, 0.0)
        if letter == "chunk_size" and (options.get("chunk_size") or 0) > limit:
            v = _gradient_off_by_a_little(v)
        return torch_impl.mlstm(q, k, v, i, f, **options)

    return TorchImplementation("stranger", {"mlstm": mlstm}, "cpu")


def _gradient_off_by_a_little(x: torch.Tensor) -> torch.Tensor:
    return x * 1.02 - (0.02 * x).detach()


@pytest.mark.parametrize(
    ("letter", "limit", "where"),
    [
        ("K", 64, "K > 64"),
        larger("K", 100, "K > 100"),
        larger("N", 4, "N > 4"),
        ("B", 8, "B > 8"),
        ("chunk_size", 128, "chunk_size > 128"),
    ],
)
def test_the_diagnosis_names_the_size(letter: str, limit: int, where: str) -> None:
    target, aspect = _mlstm_without(limit, letter), "gradient" if letter == "chunk_size" else "value"
    options = RunOptions(ops=("mlstm",), laws=("value", "gradient"), dtypes=("float32",), shrink_seconds=2.0)
    found = diagnose(target, options, list(run(target, options)))
    said = [cause.sentence for cause in found.causes]
    assert any(where in each and f"The {aspect} of mlstm is wrong" in each for each in said), said


def _caught_quickly(mutant: Row) -> bool:
    options = RunOptions(ops=(mutant.op,), quick=True, examples=QUICK_EXAMPLES, shrink_seconds=0.0)
    with planted(mutant) as implementation:
        runner = Runner(implementation, options)
        return any(runner.result(law, dtype).status == "failed" for law, dtype in agenda(implementation, options))


@pytest.mark.long
def test_a_quick_run_catches_half_of_the_faults_that_begin_with_a_size() -> None:
    missed = [f"{mutant.op}: {mutant.name}" for mutant in ROWS if not _caught_quickly(mutant)]
    assert len(missed) <= MOST_MISSED, missed


def test_a_wrong_list_of_sizes_is_refused() -> None:
    for text in ("K", "K=0", "K=1,K=2", "Q=3", "K=-1", "K=1.5", ""):
        with pytest.raises(UsageError, match=re.escape(f"--sizes {text!r}")):
            options_of(sizes=text)
    with pytest.raises(UsageError, match="no law that --op and --law keep is tried at chosen sizes"):
        options_of(sizes="K=64", laws=("linearity",), ops=("mlstm",))


def test_chosen_sizes_are_those_of_every_call() -> None:
    options = options_of(sizes="B=2,S=700,N=3,K=5,V=7,H=6", ops=("mlstm", "gru", "slstm"))
    target = TorchImplementation(
        "ours",
        {name: getattr(torch_impl, name) for name in OPERATIONS if "fwbw" not in name and hasattr(torch_impl, name)},
        "cpu",
    )
    for law, dtype in agenda(target, options):
        assert dtype == "float32"
        assert usual_rows(law, dtype, target, options) == 1
        draws = [draw for draw in planned(law, dtype, target, options) if not draw.shrinks_only]
        (case,) = [case for draw in draws for case in sampled(draw.cases, draw.seed, draw.examples)]
        assert (case.sequences, case.steps, case.N) == (2, 700, 3)
        assert (case.K, case.V) == (5, 7) if isinstance(case, MLSTMCase) else case.H == 6


def test_a_large_call_has_the_oracles_answer_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MLSTMCase(2, 60, 3, 8, 5, state="random", gates="changing", distinct=2)
    call, precision = OPERATIONS["mlstm"].call_of(case, "float32"), Precision("float32", 60)
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    assert np.array_equal(arrays["k"][:, :, 2], arrays["k"][:, :, 0]) or np.array_equal(
        arrays["k"][:, :, 2], arrays["k"][:, :, 1]
    )
    whole = oracle.mlstm(arrays, {}, precision), oracle.mlstm_gradient(arrays, {}, cotangents, precision)
    monkeypatch.setattr(_large, "WORK", 8 * 5 * 13)
    parts = oracle.mlstm(arrays, {}, precision), oracle.mlstm_gradient(arrays, {}, cotangents, precision)
    for one, other in zip(whole, parts, strict=True):
        assert one.values.keys() == other.values.keys() == other.slack.keys()
        for name, x in one.values.items():
            assert np.allclose(other.values[name], x, rtol=1e-12, atol=1e-12)
            assert other.slack[name].shape == x.shape


def test_the_page_has_the_table_of_sizes() -> None:
    told = {
        "K × V of the mLSTM": ", ".join(f"{K} × {V}" for K, V in _usual.HEAD_DIMS),
        "chunk size with S": ", ".join(f"{L or 'default'} with {S}" for L, S in _usual.CHUNKS),
    }
    lists = {
        "N": _usual.HEADS,
        "heads that a shared one serves": tuple(dict.fromkeys(_recurrence.SERVED)),
        "H of the GRU and the sLSTM, K, V of linear attention, features of a stated recurrence": _recurrence.FEATURES,
        "S of the GRU, the sLSTM, linear attention and a stated recurrence": _usual.STEPS,
        "B": _usual.BATCHES,
        "packed sequences, some empty, some of one step": _usual.PACKED,
        "S of the scans": _usual.SCAN_SIZES.values["S"],
        "S of the decay matrices": _usual.DECAY_SIZES.values["S"],
    }
    told |= {size: ", ".join(map(str, values)) for size, values in lists.items()}
    page = PAGE.read_text(encoding="utf-8")
    for size, values in told.items():
        assert f"| {size} | {values} |" in page
