"""How well the suite catches the mutants: each one, with every seed, until the first law breaks."""

import importlib.metadata
import json
import multiprocessing
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from conformance.base.options import EXAMPLES, RunOptions
from conformance.frameworks.implementation import Implementation
from conformance.judge.outcome import LawResult
from conformance.judge.runner import Runner
from conformance.judge.selection import agenda
from conformance.laws import all_laws
from conformance.operations import ABOUT
from conformance.rows import ROWS
from conformance.rows.row import Row
from tests.calls.registry import all_laws as calls
from tests.suite.mutants.planting import TENSOR_STEPS, Setting, planted
from tests.suite.mutants.visibility import why_unseen

SCORE = Path(__file__).with_name("score.json")
"""The committed score."""

SEEDS = 10

COPIES_OF_A_PROCESS = 100
"""Number of copies that one process tries. Most are of one operation, so that the oracle has to answer a case once."""


@dataclass(frozen=True)
class Score:
    """The laws that a copy of the reference broke.

    Attributes:
        mutant: the fault in the copy; None for a copy without one.
        op: the operation whose laws were tried.
        seeds: with which.
        broken: for every seed the first law that broke, ``mlstm.value float32``, or None where all held; fewer than
            seeds if the fault slipped too often for the others to matter.
        raised: with how many of them by an exception where there ought to be an answer; a fault that does nothing else
            tests no law.
        problem: what the first broken law said.
        unseen: why the fault cannot be seen in the setting, and no law was tried; None if it can be.
    """

    mutant: Row | None
    op: str
    seeds: tuple[int, ...]
    broken: tuple[str | None, ...]
    raised: int = 0
    problem: str | None = None
    unseen: str | None = None

    @property
    def caught(self) -> int:
        """With how many seeds a law broke."""
        return sum(law is not None for law in self.broken)

    @property
    def laws(self) -> dict[str, int]:
        """The laws that broke first, with their dtypes, and with how many seeds."""
        return dict(Counter(law for law in self.broken if law is not None).most_common())

    @property
    def passes(self) -> bool:
        """Whether a mutant was caught often enough if it can be seen, or a copy without a fault never refused."""
        if self.mutant is None:
            return self.caught == 0
        return self.unseen is not None or self.caught >= needed(len(self.seeds))


def needed(seeds: int) -> int:
    """With how many of so many seeds a mutant must be caught: all but a tenth, rounded down."""
    return seeds - seeds // 10


TENSOR_KINDS, TENSOR_DTYPES = ("definition", "relation"), ("float64", "float32")
"""What the loops on tensors are judged by: their values and gradients. They promise nothing of memory layouts,
transforms or messages."""


def first_broken(
    mutant: Row | None,
    settings: RunOptions,
    first: Sequence[str] = (),
    setting: Setting = Setting.SPECIFICATION,
) -> LawResult | None:
    """The first law that a copy of the reference breaks; None where all hold.

    Args:
        mutant: the fault in the copy; None for none.
        settings: which laws, how many examples, which seed.
        first: laws with their dtypes, ``mlstm.value float32``, to try before the others: where one has broken before,
            that is mostly found again at once. No order changes whether some law breaks.
    """
    with planted(mutant, setting) as implementation:
        return _first_broken(implementation, settings, first, setting)


def _first_broken(
    implementation: Implementation, settings: RunOptions, first: Sequence[str], setting: Setting
) -> LawResult | None:
    # An adapter is not held to decisions that only the specification has made, such as the text of an error.
    settings = replace(settings, contract=setting is Setting.SPECIFICATION)
    if setting is Setting.TENSORS:
        steps = min(TENSOR_STEPS.get(op, settings.max_steps) for op in settings.ops)
        settings = replace(settings, dtypes=TENSOR_DTYPES, max_steps=steps)
    judged = [op for op in settings.ops if op in ABOUT]
    pairs = agenda(implementation, replace(settings, ops=tuple(judged))) if judged else []
    if setting is Setting.SPECIFICATION:
        pairs += [(law, dtype) for law in calls() if law.op in settings.ops for dtype in law.usual_dtypes(eager=True)]
    if setting is Setting.TENSORS:
        pairs = [(law, dtype) for law, dtype in pairs if law.kind in TENSOR_KINDS]
    # Lists of bad calls cost next to nothing.
    order = sorted(pairs, key=lambda pair: (label(*pair) not in first, pair[0].rows is None))
    # One runner for all laws, as in any run: what the copy refuses has to be found out once.
    runner = Runner(implementation, replace(settings, failures=None))
    for law, dtype in order:
        result = runner.result(law, dtype)
        if result.status == "failed":
            return result
    return None


def label(law: Any, dtype: str) -> str:
    return f"{law.id} {dtype}"


