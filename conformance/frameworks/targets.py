"""Turns a TARGET of the command line into an implementation: a module, an attribute, a file or an entry point."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.base.exceptions import TargetFailedError, UsageError, name_of, raised_by_target, shortened, text_of
from conformance.frameworks.implementation import Implementation
from conformance.operations import OPERATIONS, functions, specification_of

ENTRY_POINTS = "gatespec.implementations"

HEADLINE = 300
"""Number of characters of an import's error in the first line of a message."""


def find(target: str) -> tuple[dict[str, Any], str]:
    """The public functions of a TARGET, and the top-level package that holds it.

    Raises:
        UsageError: there is nothing with that name, or it offers none of the contract's names.
        TargetFailedError: importing it raised.
    """
    try:
        offered = _namespace(target)
    except UsageError:
        raise
    except raised_by_target() as error:
        own = _own_traceback(error)
        last = own.splitlines()[-1]
        # The whole of a long one is below, in the traceback.
        last = last if len(last) <= HEADLINE else f"{last[:HEADLINE]}…"
        raise TargetFailedError(f"{target} cannot be imported: {last}\n\n{own}") from error
    found = {name: offered[name] for name in functions() if callable(offered.get(name))}
    if not any(name in OPERATIONS for name in found):
        names = ", ".join([name for name in OPERATIONS if specification_of(name)] or OPERATIONS)
        raise UsageError(f"{target} offers none of the contract's names; define at least one of {names}")
    home = offered.get("__name__")
    if not isinstance(home, str):
        home = next(getattr(f, "__module__", "") or "" for name, f in found.items() if name in OPERATIONS)
    return found, home


def _namespace(target: str) -> dict[str, Any]:
    file, attribute = file_and_attribute(target)
    if file is not None:
        loaded = _load_file(file)
        return _members(_attribute_of(loaded, str(file), attribute), target) if attribute else vars(loaded)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == target:
            return _members(entry.load(), target)
    module, _, attribute = target.partition(":")
    return _members(_attribute_of(import_named(module), module, attribute), target)


def file_and_attribute(target: str) -> tuple[Path | None, str]:
    """The file that a TARGET names, None if it names none, and the attribute behind its colon, empty without one."""
    if target.endswith(".py"):
        return Path(target), ""
    file, _, attribute = target.rpartition(":")
    return (Path(file), attribute) if file.endswith(".py") else (None, target.partition(":")[2])


def _attribute_of(found: Any, name: str, attribute: str) -> Any:
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise UsageError(f"{name} has no attribute {part!r}; name one that it has, as in {name}:NAME")
        found = getattr(found, part)
    return found


def _members(found: Any, target: str) -> dict[str, Any]:
    if isinstance(found, ModuleType):
        return {name: getattr(found, name, None) for name in (*dir(found), *OPERATIONS, "__name__")}
    if isinstance(found, Mapping):
        return dict(found)
    if inspect.isfunction(found) or (callable(found) and getattr(found, "__name__", None) in OPERATIONS):
        return {getattr(found, "__name__", ""): found}
    offered = {name: getattr(found, name) for name in functions() if hasattr(found, name)}
    if not offered:
        raise UsageError(
            f"{target} is a {type(found).__name__} without any of the contract's names; expected a module, "
            "a function, a dict of functions or an object that has them as attributes"
        )
    return offered


def import_named(module: str) -> ModuleType:
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
        raise
    except (ValueError, TypeError) as error:
        if _frames(error):
            raise
        raise UsageError(f"{module!r} is not the name of a module: {error}") from error


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback below those of the suite and of Python's own import."""
    ours = (str(Path(__file__).parent), "<frozen importlib", importlib.__file__ or "<frozen importlib")
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]


def _own_traceback(error: BaseException) -> str:
    """The traceback that Python would print if the target were run by itself."""
    frames = _frames(error)
    said = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    if isinstance(error, SystemExit):
        return "".join([*said, f"SystemExit: it called sys.exit({error.code!r}) when it was imported"])
    try:
        lines = traceback.format_exception_only(error)
    except raised_by_target():
        lines = [f"{name_of(error)}: {text_of(error)}"]
    return "".join([*said, shortened("".join(lines))]).rstrip()


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


@dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """Facts about a target that are known without loading it: the process that has loaded it reports them.

    Attributes:
        name: its name on the command line.
        framework, device, versions: the framework, the device and the versions of what computes.
        guessed: whether the framework was detected from imports instead of being named.
        functions: the public names that it offers.
        eager: whether a call with new shapes costs no compilation.
        keeps_contract: whether it declares that it keeps gatespec's contract.
    """

    name: str
    framework: str
    device: str
    versions: Mapping[str, str]
    guessed: bool
    functions: tuple[str, ...]
    eager: bool
    keeps_contract: bool


def info_of(implementation: Implementation, named_framework: str | None) -> TargetInfo:
    return TargetInfo(
        name=implementation.name,
        framework=implementation.framework,
        device=implementation.device,
        versions=implementation.versions(),
        guessed=named_framework is None,
        functions=tuple(implementation.functions),
        eager=implementation.eager,
        keeps_contract=implementation.keeps_contract,
    )


def load(target: str, framework: str | None, device: str) -> Implementation:
    """The implementation that a TARGET names, ready to be judged.

    Raises:
        UsageError: there is nothing with that name, its framework is not installed, or the device is not available.
        TargetFailedError: importing it raised.
    """
    path = list(sys.path)
    functions, home = find(target)
    # The modules of the suite and of the framework that are not imported yet must still be found.
    sys.path += [entry for entry in path if entry not in sys.path]
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
    # Not by `getattr`, for which a module may have a function of its own.
    return any(getattr(module, "__dict__", {}).get("__conformance__") == "gatespec" for module in modules)


_TENSORS = ("torch", "jax")
_OF_NO_FRAMEWORK = ("numpy", "scipy", "reference", "conformance", "builtins", "pytest", "hypothesis")


def detect(functions: Mapping[str, Any], home: str, target: str) -> str:
    """The framework that a target's functions take: torch, jax, or else NumPy.

    It is the one that the target's own modules import, or else the one imported by the modules that their names come
    from, and so on. If there are two, the annotations of the functions decide. It does not matter whether a framework
    is installed, or loaded by something else.

    Raises:
        UsageError: there are two, and annotations do not decide.
    """
    package = home.partition(".")[0]
    own = [module for name, module in list(sys.modules.items()) if name == home or name.partition(".")[0] == package]
    level = [vars(module) for module in own if module is not None]
    level += [getattr(function, "__globals__", {}) for function in functions.values()]
    visited = {module.__name__ for module in own if module is not None}
    while level:
        origins = {origin for space in level for origin in _origins(space)}
        found = [framework for framework in _TENSORS if any(_within(origin, framework) for origin in origins)]
        if len(found) > 1:
            found = [framework for framework in found if framework in _annotated(functions)] or found
        if len(found) > 1:
            raise UsageError(
                f"{target} imports both torch and jax; say which its functions take: --framework torch or jax"
            )
        if found:
            return found[0]
        new = {
            origin
            for origin in origins - visited
            if origin in sys.modules and origin.partition(".")[0] not in (*sys.stdlib_module_names, *_OF_NO_FRAMEWORK)
        }
        visited |= new
        level = [vars(sys.modules[origin]) for origin in sorted(new)]
    return "numpy"


def _origins(space: Mapping[str, Any]) -> set[str]:
    """The modules that the names of a module come from."""
    found = set()
    for value in list(space.values()):
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(origin, str):
            found.add(origin)
    return found


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _annotated(functions: Mapping[str, Any]) -> set[str]:
    """The packages that the annotations of functions name, as text or as types."""
    said = [note for function in functions.values() for note in getattr(function, "__annotations__", {}).values()]
    words = [note if isinstance(note, str) else getattr(note, "__module__", None) or "" for note in said]
    return {framework for framework in _TENSORS for word in words if word.partition(".")[0] == framework}
