"""Judges the results that another program computed."""

from dataclasses import dataclass, replace
from pathlib import Path

from conformance import oracle
from conformance.base.dtypes import FLOATING, Array
from conformance.base.exceptions import UsageError
from conformance.base.files import bytes_of
from conformance.base.tensors import unpack
from conformance.tolerance.budget import Verdict, compare
from conformance.vectors._manifest import Asked, Entry, VectorSet

HELD, WRONG, MISSING = "held", "wrong", "missing"


@dataclass(frozen=True)
class Judged:
    """One array of an answer.

    Attributes:
        key: ``output/h``, ``gradient/q``.
        status: ``held``, ``wrong`` or ``missing``.
        verdict: the comparison; None if there was none.
        problem: the fault, if it is not one of numbers.
        log_scale: the key of the m in whose expected units the array was compared, if any.
    """

    key: str
    status: str
    verdict: Verdict | None = None
    problem: str | None = None
    log_scale: str | None = None


@dataclass(frozen=True)
class Answered:
    """The outcome of one case.

    Attributes:
        arrays: one entry for each requested output and gradient.
        problems: faults of the file as a whole, in sentences.
    """

    entry: Entry
    arrays: tuple[Judged, ...]
    problems: tuple[str, ...] = ()

    @property
    def worst(self) -> float | None:
        return max((judged.verdict.worst for judged in self.arrays if judged.verdict is not None), default=None)

    def count(self, status: str) -> int:
        return sum(judged.status == status for judged in self.arrays)


@dataclass(frozen=True)
class Judgement:
    """The outcome of all cases.

    Attributes:
        strays: safetensors files in the folder of answers that belong to no case.
        only_given: whether a program may omit arrays and files.
    """

    vectors: VectorSet
    cases: tuple[Answered, ...]
    strays: tuple[str, ...]
    only_given: bool

    def count(self, status: str) -> int:
        return sum(case.count(status) for case in self.cases)

    @property
    def held(self) -> bool:
        wrong = self.count(WRONG) or self.strays or any(case.problems for case in self.cases)
        return not wrong and (self.only_given or not self.count(MISSING))


def check(vectors: VectorSet, entries: tuple[Entry, ...], answers: Path, *, only_given: bool) -> Judgement:
    """Judge the answers to some cases of a set.

    Raises:
        UsageError: the set is damaged, or there is nothing to judge.
    """
    if not answers.is_dir():
        raise UsageError(f"there is no folder {answers}; give the folder with the other program's answers")
    if answers.resolve() == vectors.folder.resolve():
        raise UsageError(f"{answers} is the set itself; give the folder with the other program's answers")
    cases = tuple(_answered(entry, vectors.arrays(entry), answers / entry.file) for entry in entries)
    if not any(case.problems or case.count(MISSING) < len(case.arrays) for case in cases):
        raise UsageError(
            f"{answers} answers none of these {len(cases)} cases; an answer lies in a file with the name that the "
            f"manifest gives the case, such as {entries[0].file}"
        )
    known = {entry.file for entry in vectors.entries}
    strays = sorted(path.name for path in answers.glob("*.safetensors") if path.name not in known)
    return Judgement(vectors, cases, tuple(strays), only_given)


def _answered(entry: Entry, expected: dict[str, Array], path: Path) -> Answered:
    nothing = tuple(Judged(asked.key, MISSING) for asked in entry.asked)
    try:
        given = unpack(bytes_of(path, entry.longest))
    except FileNotFoundError:
        return Answered(entry, nothing)
    except OSError as error:
        return Answered(entry, nothing, (f"{path.name} cannot be read ({error.strerror})",))
    except ValueError as error:
        return Answered(entry, nothing, (f"{path.name} {error}",))
    keys = [asked.key for asked in entry.asked]
    unknown = ", ".join(f"`{key}`" for key in given if key not in keys)
    problems = (f"holds {unknown}; expected {', '.join(keys)}",) if unknown else ()
    return Answered(entry, tuple(_judged(asked, given, expected) for asked in entry.asked), problems)


def _judged(asked: Asked, given: dict[str, Array], expected: dict[str, Array]) -> Judged:
    if asked.key not in given:
        return Judged(asked.key, MISSING)
    got, values = given[asked.key], expected[asked.key].values
    if got.dtype not in FLOATING:
        return Judged(asked.key, WRONG, problem=f"is {got.dtype}; expected one of {', '.join(FLOATING)}")
    if asked.log_scale is not None and got.shape == values.shape:
        m = expected[asked.log_scale].values
        if asked.log_scale not in given or given[asked.log_scale].shape != m.shape:
            said = f"cannot be compared without `{asked.log_scale}` {list(m.shape)}, which says in what units it is"
            return Judged(asked.key, WRONG, problem=said)
        got = replace(got, values=oracle.rescaled(got.values, given[asked.log_scale].values, m))
    verdict = compare(got, values, expected[asked.allowed].values, asked.dtype)
    return Judged(asked.key, HELD if verdict.worst <= 1 else WRONG, verdict, log_scale=asked.log_scale)
