"""Known failures: a file of the causes for which a target is known to break laws, each with a reason and a case.

    [[known]]
    operations = ["mlstm"]
    target = "mypkg"                            # leave it out and the entry holds for every target
    formula = "the gradient with the normaliser held constant"
    reason = "as in the paper's code"
    link = "https://example.org/issues/12"      # may be left out
    [known.example]
    law = "mlstm.gradient"
    dtype = "float32"
    case = '{"kind": "MLSTMCase", "B": 1, …}'   # as it stands in the JSON report, under counterexample.stored

A cause is a ``formula`` that the target computes, ``features`` that a call must have for a law to break, or a ``law``
that breaks by itself. ``breaks`` gives the kinds of break (``nan``, ``number``, ``exception`` …) and ``where`` the
arrays or exceptions. Numbers that are merely inexact need ``error_up_to``, the largest error relative to the largest
value of its array. A failure is known if an entry explains it, in any law, and only then (`conformance.judge.excuses`).

Each run tries the example again. Once it passes, the entry excuses nothing and the report says so.
"""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import UsageError
from conformance.base.files import text_in
from conformance.base.files import write as write_text
from conformance.cases import from_json
from conformance.features import features_of
from conformance.formulas import formula_named
from conformance.laws import all_laws

_LISTS = ("operations", "features", "where", "breaks", "dtypes")
_TEXTS = ("target", "formula", "law", "reason", "link")
_EXAMPLE = ("law", "dtype", "case")
BREAKS = (
    *("number", "nan", "infinity", "shape", "dtype", "missing"),
    *("result", "exception", "exit", "abort", "timeout", "memory", "text"),
)
"""The kinds of failure, as in `conformance.tolerance.compared.BreakKind`."""

INEXACT = ("number", "nan", "infinity")
"""The kinds of failure of arrays if a target computes another formula."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A call that shows a known failure.

    Attributes:
        law, dtype: the law that it breaks, and the dtype.
        case: the case in the form that `conformance.cases.from_json` reads.
    """

    law: str
    dtype: str
    case: str

    def revived(self) -> Any:
        """The case itself."""
        return from_json(json.loads(self.case))


@dataclass(frozen=True, kw_only=True)
class Known:
    """One cause for which a target is known to break laws.

    Attributes:
        operations: the operations in which it shows.
        reason: why their laws break.
        example: a call that shows it.
        formula: the formula that the target computes instead; empty if it is not a known formula.
        features: the features that a call must have; empty if all calls show it.
        law: the name of the only law that breaks; empty for every law.
        breaks: the kinds of break; if empty, `INEXACT` for a formula.
        where: the arrays, or the exceptions; empty for all.
        error_up_to: the largest error of a number, relative to the largest value of its array; None for any.
        dtypes: the dtypes of the values; empty for all.
        link: where the failure is being dealt with; may be empty.
        target: its name on the command line; None for every target.
    """

    operations: tuple[str, ...]
    reason: str
    example: Example
    formula: str = ""
    features: tuple[str, ...] = ()
    law: str = ""
    breaks: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    error_up_to: float | None = None
    dtypes: tuple[str, ...] = ()
    link: str = ""
    target: str | None = None

    @property
    def cause(self) -> str:
        """The cause in words."""
        said = [f"equals {self.formula}"] if self.formula else []
        said += [f"the law {self.law}"] if self.law else []
        said += [f"{' or '.join(self.breaks)} in {' or '.join(self.where)}"] if self.where else []
        said += [f"calls with {' and '.join(self.features)}"] if self.features else []
        return f"{' and '.join(self.operations)}: {', '.join(said)}"


def read(path: Path) -> tuple[Known, ...]:
    """The entries of a file.

    Raises:
        UsageError: the file cannot be read, or an entry lacks something; the text says what to write.
    """
    try:
        table = tomllib.loads(text_in(path))
    except OSError as error:
        raise UsageError(
            f"--known {path} cannot be read ({error.strerror}); --write-known {path} makes such a file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--known {path} is not TOML: {error}; --write-known shows what such a file holds") from error
    entries = table.get("known", [])
    if set(table) - {"known"} or not isinstance(entries, list):
        raise UsageError(f"--known {path} holds {', '.join(table)}; each entry begins with a line [[known]]")
    return tuple(_entry(f"--known {path}, entry {number}", entry) for number, entry in enumerate(entries, 1))


