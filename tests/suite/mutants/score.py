"""How well the suite catches the mutants: each one, with every seed, until the first law breaks."""

import importlib.metadata
import multiprocessing
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from conformance.laws import all_laws
from conformance.options import EXAMPLES, RunOptions
from conformance.outcome import LawResult
from conformance.runner import run_law
from conformance.selection import agenda
from tests.suite.mutants.all_rows import MUTANTS
from tests.suite.mutants.mutant import Mutant
from tests.suite.mutants.planting import Setting, planted
from tests.suite.mutants.visibility import visible

SEEDS = 10


@dataclass(frozen=True)
class Score:
    """The laws that a copy of the reference broke.

    Attributes:
        mutant: the fault in the copy; None for a copy without one.
        op: the operation whose laws were tried.
        seeds: with which.
        broken: for every seed the first law that broke, ``mlstm.value float32``, or None where all held.
        raised: with how many of them by an exception where there ought to be an answer; a fault that does nothing else
            tests no law.
        problem: what the first broken law said.
    """

    mutant: Mutant | None
    op: str
    seeds: tuple[int, ...]
    broken: tuple[str | None, ...]
    raised: int = 0
    problem: str | None = None

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
        """Whether a mutant was caught often enough, or a copy without a fault never refused."""
        return self.caught == 0 if self.mutant is None else self.caught >= needed(len(self.seeds))


def needed(seeds: int) -> int:
    """With how many of so many seeds a mutant must be caught: all but a tenth, rounded down."""
    return seeds - seeds // 10


TENSOR_KINDS, TENSOR_DTYPES, TENSOR_STEPS = ("definition", "relation"), ("float64", "float32"), 70
"""What the loop on tensors is judged by: its values and gradients. It is slow, and promises nothing of memory layouts,
transforms or messages."""


def first_broken(
    mutant: Mutant | None,
    settings: RunOptions,
    first: Sequence[str] = (),
    setting: Setting = Setting.SPECIFICATION,
) -> LawResult | None:
    """The first law that a fresh copy of the reference breaks; None where all hold.

    Args:
        mutant: the fault in the copy; None for none.
        settings: which laws, how many examples, which seed.
        first: laws with their dtypes, ``mlstm.value float32``, to try before the others: where one has broken with
            another seed, that is mostly found again at once. No order changes whether some law breaks.
    """
    # An adapter is not held to decisions that only the specification has made, such as the text of an error.
    settings = replace(settings, contract=setting is Setting.SPECIFICATION)
    if setting is Setting.TENSORS:
        settings = replace(settings, dtypes=TENSOR_DTYPES, max_steps=TENSOR_STEPS)
    with planted(mutant, setting) as implementation:
        pairs = agenda(implementation, settings)
        if setting is Setting.TENSORS:
            pairs = [(law, dtype) for law, dtype in pairs if law.kind in TENSOR_KINDS]
        # Lists of bad calls cost next to nothing.
        order = sorted(pairs, key=lambda pair: (label(*pair) not in first, pair[0].rows is None))
        for law, dtype in order:
            result = run_law(implementation, law, dtype, settings)
            if result.status == "failed":
                return result
    return None


def label(law: Any, dtype: str) -> str:
    return f"{law.id} {dtype}"


def score(
    mutant: Mutant | None,
    op: str,
    seeds: tuple[int, ...],
    examples: int = EXAMPLES,
    setting: Setting = Setting.SPECIFICATION,
) -> Score | None:
    """Try one copy with every seed; nothing is shrunk. None for a fault that cannot be seen in the setting."""
    if mutant is not None and setting is not Setting.SPECIFICATION and not visible(mutant, setting):
        return None
    broken: list[str | None] = []
    raised, problem = 0, None
    for seed in seeds:
        settings = RunOptions(ops=(op,), examples=examples, seed=seed, shrink_seconds=0.0)
        found = first_broken(mutant, settings, [law for law in broken if law is not None], setting)
        broken.append(None if found is None else label(found.law, found.dtype))
        if found is not None and found.reason is not None:
            # A law's own words begin with an array or a call; those about any other exception with "raised".
            raised += found.reason.startswith("raised ")
            problem = problem or found.reason
    return Score(mutant, op, seeds, tuple(broken), raised, problem)


def scores(
    mutants: Sequence[Mutant],
    seeds: tuple[int, ...],
    examples: int,
    jobs: int,
    setting: Setting = Setting.SPECIFICATION,
) -> Iterator[Score | None]:
    """Score every mutant, and for each of their operations a copy without a fault, as they become ready.

    Each in a process of its own, so that nothing that one leaves behind reaches another.
    """
    ops = dict.fromkeys(mutant.op for mutant in mutants)
    # The copies without a fault take longest: no law breaks, and all are tried.
    tasks: list[tuple[Mutant | None, str]] = [*((None, op) for op in ops), *((mutant, mutant.op) for mutant in mutants)]
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_scored, [(mutant, op, seeds, examples, setting) for mutant, op in tasks])


def _scored(task: tuple[Mutant | None, str, tuple[int, ...], int, Setting]) -> Score | None:
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
    rows = {mutant: number for number, mutant in enumerate(MUTANTS)}
    return sorted(found, key=lambda one: (-1, one.op) if one.mutant is None else (rows[one.mutant], one.op))


def sample(mutants: Sequence[Mutant], count: int, rotation: int = 0) -> list[Mutant]:
    """``count`` mutants spread evenly over the rows, another choice for every ``rotation``."""
    total = len(mutants)
    count = min(count, total)
    return [mutants[(number * total // count + rotation) % total] for number in range(count)]


def document(found: Sequence[Score], seeds: tuple[int, ...], examples: int) -> dict[str, Any]:
    """The whole result as plain values, the same for the same code, seeds and versions."""
    ordered = in_order(found)
    mutants = [one for one in ordered if one.mutant is not None]
    unmutated = [one for one in ordered if one.mutant is None]
    enough = sum(one.passes for one in mutants)
    return {
        "score": enough / len(mutants),
        "mutants": len(mutants),
        "caught": enough,
        "seeds": list(seeds),
        "needed": needed(len(seeds)),
        "examples": examples,
        "laws": len(all_laws()),
        "versions": versions(),
        "unmutated": {one.op: one.caught for one in unmutated},
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
    }


def versions() -> dict[str, str]:
    """Versions of what a score depends on."""
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "hypothesis")}
    return {"python": platform.python_version(), **packages}
