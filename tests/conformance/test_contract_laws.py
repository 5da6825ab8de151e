"""What gatespec has decided where others may decide otherwise: strangers are told, its own packages are held to it."""

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
from conformance.base.options import RunOptions
from conformance.cases import CLIPPING, Limits, MLSTMCase
from conformance.cli import main
from conformance.frameworks.targets import load
from conformance.judge.draws import sampled
from conformance.laws import all_laws
from tests.conformance.judging import judged

torch = pytest.importorskip("torch")
from tests.suite.strangers.torch_loops import (  # noqa: E402
    gru_loop,
    mlstm_chunks,
    mlstm_loop,
)

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
    words = ("run", str(path), "--op", "mlstm", "--law", "ties", "--dtype", "float64", "--examples", "8", "--jobs", "1")
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


@pytest.mark.parametrize("op", ["mlstm", "mlstm_step", "gru", "slstm", "slstm_step"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_judged_on_cases_that_no_decision_of_ours_touches(op: str, dtype: str) -> None:
    for law in all_laws():
        if law.op != op or law.kind != "definition" or law.cases is None or "gradient" not in law.name:
            continue
        for stratum, eager in itertools.product(law.strata, (True, False)):
            limits = Limits(stratum, eager, dtype, 130)
            for case in sampled(law.cases(limits), 3, 16):
                assert not getattr(case, "eps", 0) and not getattr(case, "wide_gates", False), law.id
                assert getattr(case, CLIPPING, None) is None and case.room is None, law.id
                if op.startswith("mlstm"):
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


def in_chunks(*faults: str) -> Any:
    """An mLSTM whose weights are sums of gates from which the stabiliser is subtracted last."""
    return lambda *tokens, chunk_size=None, **options: mlstm_chunks(*faults, length=chunk_size or 16)(
        *tokens, **options
    )


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (mlstm_loop, "shifted_gates"),
        (in_chunks, "shifted_gates"),
        (partial(in_chunks, "differences of cumulative sums"), "cancelling_gates"),
        (in_chunks, "chunks_of_large_gates"),
    ],
)
def test_rounded_sums_of_large_gates_differ_and_are_not_wrong(make: Any, name: str) -> None:
    """Forms that anybody would write, in float32; whoever claims the contract has to do without such sums."""
    options = RunOptions(examples=8, shrink_seconds=0.0)
    told = judged(f"mlstm.{name}", "float32", options, mlstm=make())
    assert told.status == "differs" and told.worst is not None and told.worst > 1, told.reason
    held = judged(f"mlstm.{name}", "float32", replace(options, contract=True), mlstm=make())
    assert held.status == "failed"


ROUNDING = 2.3e-16


def status(error: float, *, own: bool) -> str:
    """The result of `gru.fixed_point` for a correct GRU whose results all have a relative error."""
    exact = gru_loop()

    def gru(*arrays: Any, **options: Any) -> Any:
        return tuple(x * (1 + error) for x in exact(*arrays, **options))

    options = RunOptions(examples=8, max_steps=40, shrink_seconds=0.5)
    return judged("gru.fixed_point", "float64", options, own=own, gru=gru).status


def test_a_stranger_may_round_what_it_keeps() -> None:
    assert status(ROUNDING, own=False) == status(0.0, own=False) == "passed"
    assert status(1e-9, own=False) == "failed"


def test_the_projects_own_may_not() -> None:
    assert status(0.0, own=True) == "passed"
    assert status(ROUNDING, own=True) == "failed"
