"""Scans and decay matrices: values, gradients in both modes, hard resets, the seed notebook's rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from tests.jax.tools import assert_close, like, normal, pull_back, relative_error

LINEAR = ["rev_cumsum", "rev_cumsum_off", "causal_forget_matrix"]
ARGUMENT = {"rev_cumsum": "x", "rev_cumsum_off": "x", "causal_forget_matrix": "forget_gates"}
COTANGENT = {"rev_cumsum": "dy", "rev_cumsum_off": "dy", "causal_forget_matrix": "dF"}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("shape", [(0,), (1,), (2, 3, 65)])
def test_values_and_gradients(name, shape):
    rng = np.random.default_rng(0)
    x = -np.abs(normal(rng, *shape))
    with jax.enable_x64(True):
        y, vjp = jax.vjp(getattr(jax_impl, name), x)
        dy = like(rng, y)
        (dx,) = vjp(dy)
    np.testing.assert_allclose(y, getattr(reference, name)(x), rtol=1e-12, atol=1e-12)
    backward = getattr(reference, f"{name}_backward")
    assert relative_error(dx, backward(x, **{COTANGENT[name]: np.asarray(dy)})[ARGUMENT[name]]) < 1e-12


@pytest.mark.parametrize("name", LINEAR)
def test_forward_mode_is_the_operation_itself(name):
    """Linear operations (but for the mask): the tangent is the operation of the tangent, whatever −∞ x holds."""
    rng = np.random.default_rng(1)
    x, dx = -np.abs(normal(rng, 2, 9, dtype=np.float32)), normal(rng, 2, 9, dtype=np.float32)
    x[0, 4] = -np.inf
    operation = getattr(jax_impl, name)
    _, dy = jax.jvp(operation, (x,), (dx,))
    expected = operation(dx)
    np.testing.assert_allclose(dy, jnp.where(jnp.isfinite(expected), expected, 0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_narrow_dtypes_are_summed_in_float32(dtype):
    x = jnp.ones((4097,), dtype)
    y = jax_impl.rev_cumsum(x)
    assert y.dtype == dtype
    assert y[0] == jnp.asarray(4097, dtype)
    assert jax_impl.rev_cumsum_off(x).dtype == jax_impl.causal_forget_matrix(x[:9]).dtype == dtype
    assert jax_impl.dtilde_matrix(x[:9, None], x[:9, None]).dtype == dtype


def test_hard_resets_leave_no_nan():
    a = np.array([-1.0, -np.inf, -2.0, -3.0], np.float32)
    F, vjp = jax.vjp(jax_impl.causal_forget_matrix, a)
    np.testing.assert_array_equal(F, reference.causal_forget_matrix(a).astype(np.float32))
    (da,) = vjp(jnp.ones_like(F))
    np.testing.assert_array_equal(da, [0, 3, 4, 3])


@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (2, 3, 65, 1)])
def test_dtilde(shape):
    rng = np.random.default_rng(2)
    gates = normal(rng, *shape), normal(rng, *shape)
    with jax.enable_x64(True):
        D, vjp = jax.vjp(jax_impl.dtilde_matrix, *gates)
        dD = like(rng, D)
        got = vjp(dD)
    np.testing.assert_allclose(D, reference.dtilde_matrix(*gates), rtol=1e-12)
    expected = reference.dtilde_matrix_backward(*gates, dD=np.asarray(dD))
    assert_close(got, (expected["igate"], expected["fgate"]), 1e-12)


def test_dtilde_sums_masked_rows_for_the_input_gate():
    """The notebook's cells 8 and 9: the gradient of D̃.sum() is S for every input gate, 0 for the first forget gate."""
    rng = np.random.default_rng(3)
    igate, fgate = normal(rng, 2, 4, 5, 1, dtype=np.float32), normal(rng, 2, 4, 5, 1, dtype=np.float32)
    di, df = jax.grad(lambda i, f: jax_impl.dtilde_matrix(i, f).sum(), argnums=(0, 1))(igate, fgate)
    np.testing.assert_array_equal(di, np.full_like(igate, 5))
    np.testing.assert_array_equal(df[..., 0, 0], 0)
    counts = np.arange(5) * (5 - np.arange(5))
    np.testing.assert_allclose(df[..., 0], counts / (1 + np.exp(fgate[..., 0])), rtol=1e-6)


def test_dtilde_at_the_limits_of_its_gates():
    igate = np.array([[0.0], [-np.inf], [1e4], [-1e4]], np.float32)
    fgate = np.array([[np.inf], [-np.inf], [1e4], [-1e4]], np.float32)
    D, vjp = jax.vjp(jax_impl.dtilde_matrix, igate, fgate)
    np.testing.assert_array_equal(D, reference.dtilde_matrix(igate, fgate).astype(np.float32))
    np.testing.assert_array_equal(vjp(jnp.ones_like(D))[1][:, 0], [0, 3, 0, 3])


def test_dtilde_differentiates_once_in_reverse():
    gates = np.ones((3, 1), np.float32), np.ones((3, 1), np.float32)

    def loss(fgate):
        return jnp.sum(jnp.tril(jax_impl.dtilde_matrix(gates[0], fgate)) ** 2)

    with pytest.raises(NotImplementedError, match=r"^dtilde_matrix: forward-mode and second derivatives"):
        jax.grad(lambda f: jnp.sum(jax.grad(loss)(f)))(gates[1])
    with pytest.raises(NotImplementedError, match=r"^dtilde_matrix: forward-mode"):
        jax.jvp(jax_impl.dtilde_matrix, gates, gates)


def test_maps_and_jits():
    rng = np.random.default_rng(4)
    gates = normal(rng, 4, 9, 1, dtype=np.float32), normal(rng, 4, 9, 1, dtype=np.float32)
    whole, gradients = pull_back(jax_impl.dtilde_matrix, gates, like(rng, np.zeros((4, 9, 9), np.float32)))
    mapped = jax.jit(jax.vmap(jax_impl.dtilde_matrix))(*gates)
    np.testing.assert_allclose(mapped, whole, rtol=1e-6)
    assert all(np.isfinite(g).all() for g in gradients)
