"""An mLSTM that is too large for one computation: heads that are equal once, and its gradient in segments of steps.

The state at the end of a segment is the initial state of the next one, and the gradient with respect to an initial
state is the cotangent of the final state before it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.oracle._common import Values
from conformance.tolerance.budget import Expected

WORK = 1 << 21
"""Largest number of multiply-adds of the recurrence in one computation, whose copies on the tape take up to 4 GB."""
CHUNK, MANY = 64, 512
"""Numbers of steps in a chunk, whose weights for each other are computed at once."""

STATES = ("C0", "n0", "m0")
HEADS = {"q": -2, "k": -2, "v": -2, "h": -2, "i": -1, "f": -1, "C": -3, "n": -2, "m": -1, "C0": -3, "n0": -2, "m0": -1}
"""The axis of heads."""

Results = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Computes results of a call, given arrays and cotangents, which may be copies of arrays."""


def of_distinct_heads(answer: Callable[[Values, Values], Expected], arrays: Values, cotangents: Values) -> Expected:
    """The answer to a call; to a large one, that to its heads that differ."""
    if not is_large(arrays):
        return answer(arrays, cotangents)
    first: dict[bytes, int] = {}
    of_each = []
    for head in range(arrays["q"].shape[-2]):
        own = [x.take(head, HEADS[name]) for of in (arrays, cotangents) for name, x in of.items() if name in HEADS]
        of_each.append(first.setdefault(b"".join(x.tobytes() for x in own), head))
    kept = list(first.values())
    places = [kept.index(head) for head in of_each]

    def at(heads: list[int], name: str, x: np.ndarray) -> np.ndarray:
        return x.take(heads, HEADS[name]) if name in HEADS else x

    found = answer(*({name: at(kept, name, x) for name, x in of.items()} for of in (arrays, cotangents)))
    return found.mapped(partial(at, places))


def is_large(arrays: Mapping[str, Any]) -> bool:
    return arrays["q"].size * arrays["v"].shape[-1] > WORK


def in_groups(results: Results, arrays: Mapping[str, Any], cotangents: Mapping[str, Any], chunk: int = 1) -> Any:
    """The results of a dense call, put together from those of halves of its sequences or heads where it is large.

    Args:
        results: ``(arrays, cotangents) → results``.
        chunk: the number of steps whose weights for each other are computed at once.
    """
    (B, S, *heads, K), V = arrays["q"].shape, arrays["v"].shape[-1]
    count = B * math.prod(heads)
    if count <= 1 or count * S * max(K * V, min(S, chunk)) <= WORK:
        return results(arrays, cotangents)
    axes = dict.fromkeys(HEADS, 0) if B > 1 else HEADS
    half = (B if B > 1 else heads[0]) // 2

    def part(of: Mapping[str, Any], steps: slice) -> dict[str, Any]:
        return {name: x[(steps,) if B > 1 else _at_heads(name, steps)] for name, x in of.items()}

    first, second = (
        in_groups(results, part(arrays, half_of), part(cotangents, half_of), chunk)
        for half_of in (slice(None, half), slice(half, None))
    )
    return {name: np.concatenate([x, second[name]], axis=axes[name]) for name, x in first.items()}


def _at_heads(name: str, heads: slice) -> tuple[Any, ...]:
    return (Ellipsis, heads, *[slice(None)] * (-HEADS[name] - 1))


def in_segments(
    gradient: Results, value: Any, arrays: Mapping[str, Any], cotangents: Mapping[str, Any], chunk: int = 1
) -> Any:
    """The gradient of a call; of a large one, from those of its sequences and heads, and of segments of their steps.

    Args:
        gradient: ``(arrays, cotangents) → gradient``.
        value: ``arrays → outputs``.
        chunk: as in `in_groups`.
    """
    if "cu_seqlens" not in arrays:
        return in_groups(partial(_in_segments, gradient, value), arrays, cotangents, chunk)
    if not is_large(arrays):
        return gradient(arrays, cotangents)
    return _joined([in_segments(gradient, value, *each, chunk) for each in each_sequence(arrays, cotangents)])


def _in_segments(gradient: Results, value: Any, arrays: Mapping[str, Any], cotangents: Mapping[str, Any]) -> Any:
    if not is_large(arrays):
        return gradient(arrays, cotangents)
    segments, states = [*_segments(arrays)], [{name: arrays[name] for name in STATES}]
    for segment in segments[:-1]:
        outputs = value({**segment, **states[-1]})
        states.append({f"{name}0": outputs[name] for name in "Cnm"})
    later: Mapping[str, Any] = {name: cotangents[name] for name in "Cnm"}
    found: list[Mapping[str, Any]] = []
    ends = np.cumsum([0, *(segment["q"].shape[1] for segment in segments)]).tolist()
    for segment, state, (start, end) in reversed(list(zip(segments, states, pairwise(ends), strict=True))):
        found.insert(0, gradient({**segment, **state}, {"h": cotangents["h"][:, start:end], **later}))
        later = {name: found[0][f"{name}0"] for name in "Cnm"}
    return {
        name: x if name in STATES else np.concatenate([each[name] for each in found], axis=1)
        for name, x in found[0].items()
    }


def _segments(arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arrays of each segment, without its initial state."""
    B, S, N, K = arrays["q"].shape
    length = max(1, WORK // (B * N * K * arrays["v"].shape[-1]))
    for start in range(0, max(S, 1), length):
        yield {name: arrays[name][:, start : start + length] for name in "qkvif"}


def each_sequence(
    arrays: Mapping[str, Any], cotangents: Mapping[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A packed call with its state as dense calls of one sequence each."""
    calls = []
    for b, (start, end) in enumerate(pairwise(arrays["cu_seqlens"].tolist())):

        def part(name: str, x: Any, b: int = b, steps: slice = slice(start, end)) -> Any:
            return x[b : b + 1] if name[0] in "Cnm" else x[None, steps]

        own = {name: x for name, x in arrays.items() if name != "cu_seqlens"}
        calls.append(tuple({name: part(name, x) for name, x in of.items()} for of in (own, cotangents)))
    return calls


def _joined(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Gradients of one sequence each as those of a packed call."""
    return {
        name: np.concatenate([part[name] if name in STATES else part[name][0] for part in parts]) for name in parts[0]
    }
