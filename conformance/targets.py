"""How a TARGET on the command line becomes an implementation: a module, an attribute, a file or an entry point."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.implementation import Implementation, UsageError
from conformance.operations import BACKWARDS, HELPERS, PUBLIC

ENTRY_POINTS = "gatespec.implementations"
FRAMEWORKS = ("numpy", "torch", "jax")


def find(target: str) -> tuple[dict[str, Any], str]:
    """The public functions of a TARGET, and the top-level package that holds it.

    Raises:
        UsageError: there is nothing of that name, or it offers none of the contract's names.
    """
    offered = _namespace(target)
    functions = {name: offered[name] for name in (*PUBLIC, *BACKWARDS, *HELPERS) if callable(offered.get(name))}
    if not any(name in PUBLIC for name in functions):
        raise UsageError(f"{target} offers none of the contract's names; define at least one of {', '.join(PUBLIC)}")
    home = offered.get("__name__")
    if not isinstance(home, str):
        home = next(getattr(f, "__module__", "") or "" for name, f in functions.items() if name in PUBLIC)
    return functions, home


def _namespace(target: str) -> dict[str, Any]:
    if target.endswith(".py"):
        return vars(_load_file(Path(target)))
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == target:
            return _members(entry.load(), target)
    module, _, attribute = target.partition(":")
    found = _import(module)
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise UsageError(f"{module} has no attribute {part!r}; name one that it has, as in {module}:NAME")
        found = getattr(found, part)
    return _members(found, target)


def _members(found: Any, target: str) -> dict[str, Any]:
    if isinstance(found, ModuleType):
        return {name: getattr(found, name, None) for name in (*dir(found), *PUBLIC, "__name__")}
    if isinstance(found, Mapping):
        return dict(found)
    if inspect.isfunction(found) or (callable(found) and getattr(found, "__name__", None) in PUBLIC):
        return {getattr(found, "__name__", ""): found}
    offered = {name: getattr(found, name) for name in (*PUBLIC, *BACKWARDS, *HELPERS) if hasattr(found, name)}
    if not offered:
        raise UsageError(
            f"{target} is a {type(found).__name__} without any of the contract's names; expected a module, "
            "a function, a dict of functions or an object that has them as attributes"
        )
    return offered


def _import(module: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            hint = f"; a file is named with its suffix: {module}.py" if Path(f"{module}.py").exists() else ""
            raise UsageError(
                f"there is no module, file or entry point {module!r}; give an importable module, module:attribute, "
                f"a path that ends in .py, or an installed entry point of the group {ENTRY_POINTS}{hint}"
            ) from error
        raise UsageError(
            f"{module} cannot be imported, because it needs {error.name!r}, which is not installed"
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{module!r} is no name of a module: {error}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give the path of a Python file that exists")
    name = f"conformance_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def detect(functions: Mapping[str, Any], home: str, target: str) -> str:
    """The framework that a target's own modules import: torch, jax, or else NumPy.

    Raises:
        UsageError: they import two.
    """
    package = home.partition(".")[0]
    own = [module for name, module in list(sys.modules.items()) if name == home or name.partition(".")[0] == package]
    names: set[str] = set()
    for space in [vars(m) for m in own if m is not None] + [getattr(f, "__globals__", {}) for f in functions.values()]:
        for value in list(space.values()):
            origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(origin, str):
                names.add(origin.partition(".")[0])
    found = [framework for framework in ("torch", "jax") if framework in names]
    if len(found) > 1:
        raise UsageError(f"{target} imports both torch and jax; say which its functions take: --framework torch or jax")
    return found[0] if found else "numpy"


def load(target: str, framework: str | None, device: str) -> Implementation:
    """The implementation that a TARGET names, ready to be judged.

    Raises:
        UsageError: it cannot be loaded, its framework is not installed, or the device is not there.
    """
    functions, home = find(target)
    chosen = framework or detect(functions, home, target)
    try:
        adapter: Callable[..., Implementation] = importlib.import_module(f"conformance.frameworks.{chosen}").adapter
    except ModuleNotFoundError as error:
        raise UsageError(f"{target} is judged through {chosen}, which is not installed here: {error}") from error
    implementation = adapter(target, functions, device)
    implementation.keeps_contract = declares_contract(home)
    return implementation


def declares_contract(home: str) -> bool:
    """Whether the module or the package of a target holds ``__conformance__ = "gatespec"``."""
    modules = (sys.modules.get(name) for name in (home, home.partition(".")[0]))
    return any(getattr(module, "__conformance__", None) == "gatespec" for module in modules)


def absolute(target: str) -> str:
    """The TARGET as it can be named from any directory."""
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
    found = _import(module)
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
    """A line that makes what lies in ``root`` importable, unless it is installed."""
    return [] if "site-packages" in root.parts else [f'sys.path.insert(0, "{root}")']


def _importable(path: Path) -> bool:
    """Whether ``import stem`` would find this very file, were its directory first on the path."""
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
