"""Access to the functions of the target in a script: by including its source, if that is short, or by importing it.

A script that includes the source can be attached to a bug report.
"""

import ast
import importlib.metadata
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.frameworks.targets import ENTRY_POINTS, file_and_attribute, import_named


def absolute(target: str) -> str:
    """The TARGET in a form that works from any directory."""
    file, attribute = file_and_attribute(target)
    if file is None:
        return target
    return ":".join(filter(None, (str(file.resolve()), attribute)))


def imports(target: str, names: Sequence[str]) -> list[str]:
    """Lines of Python that bind a TARGET's functions to their own names."""
    listed = ", ".join(names)
    file, attribute = file_and_attribute(target)
    if file is not None:
        path = file.resolve()
        if _importable(path):
            lines, loaded = [f'sys.path.insert(0, "{path.parent}")'], f"from {path.stem} import "
            if not attribute:
                return [*lines, loaded + listed]
            return [*lines, loaded + attribute.partition(".")[0], *_bound(_loaded(path), attribute, names)]
        held = f'runpy.run_path("{path}")'
        if not attribute:
            return ["import runpy", *(f'{name} = {held}["{name}"]' for name in names)]
        first = attribute.partition(".")[0]
        return ["import runpy", f'{first} = {held}["{first}"]', *_bound(_loaded(path), attribute, names)]
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == target:
            target = entry.value
    module, _, attribute = target.partition(":")
    found = import_named(module)
    lines = path_lines(_root(found))
    if not attribute:
        return [*lines, f"from {module} import {listed}"]
    return [*lines, f"from {module} import {attribute.partition('.')[0]}", *_bound(found, attribute, names)]


def _loaded(path: Path) -> ModuleType:
    return sys.modules[f"conformance_target_{path.stem}"]


def _bound(found: Any, attribute: str, names: Sequence[str]) -> list[str]:
    """Lines that bind the functions of a module's attribute, whose first part is bound, to their own names."""
    for part in attribute.split("."):
        found = getattr(found, part)
    lines = []
    for name in names:
        if isinstance(found, Mapping):
            lines.append(f'{name} = {attribute}["{name}"]')
        elif hasattr(found, name) and not inspect.isfunction(found):
            lines.append(f"{name} = {attribute}.{name}")
        elif attribute != name:
            lines.append(f"{name} = {attribute}")
    return lines


def path_lines(root: Path) -> list[str]:
    """A line that makes the contents of ``root`` importable, unless they are installed."""
    return [] if "site-packages" in root.parts else [f'sys.path.insert(0, "{root}")']


def _importable(path: Path) -> bool:
    """Whether ``import stem`` would find this very file if its directory were first on the path."""
    loaded = getattr(sys.modules.get(path.stem), "__file__", None)
    taken = loaded is not None and Path(loaded).resolve() != path
    return path.stem.isidentifier() and path.stem not in sys.stdlib_module_names and not taken


def _root(module: ModuleType) -> Path:
    """The directory from which a module's top-level package is imported."""
    package = sys.modules[module.__name__.partition(".")[0]]
    file = getattr(package, "__file__", None)
    if file is None:
        return Path(next(iter(package.__path__))).parent
    path = Path(file).resolve()
    return path.parents[1] if path.name == "__init__.py" else path.parent


LONGEST = 150
"""Maximum number of lines of an included source; a longer one, and that of a package, is imported."""


def target_lines(target: str, names: Sequence[str], script: Sequence[str]) -> list[str]:
    """Lines of Python that bind functions of a TARGET to their own names.

    Args:
        script: the rest of the script, whose names must differ from those of the source.

    Raises:
        ValueError: the target has no function with such a name.
    """
    path = _file_of(target)
    source = None if path is None else _short_source(path)
    if path is None or source is None:
        return imports(target, names)
    tree = ast.parse(source)
    own, other = bound_names(tree), bound_names(ast.parse("\n".join(script)))
    alike = {name for name in own.keys() & other.keys() if own[name] is None or own[name] != other[name]}
    if alike or not own.keys() >= set(names) or not _stands_alone(tree):
        return imports(target, names)
    beside = path_lines(path.parent) if _imports_neighbours(tree, path.parent) else []
    return [*beside, "", f"# {path.name}, whole:", *source.strip().splitlines(), "", "# The call that breaks the law:"]


def _file_of(target: str) -> Path | None:
    if target.endswith(".py"):
        return Path(target).resolve()
    module = sys.modules.get(target)
    path = Path(getattr(module, "__file__", None) or "__init__.py")
    return None if path.name == "__init__.py" or "site-packages" in path.parts else path.resolve()


def _short_source(path: Path) -> str | None:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return source if source.count("\n") <= LONGEST else None


def bound_names(tree: ast.Module) -> dict[str, str | None]:
    """The names that a module binds at its top level, each with the import that it stands for, or None."""
    bound: dict[str, str | None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                bound[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom):
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound[node.name] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = None
        elif not isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(tree)
    return bound


def _stands_alone(tree: ast.Module) -> bool:
    """Whether the source has the same meaning in another file: nothing depends on its name, place or head."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (
            node.level or node.module == "__future__" or node.names[0].name == "*"
        ):
            return False
        if isinstance(node, ast.Name) and node.id in ("__file__", "__name__"):
            return False
    return True


def _imports_neighbours(tree: ast.Module, folder: Path) -> bool:
    """Whether it imports a module from its own folder."""
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    tops = {name.partition(".")[0] for name in names}
    return any((folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists() for top in tops)
