"""A fault as data, and the copy of the reference that it is planted in."""

import hashlib
import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import reference
from conformance.implementation import Implementation
from conformance.targets import load

NAME = "mutated_reference"
"""The package that the copy is imported as, while it lasts."""

_IMPORT = re.compile(r"^(\s*(?:from|import)) reference\b", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A change that makes the reference wrong.

    Attributes:
        op: the operation whose laws ought to break.
        name: what is wrong, in words; no two of one operation share it.
        file: the module of `reference`.
        old: the text that is replaced; it stands in the file exactly once, so that a row cannot rot unseen.
        new: what stands there instead.
    """

    op: str
    name: str
    file: str
    old: str
    new: str

    @property
    def digest(self) -> str:
        """Tells whether a score was measured on this very change."""
        return hashlib.sha256("\0".join((self.op, self.file, self.old, self.new)).encode()).hexdigest()[:12]

    def applied(self, text: str) -> str:
        """The module's text with the fault in it.

        Raises:
            ValueError: what the row replaces does not stand there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"mutant {self.name!r}: the text to replace stands {count} times in {self.file}")
        return text.replace(self.old, self.new)


def copy_of_reference(directory: Path, mutant: Mutant | None) -> None:
    """Write a package `NAME` into ``directory``: the reference, with a fault or without."""
    package = directory / NAME
    package.mkdir()
    for path in sorted(Path(reference.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if mutant is not None and path.name == mutant.file:
            text = mutant.applied(text)
        (package / path.name).write_text(_IMPORT.sub(rf"\1 {NAME}", text), encoding="utf-8")


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[Implementation]:
    """The mutated copy, or one without a fault, as an implementation; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="gatespec-mutant-") as directory:
        copy_of_reference(Path(directory), mutant)
        sys.path.insert(0, directory)
        importlib.invalidate_caches()
        try:
            yield load(NAME, "numpy", "cpu")
        finally:
            sys.path.remove(directory)
            for module in [name for name in sys.modules if name.partition(".")[0] == NAME]:
                del sys.modules[module]
