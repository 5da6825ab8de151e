"""Lines of Python that import a target, for scripts that reproduce its failures."""

import importlib.metadata
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from conformance.frameworks.targets import ENTRY_POINTS, import_named


def absolute(target: str) -> str:
    """The TARGET in a form that works from any directory."""
    return str(Path(target).resolve()) if target.endswith(".py") else target


def imports(target: str, names: Sequence[str]) -> list[str]:
    """Lines of Python that bind a TARGET's functions to their own names."""
    listed = ", ".join(names)
    if target.endswith(".py"):
        path = Path(target).resolve()
        if _importable(path):
            return [f'sys.path.insert(0, "{path.parent}")', f"from {path.stem} import {listed}"]
        held = f'runpy.run_path("{path}")'
        return ["import runpy", *(f'{name} = {held}["{name}"]' for name in names)]
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == target:
            target = entry.value
    module, _, attribute = target.partition(":")
    found = import_named(module)
    lines = path_lines(_root(found))
    if not attribute:
        return [*lines, f"from {module} import {listed}"]
    for part in attribute.split("."):
        found = getattr(found, part)
    first, *rest = attribute.split(".")
    lines.append(f"from {module} import {first}")
    holder = ".".join((first, *rest))
    for name in names:
        if isinstance(found, Mapping):
            lines.append(f'{name} = {holder}["{name}"]')
        elif hasattr(found, name) and not inspect.isfunction(found):
            lines.append(f"{name} = {holder}.{name}")
        elif holder != name:
            lines.append(f"{name} = {holder}")
    return lines


def path_lines(root: Path) -> list[str]:
    """A line that makes the contents of ``root`` importable, unless they are installed."""
    return [] if "site-packages" in root.parts else [f'sys.path.insert(0, "{root}")']


def _importable(path: Path) -> bool:
    """Whether ``import stem`` would find this very file if its directory were first on the path."""
    return path.stem.isidentifier() and path.stem not in sys.stdlib_module_names and path.stem not in _taken(path)


def _taken(path: Path) -> set[str]:
    loaded = getattr(sys.modules.get(path.stem), "__file__", None)
    return {path.stem} if loaded is not None and Path(loaded).resolve() != path else set()


def _root(module: ModuleType) -> Path:
    """The directory from which a module's top-level package is imported."""
    package = sys.modules[module.__name__.partition(".")[0]]
    file = getattr(package, "__file__", None)
    if file is None:
        return Path(next(iter(package.__path__))).parent
    path = Path(file).resolve()
    return path.parents[1] if path.name == "__init__.py" else path.parent
