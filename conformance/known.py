"""Known failures: a file of laws that a target is known to break, each with a reason and the case that shows it.

    [[known]]
    law = "mlstm.gradient"
    dtype = "float32"
    target = "torch_impl"                       # leave it out and the entry holds for every target
    where = "gradient of k"                     # the array, or the exception, in which the law breaks
    reason = "the normaliser is treated as a constant"
    link = "https://example.org/issues/12"      # may be left out
    case = '{"kind": "MLSTMCase", "B": 1, …}'   # as it stands in the JSON report, under counterexample.stored

Each run tries the case again. As long as it breaks the law in that array, breaks of this law, in this dtype, in that
array are known and are no failure; a break in another array, or another exception, is. Once the case passes, the entry
excuses nothing and the report says so.
"""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import from_json
from conformance.dtypes import FLOATING
from conformance.implementation import UsageError
from conformance.laws import all_laws

_KEYS = ("law", "dtype", "target", "where", "reason", "link", "case")


@dataclass(frozen=True)
class Known:
    """One known failure.

    Attributes:
        law, dtype: what is broken.
        where: the array, or the exception's name.
        case: the case that breaks it, as `conformance.cases.from_json` reads it.
        reason: why it is broken.
        link: where that is being dealt with; may be empty.
        target: as named on the command line; None for every target.
    """

    law: str
    dtype: str
    where: str
    case: str
    reason: str
    link: str = ""
    target: str | None = None

    def applies(self, target: str, law: str, dtype: str) -> bool:
        return self.law == law and self.dtype == dtype and self.target in (None, target)

    def revived(self) -> Any:
        """The case itself."""
        return from_json(json.loads(self.case))


@dataclass(frozen=True)
class KnownOutcome:
    """What came of trying a known failure again.

    Attributes:
        reason, link, where: the entry's.
        case: in words.
        fails: whether the case still breaks the law in that array.
    """

    reason: str
    link: str
    where: str
    case: str
    fails: bool

    @property
    def said(self) -> str:
        if self.fails:
            return f"known: {self.reason}{f' ({self.link})' if self.link else ''}"
        return f"passes now: remove the entry for {self.where or 'it'} from the file of known failures ({self.reason})"


def read(path: Path) -> tuple[Known, ...]:
    """The entries of a file.

    Raises:
        UsageError: it cannot be read, or an entry lacks something; the text says what to write.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--known {path} cannot be read ({error.strerror}); --write-known {path} makes such a file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--known {path} is no TOML: {error}; --write-known shows what such a file holds") from error
    entries = table.get("known", [])
    if set(table) - {"known"} or not isinstance(entries, list):
        raise UsageError(f"--known {path} holds {', '.join(table)}; each entry begins with a line [[known]]")
    laws = {law.id for law in all_laws()}
    return tuple(_entry(f"--known {path}, entry {number}", entry, laws) for number, entry in enumerate(entries, 1))


def _entry(at: str, entry: dict[str, Any], laws: set[str]) -> Known:
    for key, value in entry.items():
        if key not in _KEYS:
            raise UsageError(f"{at} has {key!r}; an entry holds {', '.join(_KEYS)}")
        if not isinstance(value, str):
            raise UsageError(f"{at}: `{key}` is {value!r}; write it as text, in quotes")
    for key in ("law", "dtype", "case", "where"):
        if key not in entry:
            raise UsageError(f"{at} has no `{key}`; --write-known writes entries that are whole but for their reason")
    if not entry.get("reason", "").strip():
        raise UsageError(f'{at} ({entry["law"]}, {entry["dtype"]}) has no reason; write why it fails: reason = "…"')
    if entry["law"] not in laws:
        raise UsageError(f"{at}: there is no law {entry['law']!r}; `python -m conformance laws` lists them")
    if entry["dtype"] not in FLOATING:
        raise UsageError(f"{at}: there is no dtype {entry['dtype']!r}; write one of {', '.join(FLOATING)}")
    known = Known(**entry)
    try:
        known.revived()
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{at}: `case` is no case of this version ({error}); take it from the JSON report, counterexample.stored"
        ) from error
    return known


def write(path: Path, entries: Iterable[Known]) -> None:
    """Write a file that `read` reads once each entry has its reason."""
    said = ["# Known failures of gatespec's laws. An entry without a reason is refused.\n"]
    for entry in entries:
        fields = {key: getattr(entry, key) for key in _KEYS if getattr(entry, key) is not None}
        said.append("[[known]]\n" + "".join(f"{key} = {_quoted(value)}\n" for key, value in fields.items()))
    path.write_text("\n".join(said), encoding="utf-8")


def _quoted(text: str) -> str:
    """A TOML string: literal where the text lets it be, for a case is full of double quotes."""
    if "'" not in text and text.isprintable() and '"' in text:
        return f"'{text}'"
    # TOML's basic strings are escaped as JSON's are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
