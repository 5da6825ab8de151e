"""The framework that a target's functions take, found from what its modules import."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from conformance.base.exceptions import UsageError

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