def score(
    mutant: Row | None,
    op: str,
    seeds: tuple[int, ...],
    examples: int = EXAMPLES,
    setting: Setting = Setting.SPECIFICATION,
) -> Score:
    """Try one copy with every seed; nothing is shrunk, and nothing is tried that cannot be seen in the setting."""
    # The score itself says which law broke first of all; elsewhere what broke then is tried first.
    known = () if mutant is None or setting is Setting.SPECIFICATION else _recorded().get(mutant.digest, ())
    if mutant is not None and setting is not Setting.SPECIFICATION:
        unseen = why_unseen(mutant, setting)
        if unseen is not None:
            return Score(mutant, op, seeds, (), unseen=unseen)
    broken: list[str | None] = []
    raised, problem = 0, None
    with planted(mutant, setting) as implementation:
        for seed in seeds:
            settings = RunOptions(ops=(op,), examples=examples, seed=seed, shrink_seconds=0.0)
            first = [*known, *(law for law in broken if law is not None)]
            found = _first_broken(implementation, settings, first, setting)
            broken.append(None if found is None else label(found.law, found.dtype))
            if mutant is not None and broken.count(None) > len(seeds) - needed(len(seeds)):
                break  # It has slipped, whatever the other seeds find: all laws held, which takes longest.
            if found is not None and found.reason is not None:
                # A law's own words begin with an array or a call; those about any other exception with "raised".
                raised += found.reason.startswith("raised ")
                problem = problem or found.reason
    return Score(mutant, op, seeds, tuple(broken), raised, problem)


@cache
def _recorded() -> dict[str, tuple[str, ...]]:
    """The laws that the committed score says a fault breaks, by the fault's digest."""
    if not SCORE.exists():
        return {}
    rows = json.loads(SCORE.read_text(encoding="utf-8"))[Setting.SPECIFICATION.value]["rows"]
    return {row["digest"]: tuple(row["laws"]) for row in rows}


def scores(
    mutants: Sequence[Row],
    seeds: tuple[int, ...],
    examples: int,
    jobs: int,
    setting: Setting = Setting.SPECIFICATION,
    unmutated: int | None = None,
) -> Iterator[Score]:
    """Score every mutant, and for each of their operations a copy without a fault, as they become ready.

    Args:
        unmutated: with how many of the seeds copies without a fault are tried; None for all.
    """
    ops = dict.fromkeys(mutant.op for mutant in mutants)
    # The copies without a fault take longest: no law breaks, and all are tried.
    tasks: list[tuple[Row | None, str]] = [*((None, op) for op in ops), *((mutant, mutant.op) for mutant in mutants)]
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), context.Pool(jobs, maxtasksperchild=COPIES_OF_A_PROCESS) as pool:
        with_seeds = [(mutant, op, seeds[:unmutated] if mutant is None else seeds) for mutant, op in tasks]
        yield from pool.imap_unordered(_scored, [(*task, examples, setting) for task in with_seeds])


def _scored(task: tuple[Row | None, str, tuple[int, ...], int, Setting]) -> Score:
    return score(*task)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Workers read this when they import NumPy: several that each start a thread per core wait for one another."""
    before = {variable: os.environ.get(variable) for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.environ.update({variable: value or "1" for variable, value in before.items()})
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]


def in_order(found: Sequence[Score]) -> list[Score]:
    """Copies without a fault first, then the mutants as their rows stand."""
    rows = {mutant: number for number, mutant in enumerate(ROWS)}
    return sorted(found, key=lambda one: (-1, one.op) if one.mutant is None else (rows[one.mutant], one.op))


def sample(mutants: Sequence[Row], count: int, rotation: int = 0) -> list[Row]:
    """``count`` mutants spread evenly over the rows, another choice for every ``rotation``."""
    total = len(mutants)
    count = min(count, total)
    return [mutants[(number * total // count + rotation) % total] for number in range(count)]


def document(found: Sequence[Score], seeds: tuple[int, ...], examples: int) -> dict[str, Any]:
    """The whole result as plain values, the same for the same code, seeds and versions."""
    ordered = in_order(found)
    mutants = [one for one in ordered if one.mutant is not None and one.unseen is None]
    unmutated = [one for one in ordered if one.mutant is None]
    enough = sum(one.passes for one in mutants)
    return {
        "score": enough / len(mutants) if mutants else 1.0,
        "mutants": len(mutants),
        "caught": enough,
        "seeds": list(seeds),
        "needed": needed(len(seeds)),
        "examples": examples,
        "laws": len(all_laws()) + len(calls()),
        "versions": versions(),
        "unmutated": {one.op: one.caught for one in unmutated},
        "unmutated_seeds": {one.op: len(one.seeds) for one in unmutated},
        "rows": [
            {
                "op": one.op,
                "name": one.mutant.name,
                "digest": one.mutant.digest,
                "caught": one.caught,
                "raised": one.raised,
                "laws": one.laws,
            }
            for one in mutants
            if one.mutant is not None
        ],
        "unseen": [
            {"op": one.op, "name": one.mutant.name, "digest": one.mutant.digest, "why": one.unseen}
            for one in ordered
            if one.mutant is not None and one.unseen is not None
        ],
    }


def versions() -> dict[str, str]:
    """Versions of what a score depends on."""
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "hypothesis")}
    return {"python": platform.python_version(), **packages}
