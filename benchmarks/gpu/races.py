"""Pipelined loops in which a copy may overwrite what a product still reads, in the compiler's own intermediate code.

Products of Hopper's tensor cores (``warp_group_dot``) run while the code that starts them goes on, until a wait leaves
only so many of them pending. A pipelined loop copies the next iteration's operands into buffers meanwhile. Triton
gives a load that something else than a product reads too one buffer less than it needs (triton-lang/triton#6691; seen
in 3.6.0 and 3.9.0): results then depend on which is faster. No interpreter shows this, and few runs on hardware do.
"""

import re
from collections import Counter
from typing import NamedTuple

_VALUE = r"(%\w+)(?:#\d+)?"
_BUFFERS = re.compile(rf"{_VALUE} = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
_VIEW = re.compile(rf"{_VALUE} = ttg\.memdesc_\w+ {_VALUE}")
_PRODUCT = re.compile(rf"ttng\.warp_group_dot {_VALUE}, {_VALUE},.*isAsync = true")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")
_COPY = re.compile(rf"ttg\.async_copy_global_to_local {_VALUE}, {_VALUE}")
_ITERATIONS = 4
"""More than the iterations that a buffer or a product spans."""


class Race(NamedTuple):
    """A copy into a buffer, at a line of the code, while a product of ``iterations`` iterations ago may read it."""

    buffer: str
    line: int
    iterations: int


def races(ttgir: str) -> list[Race]:
    """The races in a kernel's TTGIR, ``compiled.asm["ttgir"]``, in the order of their lines."""
    lines = ttgir.splitlines()
    found = set()
    for first, body in _loops(lines):
        memory = _Memory()
        for line in lines[:first]:
            memory.read(line)
        ahead = Counter(memory.ahead)
        pending: list[tuple[int, set[str]]] = []
        for iteration in range(_ITERATIONS):
            for number in body:
                line = lines[number]
                memory.read(line)
                if match := _PRODUCT.search(line):
                    pending.append((iteration, {memory.of.get(operand, operand) for operand in match.groups()}))
                elif match := _WAIT.search(line):
                    pending = pending[max(len(pending) - int(match[1]), 0) :]
                elif (match := _COPY.search(line)) and (buffer := memory.of.get(match[2])):
                    for started, operands in pending:
                        # The copy is for the iteration so many further on, and iterations take the buffers in turn.
                        distance = iteration - started + ahead[buffer]
                        if buffer in operands and distance % memory.buffers[buffer] == 0:
                            found.add(Race(buffer, number + 1, iteration - started))
    return sorted(found, key=lambda race: (race.line, race.iterations))


class _Memory:
    """Shared memory as the lines read so far have it.

    Attributes:
        buffers: the number of buffers of each allocation. Its name may be one of an earlier allocation too.
        of: the allocation of every view of one.
        ahead: the number of copies into each allocation.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, int] = {}
        self.of: dict[str, str] = {}
        self.ahead: Counter[str] = Counter()

    def read(self, line: str) -> None:
        if match := _BUFFERS.search(line):
            self.buffers[match[1]], self.of[match[1]], self.ahead[match[1]] = int(match[2]), match[1], 0
        elif match := _VIEW.search(line):
            self.of[match[1]] = self.of.get(match[2], match[2])
        elif match := _COPY.search(line):
            self.ahead[self.of.get(match[2], match[2])] += 1


def _loops(lines: list[str]) -> list[tuple[int, list[int]]]:
    """The first line of every loop, and the lines in it that are in no loop inside it."""
    found, open_loops = [], []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if " scf.for " in line or line.lstrip().startswith("scf.for "):
            open_loops.append((number, indent, []))
        elif open_loops and line.lstrip().startswith("}") and indent == open_loops[-1][1]:
            first, _, body = open_loops.pop()
            found.append((first, body))
        elif open_loops:
            open_loops[-1][2].append(number)
    return found
