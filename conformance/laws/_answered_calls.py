"""Acceptable answers to calls that should be refused: those to the only meaning that the arrays can have, if any."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from conformance import oracle
from conformance.budget import Expected, Precision, judge
from conformance.call import Call
from conformance.checker import LawError
from conformance.dtypes import FLOATING, ROUNDOFF, Array, array
from conformance.implementation import Implementation, Results
from conformance.operations import OPERATIONS, Operation


def expect_right(
    call: Call,
    good: Mapping[str, Array],
    got: Results,
    misshapen: bool,
    reference: Implementation,
) -> None:
    """Check the answer to a call that gatespec refuses against the only meaning that the call can have.

    That is the definition's answer for the same numbers, in a dtype that all arrays share, and with an array of
    another shape broadcast, reshaped or cut to the expected shape. Options that do not affect the value are ignored. If
    the shapes fit and the definition still has no answer (a negative ``eps``), any answer passes.

    Args:
        good: the arrays of the valid call that was changed.
        got: the target's answer.
        misshapen: whether an array has a shape that does not fit, so that usually no answer can be right.

    Raises:
        LawError: the answer is a different one, or no answer can be right.
    """
    record = OPERATIONS[call.operation]
    counted = {name: option for name, option in call.options.items() if _changes_value(record, name)}
    wrong: LawError | None = None
    for meant in _meanings(call.arrays, good):
        try:
            reference.attempt(replace(call, arrays=meant, options=counted))
        except Exception:
            continue
        wrong = _difference(record, meant, counted, _coarsest(call.arrays), got)
        if wrong is None:
            return
    if wrong is not None:
        raise wrong
    if misshapen:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in got.items())
        raise LawError("", f"was accepted and returned {shapes}, although its arrays fit no call")


def _changes_value(record: Operation, name: str) -> bool:
    return any(option.name == name and option.changes_value for option in record.options)


def _meanings(arrays: Mapping[str, Any], good: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The arrays in float64, in every shape that they may be meant to have."""
    names = [name for name, x in arrays.items() if x is not None]
    choices = [list(_shapes(_as_array(arrays[name]), good.get(name))) for name in names]
    for chosen in product(*choices):
        yield dict(zip(names, chosen, strict=True))


def _as_array(x: Any) -> Array | None:
    if isinstance(x, Array):
        return x
    try:
        return array(np.asarray(x, dtype=np.float64), "float64")
    except (TypeError, ValueError):
        return None


def _shapes(x: Array | None, good: Array | None) -> Iterator[Array]:
    if x is None:
        return
    if good is not None and good.dtype not in FLOATING:
        yield replace(x, values=x.values.astype(np.int64), dtype="int64")
        return
    x = array(x.values, "float64")
    yield x
    if good is None or good.shape == x.shape:
        return
    if good.values.size == x.values.size:
        yield replace(x, values=x.values.reshape(good.shape))
    elif x.values.ndim == len(good.shape) and all(has >= needs for has, needs in zip(x.shape, good.shape, strict=True)):
        yield replace(x, values=x.values[tuple(map(slice, good.shape))])
    elif x.values.ndim:
        with suppress(ValueError):
            yield replace(x, values=np.broadcast_to(x.values, good.shape))


def _coarsest(arrays: Mapping[str, Any]) -> str:
    """The floating-point dtype of lowest precision among the arrays, in which an answer may have been computed."""
    dtypes = [x.dtype for x in arrays.values() if isinstance(x, Array) and x.dtype in FLOATING]
    return max(dtypes, key=ROUNDOFF.__getitem__, default="float32")


def _difference(
    record: Operation, arrays: Mapping[str, Array], options: Mapping[str, Any], dtype: str, got: Results
) -> LawError | None:
    """The difference between the outputs and the definition's, or None if there is none; states are ignored."""
    steps = max((x.shape[0] for x in arrays.values() if x.values.ndim), default=1)
    precision = Precision(dtype, max(steps, *(max(x.shape, default=1) for x in arrays.values())))
    expected: Expected = record.value(oracle.values(arrays), options, precision)
    for name in record.in_dtype:
        if name not in got:
            return LawError(name, "missing", nature="missing")
        # Values may have been rounded to the coarsest dtype, whatever the dtype in which they are returned.
        slack = expected.slack[name] + ROUNDOFF[dtype] * np.abs(expected.values[name])
        slack = slack if got[name].dtype in FLOATING else slack + 1  # Integers answered in integers: truncated.
        verdict = judge(got[name], expected.values[name], slack, precision, times=2)
        if verdict.worst > 1:
            said = verdict.reason or f"at {list(verdict.index or ())} is {verdict.got!r}, and must be"
            said = said if verdict.reason else f"{said} {verdict.expected!r}"
            return LawError(name, f"was accepted, with a wrong result: {said}", verdict)
    return None
