"""The levels of the suite, as CONTRIBUTING draws them: imports run down, and never in a circle."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

from tests.house.test_imports import imports, module_name

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "conformance"
LOOSE = {"__init__", "__main__", "cli", "pytest_plugin"}
"""The modules that stand in no folder: the entrances."""


def drawn() -> list[str]:
    """The folders in the drawing, the lowest first; those of one level from right to left."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    ((?:`?\w+/`?(?: · )?)+) {2,}", text.partition("## The suite's levels\n")[2], re.MULTILINE)
    return [folder.strip("` /") for line in reversed(lines) for folder in reversed(line.split(" · "))]


def test_every_file_of_the_suite_stands_on_a_level() -> None:
    folders = {path.name for path in SUITE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(folders) == sorted(drawn())
    assert {path.stem for path in SUITE.glob("*.py")} == LOOSE


def test_no_import_runs_up() -> None:
    order = {folder: number for number, folder in enumerate(drawn())}
    up = []
    for file in sorted(SUITE.rglob("*.py")):
        own = file.relative_to(SUITE).parts[0]
        for each in imports(file):
            parts = each.name.split(".")
            if parts[0] == "conformance" and len(parts) > 1 and parts[1] in {*order, *LOOSE}:
                up += [str(each)] if order.get(parts[1], len(order)) > order.get(own, len(order)) else []
    assert up == []


def test_no_module_imports_itself_through_others() -> None:
    modules = {module_name(file): file for file in SUITE.rglob("*.py")}
    graph = {}
    for name, file in modules.items():
        named = (each.name for each in imports(file))
        found = (each if each in modules else each.rpartition(".")[0] for each in named)
        graph[name] = {each for each in found if each in modules and each != name}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)
