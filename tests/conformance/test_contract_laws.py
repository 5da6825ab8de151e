"""What gatespec has decided where others may decide otherwise: strangers are told, its own packages are held to it."""

import contextlib
import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import reference
from conformance.cases import Limits, MLSTMCase
from conformance.checker import Checker, LawError
from conformance.cli import main
from conformance.laws import all_laws
from conformance.laws._mlstm_calls import bad_calls as bad_call_rows
from conformance.laws._refusals import check_bad_call
from conformance.options import RunOptions
from conformance.outcome import LawResult
from conformance.runner import run_law
from conformance.targets import load
from tests.suite.calibration.families import drawn

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
LOOP = """
{declared}
import sys
sys.path.insert(0, {root!r})
from tests.suite.strangers.torch_loops import mlstm_loop

mlstm = mlstm_loop()
"""


def run(tmp_path: Path, *options: str, declared: str = "") -> tuple[Result, list[dict]]:
    path, report = tmp_path / "loop.py", tmp_path / "report.json"
    path.write_text(LOOP.format(declared=declared, root=str(ROOT)))
    words = ("run", str(path), "--law", "ties", "--dtype", "float64", "--examples", "8", "--jobs", "1")
    places = ("--json", str(report), "--failures", str(tmp_path / "failures"))
    result = CliRunner().invoke(main, [*words, *places, *options])
    return result, json.loads(report.read_text())[0]["laws"]


def test_a_stranger_that_differs_is_told_so_in_one_line_and_is_not_wrong(tmp_path: Path) -> None:
    result, laws = run(tmp_path)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert said.count("differs from gatespec's contract in: mlstm.ties (float64)") == 1
    assert [law["status"] for law in laws] == ["differs"] and not (tmp_path / "failures").exists()


@pytest.mark.parametrize(("options", "declared"), [(("--contract",), ""), ((), '__conformance__ = "gatespec"')])
def test_who_claims_to_keep_the_contract_has_to(options: tuple[str, ...], declared: str, tmp_path: Path) -> None:
    result, laws = run(tmp_path, *options, declared=declared)
    assert result.exit_code == 1 and [law["status"] for law in laws] == ["failed"]


def test_gatespecs_own_packages_claim_it() -> None:
    assert load("reference", None, "cpu").keeps_contract
    assert load("torch_impl:mlstm", None, "cpu").keeps_contract
    assert not load(str(ROOT / "examples" / "head_first.py"), None, "cpu").keeps_contract


