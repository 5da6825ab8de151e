"""The levels of `benchmarks`, as its docstring draws them: imports run down, and never in a circle."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import benchmarks
from tests.house.test_imports import imports, module_name

FOLDER = Path(benchmarks.__file__).parent


def test_imports_run_down_and_never_in_a_circle() -> None:
    lines = re.findall(r"^    ((?:\w+/?(?: · )?)+) {2,}", benchmarks.__doc__ or "", re.MULTILINE)
    levels = {name.strip(" /"): number for number, line in enumerate(lines) for name in line.split("·")}
    folders = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert {*levels} == {*folders, "command"} and len({*levels.values()}) == 5
    modules = {module_name(file): file for file in FOLDER.rglob("*.py") if file.parent.name != "confirm"}
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        named = (each.name for each in imports(file))
        found = (each if each in modules else each.rpartition(".")[0] for each in named)
        graph[name] = {each for each in found if each in modules and each != name}
        own = name.split(".")[1:2]
        for other in (each.split(".")[1] for each in graph[name] if "." in each):
            if own and own[0] in levels and other != own[0]:
                assert levels[other] > levels[own[0]], f"{name} imports {other}"
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)
