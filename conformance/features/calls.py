"""Features of calls of every recurrence: the sequences, their packing, and the memory layout of arrays."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np

from conformance import cases
from conformance.cases._gates import large
from conformance.features.feature import Feature, of_field, removed, restored


def lengths(case: Any) -> tuple[int, ...]:
    """The number of steps of every sequence."""
    packed = getattr(case, "lengths", None)
    return packed if packed is not None else (case.S,) * getattr(case, "B", 1)


def with_lengths(case: Any, change: Callable[[int], int]) -> Any:
    """The case with every number of steps changed."""
    if getattr(case, "lengths", None) is None:
        return replace(case, S=change(case.S))
    return replace(case, lengths=tuple(change(S) for S in case.lengths))


def _dense(case: Any) -> Any:
    sequences = case.lengths or ()
    return replace(case, lengths=None, room=None, B=max(len(sequences), 1), S=max(sequences, default=0))


def _packed(case: Any) -> Any:
    half = case.S // 2
    return replace(case, lengths=(half, case.S - half, case.S)[: max(case.B, 2)], B=max(case.B, 2), S=0)


MULTIPLE = 16
"""Kernels pad head dims to a multiple of this."""

FACTORS = (4, 16)
"""Lengths of vectors and of tiles, of which some kernels ask that the number of steps be a multiple."""


def not_multiple(factor: int, *wider: str, block: Callable[[Any], int] | None = None) -> Feature:
    """The feature that a number does not divide the number of steps of some sequence.

    It is added with a number of steps that a smaller one of `FACTORS` divides, and so without narrower such features.

    Args:
        factor: the number.
        wider: names of the features of its multiples.
        block: the number where it depends on the case.
    """

    def of(case: Any) -> int:
        return factor if block is None else block(case)

    def longer(S: int, of: int) -> int:
        return next((S + more for more in (*reversed(FACTORS), 1) if (S + more) % of), S)

    return Feature(
        name=f"S not a multiple of {factor}",
        sentence=f"the number of steps is not a multiple of {factor}",
        phrase=f"where S is not a multiple of {factor}",
        present=lambda case: any(S % of(case) for S in lengths(case)),
        without=lambda case: with_lengths(case, lambda S: -(-S // of(case)) * of(case)),
        added=lambda case: with_lengths(case, lambda S: longer(S, of(case))),
        implies=wider,
        of_sizes=True,
        letters=("S",),
    )


def several_blocks(name: str, sentence: str, phrase: str, block: Callable[[Any], int]) -> Feature:
    """The feature that some sequence has more than a given number of steps."""

    def shortened(S: int, of: int) -> int:
        """The longest sequence of one block with the same remainder of 16 steps, or of the block."""
        return S if S <= of else of - (of - S) % (16 if of % 16 == 0 else of)

    return Feature(
        name=name,
        sentence=sentence,
        phrase=phrase,
        present=lambda case: any(S > block(case) for S in lengths(case)),
        without=lambda case: with_lengths(case, lambda S: shortened(S, block(case))),
        added=lambda case: with_lengths(case, lambda S: S + block(case)),
        of_sizes=True,
        letters=("S",),
    )


BLOCK = 64
"""Most kernels process so many steps or fewer at a time."""

BLOCKS = (
    not_multiple(4, "S not a multiple of 16", "S not a multiple of 64"),
    not_multiple(16, "S not a multiple of 64"),
    not_multiple(BLOCK),
    several_blocks("S above 64", "some sequence has more than 64 steps", "where S is above 64", lambda case: BLOCK),
)


def with_sequences(case: Any, B: int) -> Any:
    """The case with another number of sequences; packed ones have the lengths of its own, in turn."""
    if getattr(case, "lengths", None) is None:
        return replace(case, B=B)
    return replace(case, B=B, lengths=tuple(islice(cycle(case.lengths), B)))


NO_STEPS = Feature(
    name="S = 0",
    sentence="there are no steps",
    phrase="where there are no steps (S = 0)",
    present=lambda case: case.steps == 0 and bool(lengths(case)),
    without=lambda case: with_lengths(case, lambda S: S or 3),
    added=lambda case: replace(case, S=0),
)

NO_SEQUENCES = Feature(
    name="B = 0",
    sentence="there are no sequences",
    phrase="where there are no sequences (B = 0)",
    present=lambda case: not lengths(case),
    without=lambda case: replace(case, B=1, lengths=None if case.lengths is None else (3,)),
    added=lambda case: replace(case, B=0),
)

SEVERAL_STEPS = Feature(
    name="several steps",
    sentence="some sequence has more than one step",
    phrase="where a sequence has more than one step",
    present=lambda case: case.steps > 1,
    without=lambda case: with_lengths(case, lambda S: min(S, 1)),
    added=lambda case: with_lengths(case, lambda S: max(S, 2)),
    letters=("S",),
)

SEVERAL_SEQUENCES = Feature(
    name="several sequences",
    sentence="there is more than one sequence",
    present=lambda case: len(lengths(case)) > 1,
    without=lambda case: replace(case, B=1, lengths=None if case.lengths is None else (max(case.lengths),)),
    added=lambda case: replace(case, B=max(case.B, 2)),
    of_sizes=True,
    letters=("B",),
)

SEVERAL_HEADS = Feature(
    name="several heads",
    sentence="there is more than one head",
    present=lambda case: case.N > 1,
    without=lambda case: replace(case, N=1),
    added=lambda case: replace(case, N=max(case.N, 2)),
    of_sizes=True,
    letters=("N",),
)

STATE_COTANGENTS = of_field(
    "cotangents",
    "output only",
    "dense",
    name="state cotangents",
    sentence="the gradient also has cotangents of the final state, not only of the output",
    phrase="where the final state has cotangents",
)


def initial_state(none: Any, some: Any) -> Feature:
    """The feature that a call has an initial state, given what a case says without one and with one."""
    return of_field(
        "state",
        none,
        some,
        name="initial state",
        sentence="the call is given an initial state",
        phrase="where a call has an initial state",
    )


def of_gates(gates: Callable[[Any], np.ndarray], sentence: str, phrase: str) -> tuple[Feature, Feature]:
    """The features that a gate is infinite, and that a finite one is large, for cases with a regime of extreme gates.

    Args:
        gates: the gates of a case.
        sentence, phrase: what one of them is called, in the sentence of a feature and in the clause of a cause.
    """

    def extreme(case: Any, kept: str, other: str) -> Any:
        return removed(other)(restored(case, kept, gates="extreme"))

    infinite, finite = "infinite gates", "large gates"
    return (
        Feature(
            name=infinite,
            sentence=f"some {sentence} is infinite",
            phrase=f"where a {phrase} is infinite",
            present=lambda case: bool(np.isinf(gates(case)).any()),
            without=removed(infinite),
            added=lambda case: extreme(case, infinite, finite),
            of_values=True,
        ),
        Feature(
            name=finite,
            sentence=f"some finite {sentence} is beyond ±20",
            phrase=f"where a finite {phrase} is large",
            present=lambda case: bool(large(gates(case)).any()),
            without=removed(finite),
            added=lambda case: extreme(case, finite, infinite),
            of_values=True,
        ),
    )


SCALED_COTANGENTS = of_field(
    "cotangent_scale", 1.0, 1e6, name="scaled cotangents", sentence="cotangents are far from 1 in magnitude"
)


def scaled(arrays: str, scale: float) -> Feature:
    """The feature that these arrays have another scale than 1, such as the given one."""
    return of_field("scale", 1.0, scale, name="scaled values", sentence=f"{arrays} are far from 1 in magnitude")


PACKING = (
    Feature(
        name="packed",
        sentence="sequences of different lengths lie one after the other, with cu_seqlens",
        phrase="where sequences are packed",
        present=lambda case: case.lengths is not None,
        without=_dense,
        added=_packed,
    ),
    Feature(
        name="max_seqlen",
        sentence="max_seqlen is given",
        present=lambda case: case.room is not None,
        without=lambda case: replace(case, room=None),
        added=lambda case: replace(_packed(case), room=3),
    ),
)

LAYOUT = of_field(
    "layout",
    "contiguous",
    "transposed",
    name="layout",
    sentence="arrays are not contiguous in memory",
)

CLIPPING = of_field(
    cases.CLIPPING,
    None,
    0.1,
    name="clipping",
    sentence="gradient_clipping is given",
)


def above(letter: str) -> tuple[Feature, ...]:
    """The features that a number of features or units is above the sizes of tiles, the widest first."""

    def beyond(limit: int, wider: tuple[str, ...]) -> Feature:
        return Feature(
            name=f"{letter} above {limit}",
            sentence=f"{letter} is above {limit}",
            phrase=f"where {letter} > {limit}",
            present=lambda case: getattr(case, letter) > limit,
            without=lambda case: replace(case, **{letter: min(getattr(case, letter), limit)}),
            added=lambda case: replace(case, **{letter: 2 * limit}),
            implies=wider,
            of_sizes=True,
            large=True,
            letters=(letter,),
        )

    names = [f"{letter} above {limit}" for limit in TILES]
    return tuple(beyond(limit, tuple(names[:number])) for number, limit in enumerate(TILES))


TILES = (32, 64, 128)
"""Numbers of features that kernels process at a time."""
