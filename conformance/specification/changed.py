"""A copy of the specification with rows changed, as a package of its own."""

import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
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
    for path in sorted(Path(reference.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for row in rows:
            text = row.applied(text) if path.name == row.module else text
        (package / path.name).write_text(renamed(edit(path.name, text), name), encoding="utf-8")


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


@lru_cache(maxsize=256)
def changed(*rows: Row) -> Specification:
    """The specification with these rows changed; it is not found among the modules that are imported."""
    name = "changed_reference"
    with tempfile.TemporaryDirectory(prefix="gatespec-") as directory:
        write_copy(Path(directory), name, rows)
        with importable(Path(directory), name):
            public = importlib.import_module(name)
            modules = {each: module for each, module in sys.modules.items() if each.partition(".")[0] == name}
    return Specification(public, modules)


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
