"""The mLSTM's one-step Pallas kernel: under the GPU interpreter against the definition, and lowered for an H100."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl import _pallas
from jax_impl._mlstm.pallas import decode
from reference.arguments import MLSTMState
from tests import large_gates
from tests.jax.kernels.tools import interpreted, lowered, lowered_kernels, needs_mosaic, products, shape
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, pull_back

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


def wide(tree):
    return jax.tree.map(lambda x: np.asarray(x.astype(jnp.float32), np.float64), tree)


def case(dtype, K, V):
    """Values, gates at their limits among them, and a state, one of whose memories is empty."""
    rng = np.random.default_rng(K * V)
    *values, i, f = mlstm_inputs(rng, 2, N=2, K=K, V=V)
    state = MLSTMState(*mlstm_state(rng, 2, 2, K=K, V=V))
    i[0, 0], f[0, 1], f[1, 0], state.m[1, 1] = -np.inf, -np.inf, np.inf, -np.inf
    gates = tuple(jnp.asarray(x, jnp.float32) for x in (i, f))
    return (*(jnp.asarray(x, dtype) for x in values), *gates), jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32), state
    )


@needs_mosaic
@pytest.mark.parametrize(
    ("dtype", "K", "V", "eps"),
    [("float32", 1, 5, 0.0), ("bfloat16", 70, 66, 0.0), ("float16", 64, 128, 1e-3), ("float32", 130, 64, 0.0)],
)
def test_against_the_definition(dtype, K, V, eps):
    x, state = case(dtype, K, V)
    h, last = jax.jit(partial(decode.step, eps=eps, interpret=interpreted()))(*x, state)
    assert (h.dtype, last.C.dtype) == (x[2].dtype, jnp.float32)
    expected, expected_last = reference.mlstm_step(*wide(x), wide(state), eps=eps)
    assert_close(wide(h), expected, TOLERANCE[dtype])
    assert_close(wide(last), expected_last, 1e-6)


@needs_mosaic
def test_steps_are_exact_to_roundoff_however_large_the_gates():
    inputs = large_gates.inputs("shifted", 2.0**20, S=6)
    expected = reference.mlstm(*(x.astype(np.float64) for x in inputs))
    state = MLSTMState(*(jnp.zeros((2, 2, *shape)) for shape in ((4, 4), (4,), ())))
    step = jax.jit(partial(decode.step, eps=0.0, interpret=interpreted()))
    for t in range(6):
        h, state = step(*(x[:, t] for x in inputs), state)
        assert large_gates.relative_error(np.asarray(h), expected[:, t]) < 2e-6


@needs_mosaic
def test_no_step_of_no_sequence():
    x = tuple(jnp.zeros((0, 3, *width), jnp.bfloat16) for width in ((4,), (4,), (5,), (), ()))
    state = MLSTMState(jnp.zeros((0, 3, 4, 5)), jnp.zeros((0, 3, 4)), jnp.zeros((0, 3)))
    h, last = decode.step(*x, state, eps=0.0, interpret=interpreted())
    assert (h.shape, h.dtype, last.C.shape) == ((0, 3, 5), jnp.bfloat16, (0, 3, 4, 5))


@needs_mosaic
def test_the_public_step_takes_it_and_has_the_exact_gradient(monkeypatch):
    monkeypatch.setenv(_pallas.INTERPRET, "1")
    called = []
    monkeypatch.setattr(decode, "step", lambda *x, step=decode.step, **how: called.append(1) or step(*x, **how))
    x, state = case("float32", 5, 6)
    x = tuple(jnp.nan_to_num(part, neginf=-2, posinf=3) for part in x)
    state = state._replace(m=jnp.nan_to_num(state.m, neginf=-1))
    step = partial(jax_impl.mlstm_step, kernel_backend="pallas")
    cotangents = like(np.random.default_rng(1), jax.eval_shape(step, *x, state))
    (h, _), gradients = pull_back(step, (*x, state), cotangents)
    assert called
    sequence = tuple(part[:, None] for part in wide(x))
    dh, dlast = wide(cotangents)
    expected = reference.mlstm_backward(*sequence, initial_state=wide(state), dh=dh[:, None], dstate=dlast)
    assert_close(wide(h), reference.mlstm_step(*wide(x), wide(state))[0], 1e-6)
    assert_close(wide(gradients[:5]), tuple(expected[name][:, 0] for name in "qkvif"), 3e-6)
    assert_close(wide(gradients[5]), expected["initial_state"], 3e-6)


def call_shapes(dtype, K, V, B=2, N=3):
    q, v, gate = shape(B, N, K, dtype=dtype), shape(B, N, V, dtype=dtype), shape(B, N, dtype=dtype)
    return q, q, v, gate, gate, MLSTMState(shape(B, N, K, V), shape(B, N, K), shape(B, N))


@needs_mosaic
@pytest.mark.grid
@pytest.mark.parametrize(("K", "V"), [(1, 1), (8, 32), (64, 64), (100, 130), (128, 256), (512, 512)])
@pytest.mark.parametrize("dtype", sorted(_pallas.TERMS))
def test_lowers_for_hopper_without_tensor_cores(dtype, K, V):
    call = partial(decode.step, eps=0.0, interpret=False)
    module = lowered(call, *call_shapes(dtype, K, V))
    assert not products(module)
    in_place = K % decode.ROWS == 0 and V % decode.COLUMNS == 0
    assert (f": (tensor<2x3x{K}x{V}xf32>, tensor<f32>) -> " in module) == (not in_place)


@needs_mosaic
def test_shared_memory():
    kernels = lowered_kernels(partial(decode.step, eps=0.0, interpret=False), *call_shapes("float32", 512, 512))
    ((kernel,),) = kernels.values()
    assert (kernel.name, kernel.products) == ("mlstm_decode", ())
    assert kernel.shared <= decode.memory() <= _pallas.SHARED_MEMORY
