"""Where results lie if arrays are sharded by explicit mesh axes, with and without `jax.set_mesh`, or by automatic ones.

The laws `sharding` and `sharding_by_explicit_axes` try every operation.
"""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, normal, pull_back

B, S, N = 2, 5, 2
TOKENS, HEADS = P("batch", None, "heads"), P("batch", "heads")


def mlstm(q, k, v, i, f, C, n, m):
    state = jax_impl.MLSTMState(C, n, m)
    h, last = jax_impl.mlstm(q, k, v, i, f, initial_state=state, return_state=True, chunk_size=4)
    return h, tuple(last)


CONFIG = jax_impl.mLSTMBackendFwbwConfig(chunk_size=4, return_state=True, use_initial_state=True, keep_G=True)


def by_hand(q, k, v, i, f, C, n, m):
    """Both passes as functions of their own; the gradients are results."""
    (h, _), ctx = jax_impl.fwbw_forward(q, k, v, i, f, CONFIG, C, n, m)
    return h, jax_impl.fwbw_backward(ctx, v, CONFIG)


LAYER = jax_impl.GRU(6, 4, 8, 2, 1, 2, 2, 1, 2, add_bias=True, gradient_clipping=None)


def calls(rng):
    """By name: the function, its arguments, their partitions and those of its results."""
    f32: dict[str, Any] = {"dtype": np.float32}
    state = mlstm_state(rng, B, N, **f32)
    sequence = (*mlstm_inputs(rng, B, S, N=N, **f32), *state)
    one_head = (*(x[:, :, 0] for x in sequence[:5]), *(x[:, 0] for x in state))
    batch = P("batch")
    x = normal(rng, B, S, 6, **f32)
    variables = LAYER.init(jax.random.key(0), x)
    return {
        "mlstm": (mlstm, sequence, (TOKENS,) * 5 + (HEADS,) * 3, (TOKENS, (HEADS,) * 3)),
        "GRU": (LAYER.apply, (variables, x), (jax.tree.map(lambda _: P(), variables), batch), (batch, batch)),
        "fwbw by hand": (by_hand, one_head, (batch,) * 8, (batch, (batch,) * 8)),
    }


NAMES = list(calls(np.random.default_rng(0)))


@functools.cache
def plain(name):
    """A call as in `calls`, with its result, cotangents and gradients where nothing is sharded."""
    function, arguments, partitions, of_results = calls(np.random.default_rng(0))[name]
    arguments = jax.tree.map(jnp.asarray, arguments)
    expected = function(*arguments)
    cotangents = like(np.random.default_rng(1), expected)
    gradients = None if name == "fwbw by hand" else pull_back(function, arguments, cotangents)[1]
    return function, arguments, partitions, of_results, expected, cotangents, gradients


def partition(x):
    """The mesh axes of an array, without trailing ones of None."""
    spec = list(x.sharding.spec)
    while spec and spec[-1] is None:
        spec.pop()
    return P(*spec)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("context", ["explicit", "explicit, set", "auto, set"])
def test_sharded_over_batch_and_heads(name, context):
    if len(jax.devices()) < 4:
        pytest.skip("it needs four devices")
    function, arguments, partitions, of_results, expected, cotangents, plain_gradients = plain(name)
    kind, _, is_set = context.partition(", ")
    kind = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(kind,) * 2, devices=jax.devices()[:4])

    def placed(tree, specs):
        return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), tree, specs)

    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        x = placed(arguments, partitions)
        result = function(*x)
        assert_close(result, expected, 1e-5)
        if kind is AxisType.Explicit:
            assert jax.tree.map(partition, result) == of_results
        if name == "fwbw by hand":
            return
        both = jax.jit(functools.partial(pull_back, function))
        _, gradients = both(x, placed(cotangents, of_results))
    assert_close(gradients, plain_gradients, 1e-4)
    if kind is AxisType.Explicit:
        assert jax.tree.map(partition, gradients) == partitions