def _entry(at: str, entry: dict[str, Any]) -> Known:
    from conformance.operations import BY_LAWS

    known = [field.name for field in fields(Known)]
    for key, value in entry.items():
        if key not in known:
            raise UsageError(f"{at} has {key!r}; an entry holds {', '.join(known)}")
        listed = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if key in _LISTS and not listed:
            raise UsageError(f"{at}: `{key}` is {value!r}; write a list of quoted strings")
        if key in _TEXTS and not isinstance(value, str):
            raise UsageError(f"{at}: `{key}` is {value!r}; write a quoted string")
    for key in ("operations", "example"):
        if key not in entry:
            raise UsageError(f"{at} has no `{key}`; --write-known writes entries that lack only the reason")
    given: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in entry.items()}
    named = " and ".join(given["operations"])
    if not given.get("reason", "").strip():
        raise UsageError(f'{at} ({named}) has no reason; write why it fails: reason = "…"')
    laws = all_laws()
    offered = {
        "operations": dict.fromkeys(law.op for law in laws),
        "breaks": BREAKS,
        "dtypes": FLOATING,
        "features": {feature.name for op in given["operations"] for feature in features_of(op)},
    }
    for key, names in offered.items():
        for name in given.get(key, ()):
            if name not in names:
                raise UsageError(f"{at}: `{key}` has {name!r}; there are {', '.join(names)}")
    if given.get("law") and not any(law.name == given["law"] and law.op in given["operations"] for law in laws):
        raise UsageError(f"{at}: there is no law {given['law']!r} of {named}; `python -m conformance laws` lists them")
    formula = given.get("formula", "")
    if formula and not any(op in BY_LAWS and formula_named(BY_LAWS[op], formula) for op in given["operations"]):
        raise UsageError(f"{at}: there is no formula {formula!r} of {named}; copy it from `causes` in the JSON report")
    if not formula and not given.get("breaks"):
        raise UsageError(f"{at} has no `breaks`; add some of these kinds of failure: {', '.join(BREAKS)}")
    if not any(given.get(key) for key in ("formula", "features", "law", "where")):
        raise UsageError(f"{at} would excuse every failure of {named}; add a formula, features, law or where")
    bound = given.get("error_up_to")
    if "number" in given.get("breaks", ()) and not formula and (not isinstance(bound, int | float) or bound <= 0):
        raise UsageError(
            f"{at}: `error_up_to` is {bound!r}; write the largest error of a number, relative to the largest value of "
            "its array: error_up_to = 1e-4"
        )
    return Known(**{**given, "example": _example(at, given["example"], {law.id for law in laws})})


def _example(at: str, example: Any, laws: set[str]) -> Example:
    if not isinstance(example, dict) or sorted(example) != sorted(_EXAMPLE):
        raise UsageError(f"{at}: `example` must hold {', '.join(_EXAMPLE)}, each as text")
    if example["law"] not in laws:
        raise UsageError(f"{at}: there is no law {example['law']!r}; `python -m conformance laws` lists them")
    if example["dtype"] not in FLOATING:
        raise UsageError(f"{at}: there is no dtype {example['dtype']!r}; write one of {', '.join(FLOATING)}")
    found = Example(**example)
    try:
        found.revived()
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{at}: `case` is not a case of this version ({error}); copy `counterexample.stored` from the JSON report"
        ) from error
    return found


def write(path: Path, entries: Iterable[Known]) -> None:
    """Write a file that `read` accepts once each entry has its reason."""
    said = ["# Known failures of gatespec's laws. An entry without a reason is refused.\n"]
    for entry in entries:
        lines = ["[[known]]"]
        for field in fields(Known):
            value = getattr(entry, field.name)
            if field.name != "example" and (field.name == "reason" or value not in ((), "", None)):
                lines.append(f"{field.name} = {_spelt(value)}")
        lines.append("[known.example]")
        lines += [f"{key} = {_spelt(getattr(entry.example, key))}" for key in _EXAMPLE]
        said.append("\n".join(lines) + "\n")
    write_text("write-known", path, "\n".join(said))


def _spelt(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_spelt(each) for each in value)}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """A TOML string, literal if the text allows it, because a case is full of double quotes."""
    if "'" not in text and text.isprintable() and '"' in text:
        return f"'{text}'"
    # TOML's basic strings are escaped as JSON's are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
