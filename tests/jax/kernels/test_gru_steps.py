"""The GRU's Pallas kernels: under the GPU interpreter against the definition, and lowered for an H100."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from jax_impl import _gru_pallas
from jax_impl.kernels import _pallas, gru
from reference.backends import Request
from tests.jax.kernels.tools import lowered, needs_mosaic, products, shape
from tests.jax.tools import assert_close

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


def exactly(x) -> np.ndarray:
    return np.asarray(jnp.asarray(x, jnp.float32), np.float64)


def gates(x, weights, before, group):
    """r, f and z of every step in float64, given the states before."""

    def times(h, weight):
        return np.einsum("...nh,nhk->...nk", h, np.repeat(weight, group, axis=0))

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    f, r = sigmoid(times(before, weights[1]) + x[1]), sigmoid(times(before, weights[2]) + x[2])
    return r, f, np.tanh(times(r * before, weights[0]) + x[0])


def compare(dtype, tokens, groups, group, H, bound, cu_seqlens=None):
    """Heads in ``groups`` of ``group``, each with weights of its own."""
    rng = np.random.default_rng(H)
    N, packed = groups * group, cu_seqlens is not None
    B = len(cu_seqlens) - 1 if packed else tokens[0]
    x = [jnp.asarray(rng.normal(size=(*tokens, N, H)), dtype) for _ in range(3)]
    weights = [jnp.asarray(rng.normal(size=(groups, H, H)) / np.sqrt(H), dtype) for _ in range(3)]
    dy = jnp.asarray(rng.normal(size=(*tokens, N, H)), dtype)
    h0, dlast = (jnp.asarray(rng.normal(size=(B, N, H)), jnp.float32) for _ in range(2))

    arguments = [exactly(part) for pair in zip(x, weights, strict=True) for part in pair]
    options = {"input_state": exactly(h0), "gradient_clipping": bound, "cu_seqlens": cu_seqlens}
    y, last = reference.gru(*arguments, **options)
    expected = reference.gru_backward(*arguments, dy=exactly(dy), dstate=exactly(dlast), **options)
    if packed:
        before = np.roll(y, 1, axis=0)
        starts = cu_seqlens[:-1][np.diff(cu_seqlens) > 0]
        before[starts] = exactly(h0)[np.diff(cu_seqlens) > 0]
    else:
        before = np.concatenate([exactly(h0)[:, None], y[:, :-1]], axis=1)

    def by_step(x):
        x = x.reshape(*x.shape[:-2], groups, group, H)
        return jnp.moveaxis(x, 1, 0) if packed else jnp.transpose(x, (1, 2, 0, 3, 4))

    def by_token(x):
        x = jnp.moveaxis(x, 0, 1) if packed else jnp.transpose(x, (2, 0, 1, 3, 4))
        return exactly(x.reshape(*tokens, N, H))

    def lanes(h):
        return jnp.moveaxis(h.reshape(B, groups, group, H), 1, 0)

    def heads(h):
        return exactly(jnp.moveaxis(h, 0, 1).reshape(B, N, H))

    packing = jnp.asarray(cu_seqlens, jnp.int32) if packed else None
    forward = jax.jit(partial(_gru_pallas.forward, True))
    got_y, got_last = forward(tuple(map(by_step, x)), tuple(weights), lanes(h0), packing)
    assert_close((by_token(got_y), heads(got_last)), (y, last), TOLERANCE[dtype])

    saved = (before, *gates([exactly(part) for part in x], [exactly(part) for part in weights], before, group))
    saved = (*(by_step(jnp.asarray(part, jnp.float32)) for part in saved), by_step(dy))
    backward = jax.jit(partial(_gru_pallas.backward, True, bound))
    dinputs, dh0 = backward(saved, tuple(weights), lanes(dlast), packing)
    assert all(part.dtype == jnp.dtype(dtype) for part in dinputs)
    names = ("input", "forget_input", "reset_input")
    got = (*map(by_token, dinputs), heads(dh0))
    assert_close(got, (*(expected[name] for name in names), expected["input_state"]), TOLERANCE[dtype])


@needs_mosaic
@pytest.mark.parametrize(
    ("dtype", "tokens", "groups", "group", "H", "bound"),
    [("bfloat16", (2, 5), 5, 1, 16, 0.5), ("float16", (1, 4), 1, 2, 64, None), ("float32", (33, 3), 1, 2, 33, 0.3)],
)
def test_dense(dtype, tokens, groups, group, H, bound):
    compare(dtype, tokens, groups, group, H, bound)


@needs_mosaic
def test_packed_over_several_blocks_of_steps():
    compare("float32", (80,), 1, 2, 7, 0.7, np.array([0, 0, 70, 70, 79, 80]))


@needs_mosaic
@pytest.mark.parametrize(("dtype", "terms"), sorted(_pallas.TERMS.items()))
def test_lowers_for_hopper_with_bfloat16_products(dtype, terms):
    S, W, R = 9, 3, 72
    x, state = shape(S, W, R, 64, dtype=dtype), shape(W, R, 64)
    kept, weights = shape(S, W, R, 64), shape(terms, 3, W, 64, 64, dtype=jnp.bfloat16)
    remaining = shape(128, dtype=jnp.int32)
    setting = gru.Setting(terms, 1.0, interpret=False)
    forward = lowered(partial(gru.forward, setting), (x, x, x), weights, state, remaining)
    gradient = partial(gru.backward, setting, dtype=jnp.dtype(dtype))
    backward = lowered(gradient, (kept, kept, kept, kept, x), weights, state, remaining)
    assert products(forward) == products(backward) == {"f32.bf16.bf16"}


@pytest.mark.parametrize(("dtype", "terms"), sorted(_pallas.TERMS.items()))
@pytest.mark.parametrize("gradient", [False, True])
def test_shared_memory_fits(dtype, terms, gradient):
    assert gru.memory(terms, jnp.dtype(dtype).itemsize, gradient) <= _pallas.SHARED_MEMORY


def test_a_wide_head_is_a_reason(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.12.0")
    monkeypatch.setenv(_pallas.INTERPRET, "1")
    asked = Request("gru", "cpu", "bfloat16", {"H": 65}, packed=True)
    assert gru.ROW.reasons(asked) == ["it takes H up to 64, the call has H=65"]
