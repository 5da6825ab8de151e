"""What a call may answer that ought to be refused: what its arrays can only mean, where they mean anything."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from conformance import oracle
from conformance.budget import Expected, Precision, judge
from conformance.checker import LawError
from conformance.dtypes import FLOATING, ROUNDOFF, Array, array
from conformance.implementation import Implementation, Results
from conformance.operations import OPERATIONS, Operation


def expect_right(
    operation: str,
    arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    good: Mapping[str, Array],
    got: Results,
    misshapen: bool,
    reference: Implementation,
) -> None:
    """Hold the answer to a call that gatespec refuses to what the call can only mean.

    That is the definition's answer to the same numbers: in a dtype that all arrays share, and with an array of another
    shape broadcast, reshaped or cut to the shape that was expected. Options that change no value do not count. Where
    shapes fit and the definition still has no answer (a negative ``eps``), any answer will do.

    Args:
        good: the arrays of the good call that was changed.
        got: what the target answered.
        misshapen: whether an array has a shape that does not fit, so that most often no answer can be right.

    Raises:
        LawError: the answer is another one, or no answer can be right.
    """
    record = OPERATIONS[operation]
    counted = {name: option for name, option in options.items() if _changes_value(record, name)}
    wrong: LawError | None = None
    for meant in _meanings(arrays, good):
        try:
            reference.attempt(operation, meant, counted)
        except Exception:
            continue
        wrong = _difference(record, meant, counted, _coarsest(arrays), got)
        if wrong is None:
            return
    if wrong is not None:
        raise wrong
    if misshapen:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in got.items())
        raise LawError("", f"was accepted, and answered with {shapes}; its arrays fit no call")


def _changes_value(record: Operation, name: str) -> bool:
    return any(option.name == name and option.changes_value for option in record.options)


def _meanings(arrays: Mapping[str, Any], good: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The arrays in float64, in every shape that they can be meant to have."""
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
    """The floating dtype of the lowest precision among the arrays: an answer may have been computed in it."""
    dtypes = [x.dtype for x in arrays.values() if isinstance(x, Array) and x.dtype in FLOATING]
    return max(dtypes, key=ROUNDOFF.__getitem__, default="float32")


def _difference(
    record: Operation, arrays: Mapping[str, Array], options: Mapping[str, Any], dtype: str, got: Results
) -> LawError | None:
    """How the outputs differ from the definition's, None where they do not; states are not looked at."""
    steps = max((x.shape[0] for x in arrays.values() if x.values.ndim), default=1)
    precision = Precision(dtype, max(steps, *(max(x.shape, default=1) for x in arrays.values())))
    expected: Expected = record.value(oracle.values(arrays), options, precision)
    for name in record.in_dtype:
        if name not in got:
            return LawError(name, "missing", nature="missing")
        # Rounded to the coarsest dtype at some time, whatever dtype it comes back in.
        slack = expected.slack[name] + ROUNDOFF[dtype] * np.abs(expected.values[name])
        slack = slack if got[name].dtype in FLOATING else slack + 1  # Integers answered in integers: truncated.
        verdict = judge(got[name], expected.values[name], slack, precision, times=2)
        if verdict.worst > 1:
            said = verdict.reason or f"at {list(verdict.index or ())} is {verdict.got!r}, and can only be"
            said = said if verdict.reason else f"{said} {verdict.expected!r}"
            return LawError(name, f"was answered, and wrongly: {said}", verdict)
    return None
