"""The mLSTM, with tolerances from the specification in which every operation is rounded at random."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import Compute, Way, copied, differentiated, slack, written
from conformance.oracle._large import CHUNK, MANY, in_groups, in_segments, of_distinct_heads
from conformance.oracle._mlstm_branches import counted
from conformance.rows import correct, foreign, taped
from conformance.rows.row import Row
from conformance.specification.changed import Specification, changed
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.designs import AnyDesign
from reference._mlstm import normaliser_floor
from reference.arguments import MLSTMState

EXACT = Specification(reference, {})
STATES = ("C0", "n0", "m0")


def _rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row for row in rows if row.op == "mlstm")


CORRECT = _rows(correct.ROWS)
OTHERWISE = tuple(row for row in CORRECT if not row.of_gradient)
"""All other spellings of the value at once: its gradient by the tape is right, too."""
FOREIGN = _rows(foreign.ROWS)


class Definition(NamedTuple):
    """Of an mLSTM with a normaliser's floor of its own.

    Attributes:
        rows: what it changes in the specification of `mlstm`.
        taped: the same where the tape follows it, with what its gradient holds constant.
        floor: the floor, given m.
    """

    rows: tuple[Row, ...]
    taped: tuple[Row, ...]
    floor: Callable[[np.ndarray], np.ndarray]


MLSTM = Definition((), _rows(taped.CONSTANT), normaliser_floor)


def rescaled(part: np.ndarray, m: np.ndarray, reference_m: np.ndarray) -> np.ndarray:
    """``part·exp(m − m*)``, where an empty memory (m = m* = −∞) has weight 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        weight = np.where(np.isneginf(m) & np.isneginf(reference_m), 0.0, np.exp(m - reference_m))
        return part * weight.reshape(*weight.shape, *[1] * (part.ndim - weight.ndim))


def with_state(arrays: Values) -> Values:
    """The arrays of a call, with zeros for an initial state that is omitted."""
    if "C0" in arrays:
        return arrays
    q, v = arrays["q"], arrays["v"]
    B = len(arrays["cu_seqlens"]) - 1 if "cu_seqlens" in arrays else q.shape[0]
    N, K, V = q.shape[-2], q.shape[-1], v.shape[-1]
    return {**arrays, "C0": np.zeros((B, N, K, V)), "n0": np.zeros((B, N, K)), "m0": np.zeros((B, N))}


@without_warnings
def mlstm(arrays: Values, options: Mapping[str, Any], precision: Precision, definition: Definition = MLSTM) -> Expected:
    """Value of `mlstm`, dense or packed. States are in the units of their own m (see `rescaled`)."""

    def answer(arrays: Values, _: Values) -> Expected:
        exact = _value(options)(changed(*definition.rows), arrays)

        def in_units(copies: Values) -> Values:
            return {**copies, **{name: rescaled(copies[name], copies["m"], exact["m"]) for name in "Cn"}}

        def way(*rows: Row, chunk: int | None = None) -> Way:
            return written(_value(options, chunk), partial(changed, *definition.rows, *rows), arrays)

        ways = [way()]
        if isinstance(precision, AnyDesign):
            ways.append(way(*FOREIGN, chunk=MANY))
        ways.append(way(chunk=CHUNK))
        ways += [way(*OTHERWISE, chunk=size) for size in (None, CHUNK, MANY)]
        return Expected(exact, slack(exact, ways, precision, {}, in_units))

    return of_distinct_heads(answer, copied(with_state(arrays)), {})


@without_warnings
def mlstm_gradient(
    arrays: Values,
    options: Mapping[str, Any],
    cotangents: Values,
    precision: Precision,
    definition: Definition = MLSTM,
) -> Expected:
    """Gradient of `mlstm`, dense or packed, that of the initial state included."""
    arrays, cotangents = copied(with_state(arrays)), copied(cotangents)
    zeros = {name: np.zeros(arrays[f"{name}0"].shape) for name in "Cnm" if name not in cotangents}
    return of_distinct_heads(partial(_gradient, options, precision, definition), arrays, {**cotangents, **zeros})


