"""Exceptions that a target raises: which are its own, and their names and texts, whatever its classes do."""

import signal
import site
import sysconfig
import traceback
from pathlib import Path

SUITE = Path(__file__).resolve().parents[1]
CALLING = tuple(str(SUITE / folder) for folder in ("frameworks", "operations"))
"""The folders whose code calls a target."""
INSTALLED = (sysconfig.get_path("stdlib"), *site.getsitepackages())

LONGEST = 2000
"""Number of characters after which the text of an exception is cut."""


def raised_by_target() -> tuple[type[BaseException], ...]:
    """The exceptions of a target's call; an interrupt is its own if those of the terminal are ignored."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return (BaseException,) if ignored else (Exception, SystemExit, GeneratorExit)


def raised_by_suite(error: BaseException) -> bool:
    """Whether an exception is the suite's own: it ends in the suite, or in NumPy called by it, and not in a call."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if any(file.startswith(CALLING) for file in files):
        return False
    own = [file for file in files if "numpy" not in Path(file).parts]
    return bool(own) and SUITE in Path(own[-1]).parents


def text_of(error: BaseException) -> str:
    """The text of an exception; a target's own class may raise an exception in place of one."""
    try:
        # A target may return a string of its own class, too.
        return str.__str__(str(error))
    except raised_by_target() as other:
        return f"(its text cannot be shown: {name_of(other)})"


def line_of(error: BaseException, longest: int) -> str:
    """The first line of the text of an exception, without characters that a terminal would act on."""
    line = text_of(error).strip().split("\n")[0][:longest]
    return _printable(line)


def raised(error: BaseException, longest: int, place: str | None = None) -> str:
    """An exception in words: its class, the first line of its text and, if no place is given, the target's line."""
    text, place = line_of(error, longest), place_of(error) if place is None else place
    return f"raised {name_of(error)}{text and f': {text}'}{place and f' ({place})'}"


def name_of(error: BaseException) -> str:
    """The name of the class of an exception."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return _printable(name[:80])


def place_of(error: BaseException) -> str:
    """The line of the target in which an exception was raised, as ``kernel.py:12``; empty if it raised none.

    Of the lines of the traceback it is the last one that belongs neither to the suite nor to an installed package, such
    as the framework; a target that is installed itself is its last line outside the suite.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if SUITE not in Path(frame.filename).parents]
    own = [frame for frame in frames if not frame.filename.startswith((*INSTALLED, "<"))]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in (own or frames)[-1:])


def place_in_suite(error: BaseException) -> str:
    """The line of the suite's own in which an exception was raised, as ``checker.py:12``."""
    (last,) = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{Path(last.filename).name}:{last.lineno}"


def shortened(text: str) -> str:
    """The text, cut if it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SuiteFailedError(Exception):
    """The suite itself failed, not the target; the text says how."""


class TargetFailedError(Exception):
    """The target cannot be judged at all; the text gives the reason, with the target's own traceback."""


class UsageError(Exception):
    """The suite was called wrongly; the text says what to do instead."""
