"""A copy of the specification with rows changed, as a package of its own."""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

import reference
from conformance.rows.row import Row

Edit = Callable[[str, str], str]

_IMPORT = re.compile(r"^(\s*(?:from|import)) reference\b", re.MULTILINE)


def renamed(text: str, name: str) -> str:
    """The source of a module that imports the copy where it imported the specification."""
    return _IMPORT.sub(rf"\1 {name}", text)


def write_copy(directory: Path, name: str, rows: Iterable[Row], edit: Edit = lambda file, text: text) -> None:
    """Write a package into a directory: the specification with these rows changed.

    Args:
        edit: ``(file, source) → source``, applied to each of its modules.
    """
    package = directory / name
    package.mkdir()
    for path in _paths():
        (package / path.name).write_text(renamed(edit(path.name, _applied(path, rows)), name), encoding="utf-8")


def _paths() -> list[Path]:
    return sorted(Path(reference.__file__).parent.glob("*.py"))


def _applied(path: Path, rows: Iterable[Row]) -> str:
    text = path.read_text(encoding="utf-8")
    for row in rows:
        text = row.applied(text) if path.name == row.module else text
    return text


@contextmanager
def importable(directory: Path, *names: str) -> Iterator[None]:
    """Let packages of a directory be imported; afterwards nothing of them is left."""
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        for module in [module for module in sys.modules if module.partition(".")[0] in names]:
            del sys.modules[module]


@dataclass(frozen=True, eq=False)
class Specification:
    """A copy of the specification.

    Attributes:
        public: the package.
        modules: it and its modules, by name.
    """

    public: ModuleType
    modules: Mapping[str, ModuleType]

    def function(self, name: str) -> Any:
        return getattr(self.public, name)


def _module(path: Path) -> str:
    return reference.__name__ if path.stem == "__init__" else f"{reference.__name__}.{path.stem}"


@cache
def _code(path: Path, rows: tuple[Row, ...] = ()) -> CodeType:
    """The code of a module with rows changed; without any, as Python keeps it compiled."""
    if not rows:
        code = SourceFileLoader(_module(path), str(path)).get_code(_module(path))
        assert code is not None
        return code
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for row in rows:
        ast.fix_missing_locations(row.change(tree))
    return compile(tree, path, "exec")


class _Codes(MetaPathFinder, Loader):
    """Imports the modules of a copy, the package first, from their code: the copy has no files."""

    def __init__(self, rows: tuple[Row, ...]):
        self._codes = {}
        for path in _paths():
            own = tuple(row for row in rows if row.module == path.name)
            self._codes[_module(path)] = _code(path, own)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = fullname in self._codes
        return spec_from_loader(fullname, self, is_package=fullname == reference.__name__) if found else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._codes[module.__name__], vars(module))


@lru_cache(maxsize=256)
def changed(*rows: Row) -> Specification:
    """The specification with these rows changed.

    It is imported under the specification's own name, as which nothing but the specification is found afterwards.
    """
    finder, own = _Codes(rows), _taken_out()
    sys.meta_path.insert(0, finder)
    try:
        public = importlib.import_module(reference.__name__)
    finally:
        sys.meta_path.remove(finder)
        modules = _taken_out()
        sys.modules.update(own)
    return Specification(public, modules)


def _taken_out() -> dict[str, ModuleType]:
    """The imported modules of the specification, which are no longer found as such."""
    names = [each for each in sys.modules if each.partition(".")[0] == reference.__name__]
    return {each: sys.modules.pop(each) for each in names}


@contextmanager
def using(modules: Mapping[str, ModuleType], numpy: Any) -> Iterator[None]:
    """Let the modules of a copy compute with another NumPy."""
    with np.errstate(all="ignore"):
        patches = [
            patch.object(module, name, numpy)
            for module in modules.values()
            for name, x in list(vars(module).items())
            if x is np
        ]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()
