"""Helpers shared by the tests of `jax_impl`: random calls, and the distance between two arrays."""

import jax
import numpy as np


def relative_error(got, expected) -> float:
    """Largest difference over largest value; shapes must agree."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    difference = np.abs(got - expected).max(initial=0.0)
    return float(difference / max(np.abs(expected).max(initial=0.0), np.finfo(np.float64).tiny))


def assert_close(got, expected, tolerance: float) -> None:
    """Two trees of arrays agree array by array."""
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    errors = [relative_error(*pair) for pair in zip(got, expected, strict=True)]
    assert all(error < tolerance for error in errors), errors


def normal(rng, *shape: int, dtype=np.float64) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)


def mlstm_inputs(rng, *tokens: int, N=3, K=5, V=7, gates=2.0, dtype=np.float64) -> tuple[np.ndarray, ...]:
    """q, k, v, i, f for the leading axes ``tokens``."""
    widths = [(N, K), (N, K), (N, V), (N,), (N,)]
    arrays = [rng.normal(size=(*tokens, *width)) for width in widths]
    return tuple((gates * x if at > 2 else x).astype(dtype) for at, x in enumerate(arrays))


def mlstm_state(rng, *lanes: int, K=5, V=7, dtype=np.float64) -> tuple[np.ndarray, ...]:
    """C, n, m for the leading axes ``lanes``."""
    return tuple(normal(rng, *lanes, *width, dtype=dtype) for width in ((K, V), (K,), ()))


def like(rng, tree):
    """Random cotangents for a tree of arrays."""
    return jax.tree.map(lambda x: jax.numpy.asarray(rng.normal(size=x.shape).astype(x.dtype)), tree)


def pull_back(function, arguments, cotangents):
    """Result and gradients of ``function(*arguments)``."""
    result, vjp = jax.vjp(function, *arguments)
    return result, vjp(cotangents)


def shapes_in(jaxpr) -> set[tuple[int, ...]]:
    """The shapes of all values of a jaxpr, inner ones included."""
    shapes = set()
    for equation in jaxpr.eqns:
        shapes |= {tuple(value.aval.shape) for value in equation.outvars}
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                shapes |= shapes_in(inner)
    return shapes
