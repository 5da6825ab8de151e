"""The contenders of an operation by the names that ``--peers`` takes; no package is imported for them yet."""

from benchmarks.speed.contenders import Contender
from benchmarks.speed.rows import ours, public, yardsticks

PEERS = tuple(public.CONTENDERS)
"""Other packages, whose adapters are in `benchmarks.peers`."""

YARDSTICKS = tuple(yardsticks.CONTENDERS)
"""Yardsticks of goals: products alone, a loop under autograd, the oracle."""


def contenders(op: str, peers: tuple[str, ...]) -> list[Contender]:
    """Our own contenders and those of ``peers`` for an operation."""
    named = {**public.CONTENDERS, **yardsticks.CONTENDERS}
    found = [ours.CONTENDERS, *(named[name] for name in peers)]
    return [contender for each in found for contender in each if contender.op == op]
