"""Finds another distribution's `reference` or `conformance`, which Python would import in place of gatespec's.

The check runs when this module is imported, which every package does before it imports `reference`. It stands alone,
because a module of a package that is hidden could not be imported.

Raises:
    ImportError: `reference` is not gatespec's; nothing here works with another.

A `conformance` of another distribution is a `RuntimeWarning`: only the suite needs that package.
"""

import sys
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

_ADVICE = "Use an environment where only one of the two is installed, or take the directory off sys.path."


def _origin_if_foreign(name: str) -> str | None:
    """The origin of a package that is not gatespec's; None if it is gatespec's, or not installed."""
    if name in sys.modules:
        module = sys.modules[name]
        ours, origin = getattr(module, "__conformance__", None) == "gatespec", getattr(module, "__file__", None)
    else:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        ours, origin = '__conformance__ = "gatespec"' in _source(name, spec), spec.origin
    return None if ours else origin or "a namespace package"


def _source(name: str, spec: ModuleSpec) -> str:
    """The text of a package's `__init__.py`; empty if it has none."""
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is not None:
        return get_source(name) or ""
    # The loader with which pytest rewrites the assertions of an installed plugin's packages gives no source.
    path = Path(spec.origin or "")
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _other_distributions(name: str) -> list[str]:
    """The installed distributions, apart from gatespec, that bring a top-level package of this name."""
    from importlib.metadata import packages_distributions

    return sorted(set(packages_distributions().get(name, ())) - {"gatespec"})


def _check() -> None:
    for name in ("reference", "conformance"):
        origin = _origin_if_foreign(name)
        if origin is None:
            continue
        others = _other_distributions(name)
        of = f" of {', '.join(others)}" if others else ""
        message = f"gatespec's package `{name}` is hidden by {origin}{of}. {_ADVICE}"
        if name == "reference":
            raise ImportError(message, name=name, path=origin)
        if others:
            warnings.warn(message, RuntimeWarning, stacklevel=2)


_check()
