"""A dense mLSTM that is too large for one computation: head by head, and each head in segments.

Sequences and heads are independent, so that heads that are equal have equal answers, and are computed once. The exact
state at the end of a segment is the initial state of the next one, and the gradient with respect to an initial state is
the cotangent of the final state before it. A tolerance is that of a sequence that is cut there
(`Operation.cut_slack`).
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

import reference
from conformance.oracle._common import Values, total
from conformance.oracle._mlstm import with_state
from conformance.tolerance.budget import Expected
from reference.arguments import MLSTMState

WORK = 1 << 24
"""Largest number of multiply-adds of the recurrence in one computation, which then takes up to 4 GB and 8 s."""

STATES = ("C0", "n0", "m0")

Dense = Callable[[Values, Values], Expected]
"""The oracle, given arrays and cotangents; of a value, the cotangents are empty."""


def is_large(arrays: Values) -> bool:
    B, S, N, K = arrays["q"].shape
    return B * S * N * K * arrays["v"].shape[-1] > WORK


def in_parts(dense: Dense, arrays: Values, cotangents: Values) -> Expected:
    """The answer of ``dense`` to a large call, from its answers to parts of it."""
    arrays = with_state(arrays)
    B, _, N, _ = arrays["q"].shape
    found: dict[bytes, Expected] = {}
    answers = []
    for b in range(B):
        for n in range(N):
            own, of_own = (_of_head(of, b, n) for of in (arrays, cotangents))
            key = b"".join(x.tobytes() for of in (own, of_own) for x in of.values())
            if key not in found:
                found[key] = _of_segments(dense, own, of_own)
            answers.append(found[key])
    of_each = list(found.values())
    return Expected(
        _joined([each.values for each in answers], B),
        _joined([each.slack for each in answers], B),
        sum(each.kinks for each in of_each),
        sum(each.elements for each in of_each),
        total([each.spread for each in of_each]),
        _carried(answers, B),
    )


def _of_head(arrays: Values, b: int, n: int) -> Values:
    """The arrays of one head of one sequence."""
    return {name: np.ascontiguousarray(x[b : b + 1].take([n], _head_axis(name))) for name, x in arrays.items()}


def _head_axis(name: str) -> int:
    """The axis of heads: behind that of the steps, where there is one."""
    return 1 if name in (*STATES, *"Cnm") else 2


def _joined(parts: list[Values], B: int) -> Values:
    """Arrays of single heads, sequence by sequence, as arrays of all."""
    rows = [parts[start : start + len(parts) // B] for start in range(0, len(parts), len(parts) // B)]
    return {
        name: np.concatenate([np.concatenate([part[name] for part in row], _head_axis(name)) for row in rows])
        for name in parts[0]
    }


def _carried(answers: list[Expected], B: int) -> np.ndarray | None:
    parts = [each.carried for each in answers if each.carried is not None]
    return np.concatenate(parts, axis=1).reshape(B, -1) if parts else None


def _of_segments(dense: Dense, arrays: Values, cotangents: Values) -> Expected:
    segments = list(_segments(arrays))
    answers: list[Expected] = []
    if not cotangents:
        for segment in segments:
            answers.append(dense(segment, {}))
        return _along_steps(answers, "Cnm")
    later = {name: cotangents[name] for name in "Cnm"}
    bounds = np.cumsum([0, *(segment["q"].shape[1] for segment in segments)])
    for segment, (start, end) in reversed(list(zip(segments, pairwise(bounds), strict=True))):
        answers.insert(0, dense(segment, {"h": cotangents["h"][:, start:end], **later}))
        later = {name: answers[0].values[f"{name}0"] for name in "Cnm"}
    return _along_steps(answers, STATES)


def _segments(arrays: Values) -> Iterator[Values]:
    """The arrays of each segment, with the exact state that it begins with."""
    S, K, V = arrays["q"].shape[1], arrays["q"].shape[-1], arrays["v"].shape[-1]
    length = max(1, WORK // (K * V))
    state = MLSTMState(*(arrays[name] for name in STATES))
    for start in range(0, S, length):
        steps = {name: arrays[name][:, start : start + length] for name in "qkvif"}
        yield {**steps, **dict(zip(STATES, state, strict=True))}
        _, state = reference.mlstm_chunkwise(*(steps[name] for name in "qkvif"), initial_state=state)


def _along_steps(answers: list[Expected], states: tuple[str, ...] | str) -> Expected:
    """The answers of consecutive segments as one: final states are the last one's, initial states the first one's."""
    at = 0 if states == STATES else -1

    def joined(parts: list[Values]) -> Values:
        return {
            name: parts[at][name] if name in states else np.concatenate([part[name] for part in parts], axis=1)
            for name in parts[0]
        }

    carried = [each.carried for each in answers if each.carried is not None]
    return Expected(
        joined([each.values for each in answers]),
        joined([each.slack for each in answers]),
        sum(each.kinks for each in answers),
        sum(each.elements for each in answers),
        total([each.spread for each in answers]),
        np.max(carried, axis=0) if carried else None,
    )
