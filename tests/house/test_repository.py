"""Files that have to agree: metadata, pinned versions, the Makefile, and the pages and workflows that name them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(PROJECT['version'])}$", citation, re.MULTILINE)
    assert re.search(rf"^license: {re.escape(PROJECT['license'])}$", citation, re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9A-Za-z.]+)", line) for line in lines if not line.startswith("#")]
    assert all(found), "a constraints file holds comments and `name==version` lines"
    return {match[1].lower().replace("_", "-"): match[2] for match in found if match}


def test_every_classifier_is_one_of_the_index() -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= known
    assert len(set(PROJECT["classifiers"])) == len(PROJECT["classifiers"])


ALL = ("torch", "jax", "conformance", "docs", "figures", "test", "dev")


@pytest.mark.parametrize(
    ("name", "extras"),
    [("py311", ALL), ("py312", ALL), ("py313", ALL), ("py314", ALL), ("peers", ("torch", "jax", "conformance"))],
)
def test_every_direct_dependency_is_pinned(name: str, extras: tuple[str, ...]) -> None:
    wanted = PROJECT["dependencies"] + [line for extra in extras for line in EXTRAS[extra]]
    names = {re.split(r"[<>=\[ ;]", line)[0].lower().replace("_", "-") for line in wanted} - {"gatespec"}
    assert not names - pins(name).keys()


def test_the_oldest_versions_are_those_that_the_project_allows() -> None:
    oldest = pins("oldest")
    wanted = [line for extra in ("torch", "jax", "dev") for line in EXTRAS[extra]] + PROJECT["dependencies"]
    floors = dict(re.findall(r"^(torch|triton|jax|numpy)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert floors.keys() == {"torch", "triton", "jax", "numpy"}
    for name, floor in floors.items():
        assert f"{oldest[name]}.".startswith(f"{floor}."), name
    assert f"Python {PROJECT['requires-python'][2:]}:" in (ROOT / "constraints" / "oldest.txt").read_text()


def test_readme_names_the_oldest_and_newest_versions() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    for name, framework in (("torch", "PyTorch"), ("triton", "Triton"), ("jax", "JAX")):
        first, last = (".".join(pins(end)[name].split(".")[:2]) for end in ("oldest", "newest"))
        assert re.search(rf"{framework} {re.escape(first)}(\.\d+)? to {re.escape(last)}\b", readme), framework


TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
NAMING = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / ".github").rglob("*.md"),
    *ROOT.glob(".github/*/*.yml"),
]


@pytest.mark.parametrize("path", NAMING, ids=lambda path: path.name)
def test_a_named_target_is_in_the_makefile(path: Path) -> None:
    # `make test` in backticks, a command of a workflow, or a line of an indented block.
    call = r"(?:`|run: |^    |&& )make(?: --\S+)* ([a-z][a-z-]*)"
    assert {"test", "conformance"} <= TARGETS >= set(re.findall(call, path.read_text(), re.MULTILINE))
