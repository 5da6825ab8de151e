"""Known failures: the laws that a target is known to break, one id a line in a text file, each with a reason.

    mlstm.gradient bfloat16  # n is kept in 16 bits
    gru.reset_after          # computes another function, in every dtype

A law that breaks is then reported as known and does not fail the run; one that holds is reported, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import UsageError
from conformance.base.files import text_in
from conformance.judge.outcome import LawResult
from conformance.laws import Law, all_laws

EXAMPLE = "mlstm.gradient bfloat16  # why it fails"


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """A law that a target is known to break.

    Attributes:
        law: the id of the law.
        dtype: the dtype in which it breaks; None for every dtype.
        reason: why it breaks.
    """

    law: str
    dtype: str | None
    reason: str

    def __str__(self) -> str:
        return f"`{self.law} {self.dtype}`" if self.dtype else f"`{self.law}`"

    def covers(self, law: Law, dtype: str) -> bool:
        """Whether it is about a law in a dtype."""
        return self.law == law.id and self.dtype in (None, dtype)

    def status_of(self, result: LawResult) -> LawResult:
        """The result of a law that it is about: ``known`` in place of ``failed``, ``fixed`` in place of ``passed``."""
        if result.status == "failed":
            # The cases that held before the first break say nothing about where the target is right.
            return replace(result, status="known", reason=f"known: {self.reason}", features={})
        if result.status == "passed":
            others = "" if self.dtype else ", or name the dtypes in which it fails"
            said = f"passes now: remove {self} from the file of known failures{others} ({self.reason})"
            return replace(result, status="fixed", reason=said)
        return result


def read(option: str, path: Path) -> tuple[KnownFailure, ...]:
    """The known failures in a file.

    Args:
        option: the option that names the file, for messages.

    Raises:
        UsageError: the file cannot be read, or a line is not an id with a reason; the text says what to write.
    """
    at = f"--{option} {path}"
    try:
        lines = text_in(path).splitlines()
    except OSError as error:
        raise UsageError(f"{at} cannot be read ({error.strerror}); it has lines such as: {EXAMPLE}") from error
    except ValueError as error:
        raise UsageError(f"{at}: {error}; it has lines such as: {EXAMPLE}") from error
    found = []
    for number, line in enumerate(lines, 1):
        told, _, reason = map(str.strip, line.partition("#"))
        if not told:
            continue
        law, *dtypes = told.split()
        if len(dtypes) > 1 or not set(dtypes) <= set(FLOATING):
            raise UsageError(
                f"{at}, line {number}: {told!r} is not the id of a law with at most one of {', '.join(FLOATING)}; "
                f"write for example: {EXAMPLE}"
            )
        if not reason:
            raise UsageError(f"{at}, line {number}: {told!r} has no reason; write why it fails: {told}  # …")
        found.append(KnownFailure(law=law, dtype=next(iter(dtypes), None), reason=reason))
    return tuple(found)


def unmatched(entries: Iterable[KnownFailure]) -> list[str]:
    """A sentence about each known failure that is about no law."""
    dtypes = {law.id: (None, *law.dtypes) for law in all_laws()}
    found = [each for each in entries if each.dtype not in dtypes.get(each.law, ())]
    return [
        f"the known failure {each} is the id of no law, or names a dtype in which it is not tried" for each in found
    ]


def known_failure(entries: Iterable[KnownFailure], law: Law, dtype: str) -> KnownFailure | None:
    """The first known failure that is about a law in a dtype; None if there is none."""
    return next((each for each in entries if each.covers(law, dtype)), None)