@pytest.mark.parametrize("op", ["mlstm", "mlstm_step", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_judged_on_cases_that_no_decision_of_ours_touches(op: str, dtype: str) -> None:
    for law in all_laws():
        if law.op != op or law.kind != "definition" or law.cases is None or "gradient" not in law.name:
            continue
        for stratum, eager in itertools.product(law.strata, (True, False)):
            limits = Limits(stratum, eager, dtype, 130)
            for case in drawn(law.cases(limits), 16, seed=3):
                assert not getattr(case, "eps", 0) and not getattr(case, "wide_gates", False), law.id
                assert getattr(case, "clipping", None) is None and case.room is None, law.id
                if op != "gru":
                    assert not capped(case, dtype), f"{law.id}: {case.describe()}"


def capped(case: MLSTMCase, dtype: str) -> bool:
    """Whether a step of a dense case reads below the floor where m is above 64."""
    arrays = {name: x.values for name, x in replace(case, lengths=None, S=case.steps).arrays(dtype).items()}
    state = tuple(arrays[name] for name in ("C0", "n0", "m0")) if "C0" in arrays else None
    for t in range(arrays["q"].shape[1]):
        at = slice(t, t + 1)
        q, *others = (arrays[name][:, at] for name in "qkvif")
        with np.errstate(all="ignore"):
            _, state = reference.mlstm(q, *others, initial_state=state, return_state=True)
        nu = np.abs(np.einsum("bnk,bnk->bn", state[1], q[:, 0])) / np.sqrt(q.shape[-1])
        if ((state[2] > 64) & (nu <= np.exp(-64.0))).any():
            return True
    return False


def bad_calls(**functions: Any) -> LawResult:
    from conformance.frameworks.torch import adapter

    (law,) = [law for law in all_laws() if law.id == f"{next(iter(functions))}.bad_calls"]
    return run_law(adapter("stranger", functions, "cpu"), law, "float32", RunOptions())


def test_a_stranger_may_refuse_in_its_own_words_or_answer_what_a_call_can_only_mean() -> None:
    from tests.suite.strangers.torch_loops import gru_loop, mlstm_loop

    assert bad_calls(mlstm=mlstm_loop()).status == "passed"
    assert bad_calls(gru=gru_loop()).status == "passed"


def test_a_target_that_refuses_the_valid_calls_too_has_not_been_judged_by_bad_ones() -> None:
    from tests.suite.strangers.torch_loops import gru_loop

    def refuses(*arrays: Any, **options: Any) -> Any:
        raise NotImplementedError("one head only")

    def without_packing(*arrays: Any, cu_seqlens: Any = None, **options: Any) -> Any:
        if cu_seqlens is not None:
            raise NotImplementedError("no packing")
        return gru_loop()(*arrays, **options)

    nothing = bad_calls(gru=refuses)
    assert nothing.status == "not served" and nothing.examples == 0 and "one head only" in str(nothing.reason)
    some = bad_calls(gru=without_packing)
    assert some.status == "passed" and some.examples > some.refused.cases > 0


def test_an_answer_to_a_call_that_fits_nothing_is_wrong() -> None:
    from tests.suite.strangers.torch_loops import mlstm_loop

    def nothing(q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
        try:
            return mlstm_loop()(q, k, v, *others, **options)
        except RuntimeError:
            return torch.zeros_like(v), (torch.zeros(1),) * 3

    from conformance.frameworks.torch import adapter

    checker, found = Checker(adapter("stranger", {"mlstm": nothing}, "cpu"), "float32"), []
    for row in bad_call_rows():
        with contextlib.suppress(LawError):
            check_bad_call(checker, row)
            continue
        found.append(row.label)
    assert {"`C` of another V", "`k` of another K", "`m` of another B"} <= set(found), found
    assert "a negative eps" not in found


def test_a_wrong_answer_to_mixed_dtypes_is_wrong() -> None:
    def ignores_a_dtype(x: Any) -> Any:
        return x.flip(-1).cumsum(-1).flip(-1) if x.dtype.is_floating_point else torch.zeros(x.shape)

    result = bad_calls(rev_cumsum=ignores_a_dtype)
    assert result.status == "failed" and "an integer array" in (result.reason or "")


def in_chunks(*faults: str) -> Any:
    """An mLSTM whose weights are sums of gates from which the stabiliser is subtracted last."""
    from tests.suite.strangers.torch_loops import mlstm_chunks

    return lambda *tokens, chunk_size=None, **options: mlstm_chunks(*faults, length=chunk_size or 16)(
        *tokens, **options
    )


def by_steps() -> Any:
    from tests.suite.strangers.torch_loops import mlstm_loop

    return mlstm_loop()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (by_steps, "shifted_gates"),
        (in_chunks, "shifted_gates"),
        (partial(in_chunks, "differences of cumulative sums"), "cancelling_gates"),
        (in_chunks, "chunks_of_large_gates"),
    ],
)
def test_rounded_sums_of_large_gates_differ_and_are_not_wrong(make: Any, name: str) -> None:
    """Forms that anybody would write, in float32; whoever claims the contract has to do without such sums."""
    from conformance.frameworks.torch import adapter

    (law,) = [law for law in all_laws() if law.id == f"mlstm.{name}"]
    target = adapter("stranger", {"mlstm": make()}, "cpu")
    options = RunOptions(examples=8, shrink_seconds=0.0)
    told = run_law(target, law, "float32", options)
    assert told.status == "differs" and told.worst is not None and told.worst > 1, told.reason
    assert run_law(target, law, "float32", replace(options, contract=True)).status == "failed"
