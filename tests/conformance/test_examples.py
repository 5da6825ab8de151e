"""The adapters of `examples/`, judged by the laws; what the docs show of them is what runs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import reference
from conformance.cli import main

ROOT = Path(reference.__file__).resolve().parents[1]
LAWS = ("value", "gradient", "split_and_carry", "chunk_invariance", "packed")


@pytest.mark.parametrize(("example", "framework"), [("head_first", "torch"), ("head_first_numpy", "numpy")])
def test_a_head_first_kernel_is_judged_through_its_adapter(example: str, framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    target, report = ROOT / "examples" / f"{example}.py", tmp_path / "report.json"
    laws = [word for law in LAWS for word in ("--law", law)]
    options = ("--op", "mlstm", "--dtype", "float32", "--examples", "4", "--max-steps", "130", "--json", str(report))
    result = CliRunner().invoke(main, ["run", str(target), *laws, *options, "--failures", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (judged,) = json.loads(report.read_text())
    assert judged["framework"] == framework
    status = {law["law"]: (law["status"], law["reason"]) for law in judged["laws"]}
    assert status.pop("packed") == (
        "not served",
        "mlstm refuses this call: packed sequences are not supported",
    )
    assert {each for each, _ in status.values()} == {"passed"} and len(status) == 4


def test_the_docs_show_the_adapter_that_runs() -> None:
    # The page is executed with NumPy alone, whose arrays have no transpose of two axes.
    shown = (ROOT / "docs" / "adapters.md").read_text().replace(".swapaxes(", ".transpose(")
    source = (ROOT / "examples" / "head_first.py").read_text()
    adapter = source[source.index("def mlstm(") :]
    assert adapter in shown and len(adapter.splitlines()) <= 12
