"""Random calls, the reference's results and gradients, and the comparison of a framework's with them."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

import reference
from reference import MLSTMState

GRU_NAMES = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight", "input_state")
TOLERANCE = {"float64": 1e-11, "float32": 1e-4}
"""Largest error of an array, as a part of its largest element; of values in float64 a tenth of it."""


def relative_error(got: np.ndarray, expected: np.ndarray, scale: float = 0.0) -> float:
    """Largest error as a part of the largest element, or of ``scale``; infinities must agree."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(got[infinite], expected[infinite])
    largest = max(np.abs(expected[~infinite]).max(initial=0.0), scale, np.finfo(np.float64).tiny)
    return float(np.abs(got[~infinite] - expected[~infinite]).max(initial=0.0) / largest)


def assert_close(got: Sequence, expected: Sequence, tolerance: float) -> None:
    """Arrays agree one by one."""
    errors = [relative_error(x, y) for x, y in zip(got, expected, strict=True)]
    assert all(error < tolerance for error in errors), errors


def mlstm_inputs(rng, *tokens: int, N=3, K=5, V=7, gates=2.0) -> list[np.ndarray]:
    """q, k, v, i, f for the leading axes ``tokens``."""
    widths = ((N, K), (N, K), (N, V), (N,), (N,))
    return [rng.normal(size=(*tokens, *width)) * (gates if len(width) == 1 else 1) for width in widths]


def mlstm_state(rng, *lanes: int, K=5, V=7) -> list[np.ndarray]:
    """C, n, m for the leading axes ``lanes``."""
    return [rng.normal(size=(*lanes, *width)) for width in ((K, V), (K,), ())]


def gru_inputs(rng, *tokens: int, heads=(6, 1, 2, 3, 1, 6), H=5, scale=1.0) -> list[np.ndarray]:
    """Inputs and weights in the order of the arguments."""
    shapes = [(heads[at], H, H) if at % 2 else (*tokens, heads[at], H) for at in range(6)]
    return [rng.normal(size=shape) * (scale if at % 2 else 1) for at, shape in enumerate(shapes)]


def mlstm_reference(arrays: Sequence, cotangents: Sequence | None = None, **options: Any) -> Sequence:
    """h, C, n, m; with their cotangents, the gradients of q, k, v, i, f and of the state if one is given."""
    state = MLSTMState(*arrays[5:]) if len(arrays) > 5 else None
    if cotangents is None:
        h, last = reference.mlstm(*arrays[:5], initial_state=state, return_state=True, **options)
        return [h, *last]
    dstate = MLSTMState(*cotangents[1:])
    found = reference.mlstm_backward(*arrays[:5], initial_state=state, dh=cotangents[0], dstate=dstate, **options)
    return [*(found[name] for name in "qkvif"), *(found["initial_state"] if state else ())]


def mlstm(framework: ModuleType, chunk_size: int | None = None, **options: Any) -> Callable:
    """`mlstm` as a function of five arrays or eight, which returns h, C, n, m."""

    def call(*arrays: Any) -> list:
        state = tuple(arrays[5:]) or None
        options.update(initial_state=state, return_state=True, chunk_size=chunk_size)
        h, last = framework.package.mlstm(*arrays[:5], **options)
        return [h, *last]

    return call


def gru_reference(arrays: Sequence, cotangents: Sequence | None = None, **options: Any) -> Sequence:
    """Output and final state; with their cotangents, the gradients of all arrays."""
    if cotangents is None:
        return list(reference.gru(*arrays, **options))
    found = reference.gru_backward(*arrays, **options, dy=cotangents[0], dstate=cotangents[1])
    return [found[name] for name in GRU_NAMES[: len(arrays)]]


def gru(framework: ModuleType, **options: Any) -> Callable:
    return lambda *arrays: framework.package.gru(*arrays, **options)


def native(framework: ModuleType, arrays: Sequence[np.ndarray], dtype: str) -> list[Any]:
    return [framework.array(x, dtype) for x in arrays]


def compare(
    framework: ModuleType, function: Callable, expected: Callable, arrays: Sequence[np.ndarray], dtype: str = "float64"
) -> None:
    """Compare values and gradients with the reference's; all have the dtype of the arrays.

    Args:
        function: of the framework's arrays.
        expected: of NumPy's arrays; with cotangents as a second argument, the gradients.
        dtype: of all arrays, which are rounded to it first.
    """
    arrays = [x.astype(dtype).astype(np.float64) for x in arrays]
    values = expected(arrays)
    rng = np.random.default_rng(99)
    drawn = [rng.normal(size=x.shape).astype(dtype).astype(np.float64) for x in values]
    with framework.wide(dtype == "float64"):
        outputs, found = framework.pull_back(
            function, native(framework, arrays, dtype), native(framework, drawn, dtype)
        )
        assert {framework.dtype_of(x) for x in (*outputs, *found)} == {dtype}
        outputs, found = ([framework.numpy(x) for x in each] for each in (outputs, found))
    assert_close(outputs, values, TOLERANCE[dtype] * (0.1 if dtype == "float64" else 1.0))
    assert_close(found, expected(arrays, drawn), TOLERANCE[dtype])


def pulled(
    framework: ModuleType, function: Callable, arrays: Sequence, cotangents: Sequence, dtype: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Values and gradients of a function in one dtype."""
    with framework.wide(dtype == "float64"):
        found = framework.pull_back(function, native(framework, arrays, dtype), native(framework, cotangents, dtype))
        return tuple([framework.numpy(x) for x in each] for each in found)
