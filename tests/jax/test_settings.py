"""Every public operation under JAX's strict settings and debugging aids, which a user may switch on for a program."""

import contextlib
import functools
import gc
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.tools import assert_close, mlstm_inputs, mlstm_state, normal

PACKING = np.array([0, 4, 4, 9])
HEADS = (2, 1, 1, 2, 2, 2)
"""Heads of the arguments of `gru`, in their order."""


def mlstm(*x, **options):
    h, last = jax_impl.mlstm(*x[:5], initial_state=x[5:], return_state=True, chunk_size=4, **options)
    return h, tuple(last)


def fwbw(*x):
    config = dict(chunk_size=4, return_state=True, use_initial_state=True, keep_G=True, keep_c=True)
    return jax_impl.mlstm_fwbw_custom_grad(config)(*x)


def layer(x, **packing):
    module = jax_impl.GRU(6, 3, 7, 2, 1, 4, 4, 2, 1, add_bias=True, gradient_clipping=0.5, param_dtype=x.dtype)
    return module.apply(module.init(jax.random.key(0), x, **packing), x, **packing)


def accumulated(use_scan, w, x):
    def loss(w, _, rows, rng):
        error = jnp.mean((rows @ w) ** 2)
        return error, ({"error": error, "rows": rows.shape[0]}, {"rows": jnp.mean(rows, axis=0)})

    state = SimpleNamespace(params=w, apply_fn=None)
    return jax_impl.accumulate_gradients(state, x, jax.random.key(0), 2, loss, use_scan)


def sharded(x):
    def device(x):
        rng = jax_impl.fold_rng_over_axis(jax.random.key(0), "tp")
        stacked = jax_impl.stack_params({"w": jax_impl.split_array_over_mesh(x, "tp", 0)}, "tp", 0, mask_except=1)
        return jax_impl.unstack_params(stacked, "tp")["w"] * jax.random.normal(rng, (), x.dtype)

    mesh = jax.make_mesh((2,), ("tp",), axis_types=(AxisType.Auto,))
    return jax.shard_map(device, mesh=mesh, in_specs=P(), out_specs=P("tp"))(x)


def gru_arguments(rng, *tokens):
    return [normal(rng, *((heads, 3) if at % 2 else (*tokens, heads)), 3) for at, heads in enumerate(HEADS)]


def cases() -> dict[str, tuple]:
    """A function and its arguments in float64 by name."""
    rng = np.random.default_rng(0)
    dense, packed = mlstm_inputs(rng, 2, 6, N=2, K=3, V=4), mlstm_inputs(rng, 9, N=2, K=3, V=4)
    one, without_heads = (mlstm_inputs(rng, *lead, N=2, K=3, V=4) for lead in ((2,), (2, 6)))
    state, packed_state = (mlstm_state(rng, B, 2, K=3, V=4) for B in (2, 3))
    gates = normal(rng, 2, 2, 6, 1)
    return {
        "mlstm": (mlstm, (*dense, *state)),
        "mlstm packed": (functools.partial(mlstm, cu_seqlens=PACKING), (*packed, *packed_state)),
        "mlstm packed without states": (functools.partial(jax_impl.mlstm, cu_seqlens=PACKING), packed),
        "mlstm_step": (lambda *x: jax_impl.mlstm_step(*x[:5], x[5:]), (*one, *state)),
        "gru": (jax_impl.gru, gru_arguments(rng, 2, 35)),
        "gru packed": (functools.partial(jax_impl.gru, cu_seqlens=PACKING), gru_arguments(rng, 9)),
        "fwbw": (fwbw, [x[:, :, 0] for x in without_heads] + [x[:, 0] for x in state]),
        "GRU": (layer, (normal(rng, 2, 5, 6),)),
        "GRU packed": (functools.partial(layer, cu_seqlens=PACKING), (normal(rng, 9, 6),)),
        "mLSTMBackendFwbw": (
            lambda *x: jax_impl.mLSTMBackendFwbw({"chunk_size": 4}).apply({}, *x),
            [x[:, :, 0] for x in without_heads],
        ),
        "dtilde_matrix": (jax_impl.dtilde_matrix, gates),
        "causal_forget_matrix": (jax_impl.causal_forget_matrix, gates[:1, ..., 0]),
        "rev_cumsum": (jax_impl.rev_cumsum, gates[:1, ..., 0]),
        "rev_cumsum_off": (jax_impl.rev_cumsum_off, gates[:1, ..., 0]),
        "accumulate_gradients": (functools.partial(accumulated, False), (normal(rng, 3, 2), normal(rng, 4, 3))),
        "accumulate_gradients by scan": (functools.partial(accumulated, True), (normal(rng, 3, 2), normal(rng, 4, 3))),
        "sharding": (sharded, (normal(rng, 4, 3),)),
    }