def _value(options: Mapping[str, Any], chunk_size: int | None = None) -> Compute:
    more = {"eps": options.get("eps", 0.0), "chunk_size": chunk_size, "return_state": True}

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        def outputs(arrays: Mapping[str, Any], _: Any) -> dict[str, Any]:
            h, state = specification.function("mlstm")(*_tokens(arrays), **_given(arrays), **more)
            return {"h": h, **dict(zip("Cnm", state, strict=True))}

        packed = "cu_seqlens" in arrays
        return outputs(arrays, {}) if packed else in_groups(outputs, arrays, {}, chunk_size or 1)

    return compute


def _tokens(arrays: Mapping[str, Any]) -> list[Any]:
    return [arrays[name] for name in "qkvif"]


def _given(arrays: Mapping[str, Any]) -> dict[str, Any]:
    state = MLSTMState(*(arrays[name] for name in STATES))
    return {"initial_state": state, "cu_seqlens": arrays.get("cu_seqlens")}


def _gradient(
    options: Mapping[str, Any], precision: Precision, definition: Definition, arrays: Values, cotangents: Values
) -> Expected:
    value = _value(options)

    def backward(specification: Specification, arrays: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
        function, dstate = specification.function("mlstm_backward"), MLSTMState(*(of[name] for name in "Cnm"))
        eps = options.get("eps", 0.0)
        found = function(*_tokens(arrays), **_given(arrays), dh=of["h"], dstate=dstate, eps=eps)
        return found | dict(zip(STATES, found.pop("initial_state"), strict=True))

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        found = in_segments(partial(backward, specification), partial(value, specification), arrays, cotangents)
        return dict(found)

    def by_tape(*rows: Row, chunk: int | None = None) -> Way:
        parts = partial(in_segments, chunk=chunk or 1)
        version = partial(changed, *rows, *definition.taped)
        return differentiated(_value(options, chunk), version, arrays, cotangents, in_parts=parts)

    def by_hand(*rows: Row) -> Way:
        return written(compute, partial(changed, *definition.rows, *rows), arrays)

    exact = compute(changed(*definition.rows), arrays)
    # What widens tolerances most comes first, because a tolerance is computed only as far as it is needed.
    ways = [by_hand()]
    if isinstance(precision, AnyDesign):
        of_value = [row for row in FOREIGN if not row.of_gradient]
        ways += [by_tape(*of_value, chunk=MANY), by_hand(*FOREIGN)]
    ways += [by_tape(), by_tape(chunk=CHUNK), by_tape(*OTHERWISE), by_tape(*OTHERWISE, chunk=CHUNK)]
    ways += [by_hand(*CORRECT), by_tape(*OTHERWISE, chunk=MANY)]
    tolerances, more = slack(exact, ways, precision, cotangents), of_no_memory(arrays, cotangents)
    expected = Expected(exact, {name: x + more.get(name, 0.0) for name, x in tolerances.items()})
    return counted(expected, arrays, precision, definition.floor)


def of_no_memory(arrays: Values, cotangents: Values) -> Values:
    """What a memory that ends empty adds: all candidates for m are −∞, and its cotangent may reach any of them."""
    if not np.isneginf(arrays["f"]).any() and not np.isneginf(arrays["m0"]).any():
        return {}
    m = _value({})(EXACT, arrays)["m"]
    g = np.where(np.isneginf(m), 1.01 * np.abs(cotangents["m"]), 0.0)
    of_steps = np.repeat(g, np.diff(arrays["cu_seqlens"]), 0) if "cu_seqlens" in arrays else g[:, None]
    gate = np.exp(-np.logaddexp(0.0, arrays["f"]))
    return {"i": of_steps * np.ones(gate.shape), "f": of_steps * gate, "m0": g}
