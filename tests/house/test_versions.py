"""The two ends of the supported versions: their files, the table of `make versions`, and the runs of `make matrix`."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the Makefile needs bash")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The tools as modules, which import one another."""
    found = {}
    for name in ("environments", "versions", "matrix"):
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found[name])
        spec.loader.exec_module(found[name])
    return found


def test_the_oldest_versions_are_those_that_the_project_allows(tools: dict[str, ModuleType]) -> None:
    oldest = tools["versions"].pinned(CONSTRAINTS / "oldest.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [line for extra in ("torch", "jax", "dev") for line in EXTRAS[extra]] + project["dependencies"]
    floors = dict(re.findall(r"^(torch|triton|jax|numpy)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert floors.keys() == {"torch", "triton", "jax", "numpy"}
    for name, floor in floors.items():
        assert f"{oldest[name]}.".startswith(f"{floor}."), name
    assert project["requires-python"] == f">={oldest['python']}"


def test_nothing_is_tested_that_is_newer_than_the_newest_tried(tools: dict[str, ModuleType]) -> None:
    versions = tools["versions"]
    newest = versions.pinned(CONSTRAINTS / "newest.txt")
    assert newest.keys() == {"python", *versions.NAMES}
    for path in CONSTRAINTS.glob("py3*.txt"):
        for name, version in versions.pinned(path).items():
            if name in versions.NAMES:
                assert versions.numbers(version) <= versions.numbers(newest[name]), (path.name, name)


def test_the_table_sets_the_index_next_to_what_was_tried(tools: dict[str, ModuleType]) -> None:
    versions = tools["versions"]
    index = versions.pinned(CONSTRAINTS / "newest.txt")
    rows = versions.rows(CONSTRAINTS, index.get, lambda: "3.99 (here)")
    assert versions.moved_on(rows) == []
    assert rows[0][2] == ", ".join(f"3.{path.stem[3:]}" for path in sorted(CONSTRAINTS.glob("py3*.txt")))
    assert [row[0] for row in rows] == ["python", *versions.NAMES]
    torch = {**index, "torch": "2.100.0", "jax": "?"}
    rows = versions.rows(CONSTRAINTS, torch.get, lambda: "3.99 (here)")
    assert versions.moved_on(rows) == ["torch"]
    lines = versions.table(rows).splitlines()
    assert lines[0].split()[:2] == ["package", "oldest"] and len({line.rstrip().count("  ") > 2 for line in lines}) == 1
    assert re.search(r"^torch +2\.11\.0 .* 2\.100\.0$", versions.table(rows), re.MULTILINE)
    assert re.search(r"^python +3\.11 .* 3\.99 \(here\)$", versions.table(rows), re.MULTILINE)


@pytest.mark.parametrize("name", ["oldest", "newest"])
def test_an_end_has_an_environment_of_its_own(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    matrix = tools["matrix"]
    monkeypatch.setattr(matrix, "is_usable", lambda directory: False)
    monkeypatch.setattr(matrix, "find_python", lambda *versions: sys.executable)
    end = matrix.end(name)
    frameworks, project = end.installs()
    pins = ["--constraint", "constraints/oldest.txt"]
    assert end.directory == f".venv-{name}"
    assert frameworks[2 : 4 if name == "oldest" else 3] == (pins if name == "oldest" else ["--upgrade"])
    assert ("--constraint" in project) == (name == "oldest") and project[-1] == ".[torch,jax,test]"
    for part in matrix.PARTS:
        _, dash, module, *rest = matrix.command(end, part)
        assert dash == "-m" and module in ("pytest", "conformance")
        assert all((ROOT / word).exists() for word in rest if word.startswith("tests/"))


def test_a_machine_without_its_python_is_told(tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = tools["matrix"]
    monkeypatch.setattr(matrix, "is_usable", lambda directory: False)
    monkeypatch.setattr(matrix, "find_python", lambda *versions: None)
    with pytest.raises(
        tools["environments"].SetupError, match=r"the oldest versions need Python 3\.11, which was not found"
    ):
        matrix.end("oldest")


def test_every_part_runs_although_one_before_it_fails(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, said = tools["matrix"], []
    monkeypatch.setattr(matrix, "is_usable", lambda directory: False)
    monkeypatch.setattr(matrix, "find_python", lambda *versions: sys.executable)

    def run(line: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(line, int("tests/torch/kernels" in line[-1] and "--ignore" not in line))

    monkeypatch.setattr(matrix.subprocess, "run", run)
    chosen = matrix.End(
        directory=".venv-newest", python=sys.executable, version="3.12", torch=None, jax=True, extras=(), exact=None
    )
    results = matrix.ran(chosen, list(matrix.PARTS), said.append)
    assert results == [("kernels", False), ("torch", True), ("jax", True), ("laws", True)]
    assert len(said) == 4
    assert matrix.news({"torch": "2.16.0", "jax": "0.10.2"}, {"torch": "2.15.0", "jax": "0.12.0.1"}) == [
        "torch==2.16.0"
    ]


def test_the_nightly_run_takes_both_ends_and_readme_names_them(tools: dict[str, ModuleType]) -> None:
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert "end: [oldest, newest]" in nightly and "make matrix END=${{ matrix.end }}" in nightly
    readme = " ".join((ROOT / "README.md").read_text().split())
    for name, framework in (("torch", "PyTorch"), ("triton", "Triton"), ("jax", "JAX")):
        ends = [tools["versions"].pinned(CONSTRAINTS / f"{end}.txt")[name] for end in ("oldest", "newest")]
        first, last = (".".join(version.split(".")[:2]) for version in ends)
        assert re.search(rf"{framework} {re.escape(first)}(\.\d+)? to {re.escape(last)}\b", readme), framework
