"""Whether the suite names what is wrong with a stranger: the laws are tried on it, then the first cause is read."""

import importlib.metadata
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.base.options import EXAMPLES, RunOptions
from conformance.diagnosis.cause import Cause
from conformance.diagnosis.diagnose import diagnose
from conformance.frameworks.targets import load
from conformance.judge.runner import run
from tests.suite.strangers.catalogue import FAULTY, RIGHT, Stranger, target

COMMITTED = Path(__file__).with_name("score.json")
"""The committed result; `make strangers` measures it again."""

LAWS = ("value", "gradient", "packed", "packed_gradient", "clipping")
"""Values and gradients, as in a quick run, and those of packed calls, in which some strangers are wrong alone."""

STEPS, DTYPE = 130, "float32"


@dataclass(frozen=True, kw_only=True)
class Found:
    """The suite's verdict on a stranger.

    Attributes:
        broken: the checks that failed.
        causes: the sentences of the causes, the first one first.
        explained: how many of the checks the first cause explains.
        laws_seconds, causes_seconds: computed in trying the laws, and in looking for causes.
    """

    name: str
    stranger: Stranger
    broken: tuple[str, ...]
    causes: tuple[str, ...]
    explained: int
    laws_seconds: float
    causes_seconds: float

    @property
    def right(self) -> bool:
        """Whether the verdict is the true one: no check of a right stranger failed, a true cause of a faulty one."""
        if not self.stranger.causes:
            return not self.broken
        return bool(self.causes) and said_truly(self.causes[0], self.stranger)


def said_truly(sentence: str, stranger: Stranger) -> bool:
    """Whether a sentence is about a fault that the stranger has."""
    return any(words in sentence.lower() for words in stranger.causes)


def found_of(name: str, seed: int = 0) -> Found:
    """Try the laws on a stranger in this process, and look for causes where one fails."""
    stranger = {**RIGHT, **FAULTY}[name]
    options = RunOptions(
        laws=LAWS, dtypes=(DTYPE,), examples=EXAMPLES, max_steps=STEPS, seed=seed, contract=stranger.contract
    )
    implementation = load(target(name), stranger.framework, "cpu")
    start = time.process_time()
    results = list(run(implementation, options))
    between = time.process_time()
    failed = [result for result in results if result.status == "failed"]
    causes: tuple[Cause, ...] = diagnose(implementation, options, results).causes if failed else ()
    return Found(
        name=name,
        stranger=stranger,
        broken=tuple(f"{result.law.id} {result.dtype}" for result in failed),
        causes=tuple(cause.sentence for cause in causes),
        explained=len(causes[0].explains) if causes else 0,
        laws_seconds=between - start,
        causes_seconds=time.process_time() - between,
    )


def all_found(names: Sequence[str], seed: int = 0) -> Iterator[Found]:
    for name in names:
        yield found_of(name, seed)


def document(found: Sequence[Found], seed: int) -> dict[str, Any]:
    """The whole result as plain values; no times, which differ from run to run."""
    faulty = [each for each in found if each.stranger.causes]
    right = [each for each in found if not each.stranger.causes]
    return {
        "first_cause_true": sum(each.right for each in faulty),
        "faulty": len(faulty),
        "right_accepted": sum(each.right for each in right),
        "right": len(right),
        "seed": seed,
        "laws": list(LAWS),
        "dtype": DTYPE,
        "examples": EXAMPLES,
        "max_steps": STEPS,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("numpy", "torch", "jax", "hypothesis")},
        },
        "rows": [
            {
                "name": each.name,
                "framework": each.stranger.framework,
                "verdict_is_true": each.right,
                "broken": list(each.broken),
                "first_cause": each.causes[0] if each.causes else None,
                "explains": each.explained,
                "further_causes": len(each.causes[1:]),
            }
            for each in found
        ],
    }
