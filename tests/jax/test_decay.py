"""Scans and decay matrices in forward mode, and derivatives that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
from tests.jax.tools import normal


@pytest.mark.parametrize("name", ["rev_cumsum", "rev_cumsum_off", "causal_forget_matrix"])
def test_forward_mode_is_the_operation_itself(name):
    """Linear operations (but for the mask): the tangent is the operation of the tangent, whatever −∞ x holds."""
    rng = np.random.default_rng(1)
    x, dx = -np.abs(normal(rng, 2, 9, dtype=np.float32)), normal(rng, 2, 9, dtype=np.float32)
    x[0, 4] = -np.inf
    operation = getattr(jax_impl, name)
    _, dy = jax.jvp(operation, (x,), (dx,))
    expected = operation(dx)
    np.testing.assert_allclose(dy, jnp.where(jnp.isfinite(expected), expected, 0), rtol=1e-6)


def test_dtilde_differentiates_once_in_reverse():
    gates = np.ones((3, 1), np.float32), np.ones((3, 1), np.float32)

    def loss(fgate):
        return jnp.sum(jnp.tril(jax_impl.dtilde_matrix(gates[0], fgate)) ** 2)

    with pytest.raises(NotImplementedError, match=r"^dtilde_matrix: forward-mode and second derivatives"):
        jax.grad(lambda f: jnp.sum(jax.grad(loss)(f)))(gates[1])
    with pytest.raises(NotImplementedError, match=r"^dtilde_matrix: forward-mode"):
        jax.jvp(jax_impl.dtilde_matrix, gates, gates)
