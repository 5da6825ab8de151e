"""The expectations of a target: promises, and known failures with a reason and a case each, in one TOML file.

    promises = ["f finite", "gru: not packed"]      # see `conformance.features.promises`

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

The cause of a known failure is a ``formula`` that the target computes, a ``promise`` outside which laws break, or a
``law`` that breaks by itself. ``breaks`` gives the kinds of break (``nan``, ``number``, ``exception`` …) and ``where``
the arrays or exceptions. Numbers that are merely inexact need ``error_up_to``, the largest error relative to the
largest value of its array. A failure is known if an entry explains it, in any law, and only then
(`conformance.judge.excuses`).

Each run tries the example again. Once it passes, the entry excuses nothing and the report says so.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import UsageError
from conformance.base.files import text_in
from conformance.base.files import write as write_text
from conformance.cases import from_json
from conformance.features.promises import Promise, parsed
from conformance.formulas import formula_named
from conformance.laws import all_laws

BREAKS = (
    *("number", "nan", "infinity", "shape", "dtype", "missing"),
    *("result", "exception", "exit", "abort", "timeout", "memory", "text"),
)
"""The kinds of failure, as in `conformance.tolerance.compared.BreakKind`."""

INEXACT = ("number", "nan", "infinity")
"""The kinds of failure of arrays if a target computes another formula."""


class Example(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cause for which a target is known to break laws.

    Attributes:
        operations: the operations in which it shows.
        target: its name on the command line; None for every target.
        formula: the formula that the target computes instead; empty if it is not a known formula.
        promise: the calls that keep it are right; empty if the failure is not one of certain calls.
        law: the name of the only law that breaks; empty for every law.
        breaks: the kinds of break; if empty, `INEXACT` for a formula.
        where: the arrays, or the exceptions; empty for all.
        error_up_to: the largest error of a number, relative to the largest value of its array; None for any.
        dtypes: the dtypes of the values; empty for all.
        reason: why their laws break.
        link: where the failure is being dealt with; may be empty.
        example: a call that shows it.
    """

    operations: tuple[str, ...]
    target: str | None = None
    formula: str = ""
    promise: str = ""
    law: str = ""
    breaks: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    error_up_to: float | None = None
    dtypes: tuple[str, ...] = ()
    reason: str
    link: str = ""
    example: Example

    @property
    def cause(self) -> str:
        """The cause in words."""
        said = [f"equals {self.formula}"] if self.formula else []
        said += [f"the law {self.law}"] if self.law else []
        said += [f"{' or '.join(self.breaks)} in {' or '.join(self.where)}"] if self.where else []
        said += [f"calls outside the promise {self.promise}"] if self.promise else []
        return f"{' and '.join(self.operations)}: {', '.join(said)}"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    promises: tuple[str, ...] = ()
    known: tuple[Known, ...] = ()


def read(option: str, path: Path) -> tuple[tuple[Promise, ...], tuple[Known, ...]]:
    """The promises and the known failures of a file.

    Args:
        option: the option that names the file, for messages.

    Raises:
        UsageError: the file cannot be read, or an entry lacks something; the text says what to write.
    """
    at = f"--{option} {path}"
    try:
        file = msgspec.toml.decode(text_in(path), type=_File)
    except OSError as error:
        raise UsageError(f"{at} cannot be read ({error.strerror}); --write-known {path} makes such a file") from error
    except msgspec.ValidationError as error:
        raise UsageError(
            f'{at}: {error}; it holds promises = ["…", "mlstm: …"], and entries as --write-known writes them'
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{at} is not TOML: {error}; --write-known shows what such a file holds") from error
    for number, entry in enumerate(file.known, 1):
        _check(f"{at}, entry {number} ({' and '.join(entry.operations)})", entry)
    return tuple(parsed(text) for text in file.promises), file.known


def _check(at: str, entry: Known) -> None:
    """Raise if a name is unknown, or if the entry would excuse more than one cause."""
    from conformance.operations import BY_LAWS

    laws = all_laws()
    of_entry = [law for law in laws if law.op in entry.operations]
    for key, given, names in (
        ("operations", entry.operations, dict.fromkeys(law.op for law in laws)),
        ("breaks", entry.breaks, BREAKS),
        ("dtypes", entry.dtypes, FLOATING),
        ("law", filter(None, [entry.law]), dict.fromkeys(law.name for law in of_entry)),
        ("example.law", [entry.example.law], dict.fromkeys(law.id for law in laws)),
        ("example.dtype", [entry.example.dtype], FLOATING),
    ):
        for name in given:
            if name not in names:
                raise UsageError(f"{at}: `{key}` has {name!r}; there are {', '.join(names)}")
    if not entry.reason.strip():
        raise UsageError(f'{at} has no reason; write why it fails: reason = "…"')
    formula = entry.formula
    if formula and not any(op in BY_LAWS and formula_named(BY_LAWS[op], formula) for op in entry.operations):
        raise UsageError(f"{at}: there is no formula {formula!r}; copy it from `causes` in the JSON report")
    if not formula and not entry.breaks:
        raise UsageError(f"{at} has no `breaks`; add some of these kinds of failure: {', '.join(BREAKS)}")
    if not (formula or entry.promise or entry.law or entry.where):
        raise UsageError(f"{at} would excuse every failure; add a formula, a promise, a law or where")
    if entry.promise:
        parsed(entry.promise)
    if "number" in entry.breaks and not formula and not (entry.error_up_to or 0) > 0:
        raise UsageError(
            f"{at}: `error_up_to` is {entry.error_up_to!r}; write the largest error of a number, relative to the "
            "largest value of its array: error_up_to = 1e-4"
        )
    try:
        entry.example.revived()
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{at}: `case` is not a case of this version ({error}); copy `counterexample.stored` from the JSON report"
        ) from error


def write(option: str, path: Path, promises: Iterable[str] = (), known: Iterable[Known] = ()) -> None:
    """Write a file that `read` accepts once each entry has its reason."""
    said = ["# What is expected of a target. An entry without a reason is refused.\n"]
    promises = tuple(promises)
    if promises:
        said.append("".join(["promises = [\n", *(f"    {_spelt(text)},\n" for text in promises), "]\n"]))
    for entry in known:
        fields = msgspec.structs.asdict(entry)
        example = fields.pop("example")
        lines = ["[[known]]"]
        lines += [
            f"{key} = {_spelt(value)}"
            for key, value in fields.items()
            if key == "reason" or value not in ((), "", None)
        ]
        lines += [
            "[known.example]",
            *(f"{key} = {_spelt(value)}" for key, value in msgspec.structs.asdict(example).items()),
        ]
        said.append("\n".join(lines) + "\n")
    write_text(option, path, "\n".join(said))


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
