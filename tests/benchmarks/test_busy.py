"""The times next to busy processes: those processes compute, and what was measured is kept and drawn."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from benchmarks.command import main
from benchmarks.costs import busy
from benchmarks.speed import cases, results
from benchmarks.speed.operations import Case


def test_busy_processes_compute_until_they_are_ended() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with busy.busy(2):
        time.sleep(1)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > before + 0.2


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="it reads /proc")
def test_busy_processes_end_with_the_process_that_began_them() -> None:
    body = "import time\nfrom benchmarks.costs.busy import busy\nwith busy(2): print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, cwd=busy.ROOT) as parent:
        try:
            assert parent.stdout is not None
            parent.stdout.readline()
            listed = Path(f"/proc/{parent.pid}/task").glob("*/children")
            begun = [number for each in listed for number in each.read_text().split()]
        finally:
            parent.kill()
    assert len(begun) == 2
    deadline = time.monotonic() + 20
    while any(map(_runs, begun)):
        assert time.monotonic() < deadline, "the busy processes go on"
        time.sleep(0.05)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_busy_process_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "WORK", "print()")
    with pytest.raises(RuntimeError, match="ended too early"), busy.busy(1):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)


def test_the_command_adds_its_rows_and_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cases.SHAPES, "busy", (Case("gru", 1, 9, 1, 4, 4), Case("mlstm", 1, 32, 1, 4, 4)))
    monkeypatch.setattr(busy, "BACKENDS", ("torch",))
    path, page = tmp_path / "cpu.json", tmp_path / "cpu-speed.md"
    path.write_text(json.dumps({"format": results.FORMAT, "rows": [{"case": "another"}]}))
    page.write_text(f"Before.\n\n{busy.BEGIN}\n{busy.END}\n\nAfter.\n")
    words = ["busy", "--rounds", "3", "--json", str(path), "--page", str(page)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    document = results.read(path)
    assert document["rows"] == [{"case": "another"}], "the suite's own rows are kept"
    timed = {(row["case"].split()[0], row["contender"]): row for row in document["busy"]["rows"] if not row["reason"]}
    assert {("gru", "torch_impl (torch)"), ("gru", "torch.nn.GRU"), ("mlstm", "torch_impl (torch)")} <= {*timed}
    for row in timed.values():
        assert 0 < row["alone"] and 0 < row["busy"] <= row["slowest"]
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and text.count("| gru ") >= 2
    assert busy.section(document) in text


def test_the_page_says_what_the_committed_results_say(tmp_path: Path) -> None:
    page = tmp_path / "cpu-speed.md"
    page.write_text(busy.PAGE.read_text())
    busy.rewrite(page, results.read(busy.ROOT / "benchmarks" / "results" / "cpu.json"))
    assert page.read_text() == busy.PAGE.read_text(), "python -m benchmarks busy"
