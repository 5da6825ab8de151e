"""The GRU's Pallas kernels: under the GPU interpreter against the definition, and lowered for an H100."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from jax_impl import _pallas, explain_backend
from jax_impl._gru.arguments import Inputs, Weights
from jax_impl._gru.pallas import launch, passes
from jax_impl._gru.steps import Gates, StepValues
from reference import _proofs
from reference.backends import Request
from tests.jax.kernels.tools import interpreted, lowered, needs_mosaic, products, shape
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


def compare(dtype, tokens, groups, group, H, bound, cu_seqlens=None, size=1.0):
    """Heads in ``groups`` of ``group``, each with weights of its own; inputs of ``size``."""
    rng = np.random.default_rng(H)
    N, packed = groups * group, cu_seqlens is not None
    B = len(cu_seqlens) - 1 if packed else tokens[0]
    x = [jnp.asarray(size * rng.normal(size=(*tokens, N, H)), dtype) for _ in range(3)]
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

    def by_group(h):
        return jnp.moveaxis(h.reshape(B, groups, group, H), 1, 0)

    def heads(h):
        return exactly(jnp.moveaxis(h, 0, 1).reshape(B, N, H))

    packing = jnp.asarray(cu_seqlens, jnp.int32) if packed else None
    forward = jax.jit(partial(launch.run_forward, interpreted()))
    got_y, got_last = forward(Inputs(*map(by_step, x)), Weights(*weights), by_group(h0), packing)
    assert_close((by_token(got_y), heads(got_last)), (y, last), TOLERANCE[dtype])

    saved = (before, *gates([exactly(part) for part in x], [exactly(part) for part in weights], before, group))
    h, *of_gates = (by_step(jnp.asarray(part, jnp.float32)) for part in saved)
    backward = jax.jit(partial(launch.run_backward, interpreted(), bound))
    values = StepValues(h, Gates(*of_gates), by_step(dy))
    dinputs, dh0 = backward(values, Weights(*weights), by_group(dlast), packing)
    assert all(part.dtype == jnp.float32 for part in dinputs)
    names = ("input", "forget_input", "reset_input")
    got = (*map(by_token, dinputs), heads(dh0))
    assert_close(got, (*(expected[name] for name in names), expected["input_state"]), TOLERANCE[dtype])


@needs_mosaic
@pytest.mark.parametrize(
    ("dtype", "tokens", "groups", "group", "H", "bound"),
    [
        ("bfloat16", (2, 5), 5, 1, 16, 0.5),
        ("float16", (1, 4), 1, 2, 64, None),
        ("float32", (33, 3), 1, 2, 33, 0.3),
        ("bfloat16", (2, 3), 1, 2, 100, 0.5),
        ("float16", (9, 1), 1, 1, 128, None),
        ("float32", (33, 2), 1, 1, 65, 0.3),
        ("bfloat16", (1, 2), 1, 1, 300, None),
    ],
)
def test_dense(dtype, tokens, groups, group, H, bound):
    compare(dtype, tokens, groups, group, H, bound)


@needs_mosaic
@pytest.mark.parametrize("H", [20, 65])
def test_packed_over_several_blocks_of_steps(H, monkeypatch):
    monkeypatch.setattr(launch, "BLOCK", 2)
    compare("float32", (10,), 1, 2, H, 0.7, np.array([0, 0, 5, 5, 8, 10, 10]))


@needs_mosaic
@pytest.mark.parametrize("H", [16, 129])
def test_saturated_gates(H):
    compare("float32", (1, 3), 1, 1, H, 0.5, size=200.0)


WIDTHS = [1, 64, 65, 128, 129, 192, 256, 384, 512, 640, 1024]


@needs_mosaic
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.grid
@pytest.mark.parametrize("H", [64, 128, 256, 1024])
@pytest.mark.parametrize("dtype", sorted(_pallas.TERMS))
def test_lowers_for_hopper_with_bfloat16_products(dtype, H, gradient):
    from jax.experimental.mosaic.gpu.core import artificial_shared_memory_limit

    plan = passes.plan_for(dtype, H, 40, gradient)
    S, W, columns, edge = 5, 2, 64, 64 * plan.tiles
    if gradient:
        steps = shape(S, W, 3, plan.tiles, 128, columns)
        run = partial(passes.backward, plan, 1.0)
    else:
        steps = Inputs(*[shape(S, W, plan.tiles, 64, columns, dtype=dtype)] * 3)
        run = partial(passes.forward, plan)
    weights, state = Weights(*[shape(W, edge, edge, dtype=dtype)] * 3), shape(W, plan.tiles, 64, columns)
    rest = weights, state, shape(64, columns, dtype=jnp.int32)
    with (
        artificial_shared_memory_limit(passes.memory(plan, dtype, gradient) - _pallas.SLACK),
        pytest.raises(ValueError, match="exceeds available shared memory"),
    ):
        lowered(run, steps, *rest)
    with artificial_shared_memory_limit(passes.memory(plan, dtype, gradient)):
        assert products(lowered(run, steps, *rest)) == {"f32.bf16.bf16"}


@needs_mosaic
@pytest.mark.parametrize("H", [64, 256])
def test_mapped_calls_lower(H):
    plan = passes.plan_for("bfloat16", H, 8, gradient=False)
    values = partial(shape, 3, dtype=jnp.bfloat16)
    inputs = Inputs(*[values(5, 2, plan.tiles, 64, 8)] * 3)
    weights, state = Weights(*[values(2, 64 * plan.tiles, 64 * plan.tiles)] * 3), shape(3, 2, plan.tiles, 64, 8)
    arguments = inputs, weights, state, shape(3, 64, 8, dtype=jnp.int32)
    assert products(lowered(jax.vmap(partial(passes.forward, plan)), *arguments)) == {"f32.bf16.bf16"}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("columns", [1, 8, 9, 17, 1000])
@pytest.mark.parametrize("dtype", sorted(_pallas.TERMS))
def test_shared_memory_fits(dtype, columns, gradient):
    for H in WIDTHS:
        plan = passes.plan_for(dtype, H, columns, gradient)
        assert passes.memory(plan, dtype, gradient) <= _pallas.SHARED_MEMORY
        assert plan.tiles % plan.wide == 0 and 64 * plan.tiles >= H


@pytest.mark.parametrize(
    ("dtype", "gradient", "widest"),
    [
        ("bfloat16", False, 128),
        ("bfloat16", True, 128),
        ("float16", False, 128),
        ("float16", True, 64),
        ("float32", False, 64),
        ("float32", True, 64),
    ],
)
def test_weights_are_resident_where_they_fit(dtype, gradient, widest):
    resident = [H for H in WIDTHS if passes.plan_for(dtype, H, 8, gradient).resident]
    assert resident == [H for H in WIDTHS if H <= widest]


@pytest.fixture
def interpreter(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.12.0")
    monkeypatch.setenv(_pallas.INTERPRET, "1")


def asks(H, dtype="bfloat16"):
    return Request("gru", "cpu", dtype, {"H": H}, packed=True)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("dtype", sorted(_pallas.TERMS))
def test_every_width_up_to_1024_is_served(dtype):
    assert all(passes.ROW.reasons(asks(H, dtype)) == [] for H in WIDTHS)


@pytest.mark.usefixtures("interpreter")
def test_a_wider_head_is_a_reason():
    assert passes.ROW.reasons(asks(1025)) == ["it takes H up to 1024, but the call has H=1025"]


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("H", "why"),
    [(300, "not pallas: xla is preferred"), (1025, "not pallas: it takes H up to 1024, but the call has H=1025")],
)
def test_explanations(H, why, monkeypatch):
    monkeypatch.setattr(_proofs, "ACCEPT_UNPROVEN", False)
    x, weight = jnp.zeros((2, 3, 1, H)), jnp.zeros((1, H, H))
    explained = explain_backend("gru", *(x, weight) * 3)
    assert str(explained) == f"takes xla\n{why}"