CASES = cases()
CALLS_ONLY = ("GRU", "GRU packed", "accumulate_gradients", "accumulate_gradients by scan", "sharding")
"""Cases that are not mapped: they map themselves, or are made of what is mapped here."""
SIXTEEN_BITS = ("mlstm", "mlstm packed", "gru", "gru packed", "accumulate_gradients", "accumulate_gradients by scan")
"""Cases that are tried with values of 16 bits and a state of 32."""
each = pytest.mark.parametrize("name", CASES)


def both_passes(function, *arguments):
    """Results, and the gradients of the sum of those that are floating point."""
    results, pull = jax.vjp(function, *arguments)

    def ones(x):
        return jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)

    return results, pull(jax.tree.map(ones, results))


def in_dtype(name, dtype):
    """The arguments of a case; gates and states of values of 16 bits are float32."""
    narrow = {"mlstm": 3, "mlstm packed": 3, "gru": 6, "gru packed": 6}.get(name, 99)
    wide = dtype if jnp.finfo(dtype).bits > 32 else jnp.float32
    return [jnp.asarray(x, dtype if at < narrow else wide) for at, x in enumerate(CASES[name][1])]


@contextlib.contextmanager
def strictly():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@each
def test_no_dtype_and_no_rank_is_promoted(name):
    """Traced under the strict settings, with and without 64 bits: values and gradients, mapped too."""
    function = CASES[name][0]
    dtypes = [(False, "float32"), (True, "float64"), (True, "float32")]
    for x64, dtype in dtypes + [(False, "bfloat16")] * (name in SIXTEEN_BITS):
        with jax.enable_x64(x64), strictly():
            arguments = in_dtype(name, dtype)
            _, gradients = jax.eval_shape(functools.partial(both_passes, function), *arguments)
            assert [x.dtype for x in gradients] == [x.dtype for x in arguments]
            if name not in CALLS_ONLY:
                jax.eval_shape(jax.vmap(functools.partial(both_passes, function)), *(x[None] for x in arguments))


OPERATIONS = ("mlstm", "mlstm packed", "mlstm_step", "gru", "gru packed", "fwbw")
operation = pytest.mark.parametrize("name", OPERATIONS)


@operation
def test_no_tracer_leaks(name):
    # The check looks through all objects of the process; those that exist now hold no tracer of this call.
    gc.collect()
    gc.freeze()
    try:
        with jax.checking_leaks():
            jax.eval_shape(functools.partial(both_passes, CASES[name][0]), *in_dtype(name, "float32"))
    finally:
        gc.unfreeze()


@operation
def test_debugging_aids_find_nothing_and_change_nothing(name):
    """Ordinary values compiled with ``jax_debug_nans``, and, for the calls that are short, with ``jax_disable_jit``."""
    run, arguments = functools.partial(both_passes, CASES[name][0]), in_dtype(name, "float32")
    with jax.debug_nans(True):
        compiled = jax.jit(run)(*arguments)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(compiled))
    if name in ("mlstm_step", "gru packed"):
        with jax.disable_jit():
            assert_close(run(*arguments), compiled, 1e-5)
