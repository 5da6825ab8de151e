"""What gatespec has decided where others may decide otherwise: strangers are told, its own packages are held to it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import main
from conformance.targets import load

pytest.importorskip("torch")

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
