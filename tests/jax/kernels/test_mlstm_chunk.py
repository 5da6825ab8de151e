"""The mLSTM's Pallas kernels: under the GPU interpreter against the definition, and lowered for an H100."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from jax_impl import _pallas
from jax_impl._mlstm.arguments import Arguments, Result, Tokens
from jax_impl._mlstm.pallas import gates as kernel_gates
from jax_impl._mlstm.pallas import launch, mix, scores, states
from jax_impl._mlstm.pallas.plan import plan_for
from jax_impl._mlstm.pallas.sequence import ROW
from reference.arguments import MLSTMState
from reference.backends import Request
from tests import large_gates
from tests.jax.kernels.tools import lowered, lowered_kernels, mlstm_options, needs_mosaic, products, shape
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state

TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}


def both_passes(options, arguments, dh, dlast):
    result, residuals = launch.forward(options, arguments)
    return result, launch.backward(options, residuals, Result(dh, dlast))


def rounded(tree, dtype):
    """Arrays in ``dtype``, and the same values in float64."""
    narrow = jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)
    return narrow, jax.tree.map(lambda x: np.asarray(x.astype(jnp.float32), np.float64), narrow)


def compare(dtype, tokens, sequences, K, V, cu_seqlens=None, resets=False, eps=0.0):
    rng = np.random.default_rng(K * V)
    inputs = mlstm_inputs(rng, *tokens, N=2, K=K, V=V)
    if resets:
        inputs[4][..., tokens[-1] // 2, :] = -np.inf
        inputs[3][..., tokens[-1] // 3, :] = -np.inf
        inputs[4][..., tokens[-1] // 4, :] = np.inf
    (*values, dh), (*exact, exact_dh) = rounded((*inputs[:3], rng.normal(size=inputs[2].shape)), dtype)
    gates, exact_gates = rounded(inputs[3:], "float32")
    state, exact_state = rounded(MLSTMState(*mlstm_state(rng, sequences, 2, K=K, V=V)), "float32")
    dstate, exact_dstate = rounded(like(rng, exact_state), "float32")

    packing = None if cu_seqlens is None else jnp.asarray(cu_seqlens, jnp.int32)
    run = jax.jit(partial(both_passes, mlstm_options(eps)))
    (h, last), (dx, dinitial) = run(Arguments(Tokens(*values, *gates), state, packing), dh, dstate)
    assert h.dtype == dx.q.dtype == dx.k.dtype == dx.v.dtype == jnp.dtype(dtype)
    assert dx.i.dtype == last.C.dtype == dinitial.C.dtype == jnp.float32

    options = {"initial_state": exact_state, "cu_seqlens": cu_seqlens, "eps": eps}
    expected_h, expected_last = reference.mlstm(*exact, *exact_gates, return_state=True, **options)
    gradients = reference.mlstm_backward(*exact, *exact_gates, dh=exact_dh, dstate=exact_dstate, **options)
    assert_close(last.m, expected_last.m, 1e-6)
    in_units = np.exp(np.asarray(last.m, np.float64) - expected_last.m)
    wide = partial(jax.tree.map, lambda x: np.asarray(x.astype(jnp.float32), np.float64))
    got = (wide(h), wide(last.C) * in_units[..., None, None], wide(last.n) * in_units[..., None])
    assert_close(got, (expected_h, expected_last.C, expected_last.n), TOLERANCE[dtype])
    assert_close(wide(tuple(dx)), tuple(gradients[name] for name in "qkvif"), TOLERANCE[dtype])
    assert_close(wide(dinitial), gradients["initial_state"], TOLERANCE[dtype])
    return wide(dx)


@needs_mosaic
@pytest.mark.parametrize(
    ("dtype", "tokens", "K", "V"),
    [("bfloat16", (1, 70), 3, 200), ("float16", (1, 130), 130, 8), ("float32", (2, 65), 1, 5)],
)
def test_dense(dtype, tokens, K, V):
    compare(dtype, tokens, tokens[0], K, V, resets=True)


@needs_mosaic
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_with_empty_sequences(dtype):
    compare(dtype, (150,), 5, 5, 7, np.array([0, 0, 70, 70, 149, 150]), eps=1e-3)


@needs_mosaic
def test_nothing_passes_a_hard_reset():
    rng = np.random.default_rng(0)
    inputs = list(mlstm_inputs(rng, 1, 100, N=1, K=3, V=2, dtype=np.float32))
    inputs[4][:, 50] = -np.inf
    state = MLSTMState(*mlstm_state(rng, 1, 1, K=3, V=2, dtype=np.float32))
    dh = rng.normal(size=inputs[2].shape).astype(np.float32)
    dh[:, :50] = 0
    zero = jax.tree.map(np.zeros_like, state)
    run = jax.jit(partial(both_passes, mlstm_options()))
    _, (dx, dinitial) = run(Arguments(Tokens(*map(jnp.asarray, inputs)), state), jnp.asarray(dh), zero)
    assert all(not np.any(part[:, :50]) for part in dx)
    assert not np.any(dx.f[:, 50])
    assert all(not np.any(part) for part in dinitial)
    assert np.all(np.isfinite(dx.f))


@needs_mosaic
def test_sequences_are_exact_to_roundoff_however_large_the_gates():
    """Two chunks of each kind of gates: one sequence with one head each, since the interpreter is slow."""
    kinds = (("shifted", 2.0**20), ("cancelling", 1e20), ("sums that round", 1e6))
    calls = [large_gates.inputs(kind, size) for kind, size in kinds]
    inputs = [np.concatenate([x[:1, :, :1] for x in parts]) for parts in zip(*calls, strict=True)]
    exact = [x.astype(np.float64) for x in inputs]
    dh = np.random.default_rng(0).normal(size=inputs[2].shape).astype(np.float32)
    expected, expected_last = reference.mlstm(*exact, return_state=True)
    gradients = reference.mlstm_backward(*exact, dh=dh.astype(np.float64))
    dlast = jax.tree.map(lambda x: jnp.zeros(x.shape), expected_last)
    run = jax.jit(partial(both_passes, mlstm_options()))
    (h, _), (dx, _) = run(Arguments(Tokens(*map(jnp.asarray, inputs)), None), jnp.asarray(dh), dlast)
    assert large_gates.relative_error(h, expected) < 2e-6
    for name, got in zip("qkvif", dx, strict=True):
        for kind, found, of_kind in zip(kinds, got, gradients[name], strict=True):
            error = np.abs(np.asarray(found, np.float64) - of_kind).max() / np.abs(of_kind).max()
            # The gradients of q and f are small differences of large terms, whose magnitudes add up to 150 to 350
            # and 90 to 1,600 times the gradient. The order in which they are added depends on the processor: with
            # AVX-512 the errors are at most 1.4e-5 and 4.5e-6, for three cotangents, with and without optimisations.
            assert error < {"q": 3e-5, "f": 1e-5}.get(name, 4e-6), (name, kind, error)


@needs_mosaic
def test_no_step_is_no_work():
    x = Tokens(*(jnp.zeros((2, 0, 3, *width)) for width in ((4,), (4,), (5,), (), ())))
    state = MLSTMState(jnp.ones((2, 3, 4, 5)), jnp.ones((2, 3, 4)), jnp.ones((2, 3)))
    (h, last), (dx, dinitial) = both_passes(mlstm_options(interpret=True), Arguments(x, state), x.v, state)
    assert h.shape == x.v.shape and dx.q.shape == x.q.shape
    assert_close((last, dinitial), (state, state), 1e-30)


CALLS = [
    *(("bfloat16", K, V, packed) for K, V, packed in [(64, 128, False), (200, 64, True), (512, 512, False)]),
    *(("float16", 100, 130, packed) for packed in (False, True)),
    *(("float32", K, V, False) for K, V in [(100, 130), (512, 512)]),
]
"""Every plan of the kernels: tiles are wide where a head dim of bfloat16 is a multiple of 128; packing is outside of
them. `make aot` lowers more."""


def call_shapes(dtype, K, V, packed):
    B, S, N = 2, 200, 2
    tokens = (B * S,) if packed else (B, S)
    q, v, gate = (shape(*tokens, N, *width, dtype=dtype) for width in ((K,), (V,), ()))
    state = MLSTMState(shape(B, N, K, V), shape(B, N, K), shape(B, N))
    gate = shape(*gate.shape)
    packing = shape(B + 1, dtype=jnp.int32) if packed else None
    return Arguments(Tokens(q, q, v, gate, gate), state, packing), v, state


@needs_mosaic
@pytest.mark.parametrize(("dtype", "K", "V", "packed"), CALLS)
def test_lowers_for_hopper_with_bfloat16_products(dtype, K, V, packed):
    """Shared memory as computed next to the kernels: never more, and hardly less where every stage has its tile."""
    kernels = lowered_kernels(partial(both_passes, mlstm_options(interpret=False)), *call_shapes(dtype, K, V, packed))
    assert {of.products for group in kernels.values() for of in group} == {("f32.bf16.bf16",)}
    for name, computed in computed_memory(dtype, K, V).items():
        taken = {kernel.shared for kernel in kernels.pop(name)}
        assert max(taken) <= max(computed) <= _pallas.SHARED_MEMORY
        if min(K, V) > 64:
            assert all(any(0 <= bound - shared <= SLACK for bound in computed) for shared in taken), (taken, computed)
    assert not kernels


SLACK = 3 * 1024
"""Bytes by which a computed size may exceed what a kernel takes: barriers, alignment, scratch not needed."""


def computed_memory(dtype, K, V) -> dict[str, set[int]]:
    """Bytes of shared memory that each kernel's own functions name."""
    terms, bytes_out = _pallas.TERMS[dtype], jnp.dtype(dtype).itemsize
    narrow, of_K, of_V = (plan_for(terms, x + -x % 64, interpret=False) for x in (0, K, V))
    return {
        "mlstm_states": {states.memory(of_V, against) for against in (False, True)},
        "mlstm_scores": {scores.memory(narrow, gradient=False)},
        "mlstm_scores_gradient": {scores.memory(narrow, gradient=True)},
        "mlstm_mix": {
            mix.memory(of_V, dotted=False, out_bytes=bytes_out),
            mix.memory(of_K, dotted=True, out_bytes=bytes_out),
        },
    }


@needs_mosaic
def test_vmap_lowers():
    arguments, *_ = call_shapes("bfloat16", 64, 64, packed=False)
    mapped = jax.tree.map(lambda of: shape(3, *of.shape, dtype=of.dtype), arguments)
    forward = jax.vmap(lambda arguments: launch.forward(mlstm_options(interpret=False), arguments)[0])
    assert products(lowered(forward, mapped)) == {"f32.bf16.bf16"}


@pytest.mark.parametrize("columns", [64, 128, 192, 256, 512])
@pytest.mark.parametrize("terms", sorted(_pallas.TERMS.values()))
def test_shared_memory_fits(terms, columns):
    plan = plan_for(terms, columns, interpret=False)
    taken = [
        *(states.memory(plan, against) for against in (False, True)),
        *(scores.memory(plan, gradient) for gradient in (False, True)),
        *(mix.memory(plan, dotted, 4 if terms == 3 else 2) for dotted in (False, True)),
    ]
    assert max(taken) <= _pallas.SHARED_MEMORY


def test_decay_by_bisection_is_the_decay_matrix():
    a = -np.abs(np.random.default_rng(0).normal(size=(2, 1, 64))) * 10
    a[0, 0, 20] = -np.inf
    levels, before, after = (np.asarray(part) for part in kernel_gates.log_decays(jnp.asarray(a, jnp.float32)))
    t, j = np.indices((64, 64))
    level = np.log2(np.maximum(t ^ j, 1)).astype(int)
    for lane in range(2):
        by_level = levels[lane, 0]
        F = np.where(t > j, by_level[level, t] + by_level[level, j], np.where(t == j, 0, -np.inf))
        expected = reference.causal_forget_matrix(a[lane, 0])
        np.testing.assert_allclose(F, expected, rtol=1e-6)
        np.testing.assert_allclose(before[lane, 0], np.cumsum(a[lane, 0]), rtol=1e-6)
        np.testing.assert_allclose(after[lane, 0], expected[-1], rtol=1e-6)


@pytest.mark.parametrize("kind", ["one write", "writes that follow m down", "equal writes"])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e8, 1e30])
def test_weights_are_exact_and_finite_whatever_the_gates(kind, size):
    """The weights of all writes at the last of two chunks' steps, as a part of their sum, against rational numbers."""
    rng, S = np.random.default_rng(0), 128
    i, f = np.full(S, -1e35), -size * rng.random(S)
    if kind == "one write":
        i[0] = 0
    elif kind == "writes that follow m down":
        i = np.cumsum(f) + rng.normal(size=S) + size * S
    else:
        i, f = np.full(S, size), 3 + rng.normal(size=S)
    i, f = i.astype(np.float32), f.astype(np.float32)
    ranges = kernel_gates.ChunkRanges(jnp.array([0]), jnp.array([2]), jnp.zeros(2, jnp.int32), jnp.arange(2) == 0)
    by_chunk = (jnp.asarray(x).reshape(2, 1, 64) for x in (i, f))
    weights = kernel_gates.chunk_weights(*by_chunk, jnp.zeros((1, 1)), ranges)
    e, written, iota, levels = (np.asarray(x[:, 0], np.float64) for x in (weights.e, weights.written, *weights[1:3]))
    level = np.log2(np.maximum(63 ^ np.arange(64), 1)).astype(int)
    inside = np.where(np.arange(64) < 63, levels[1, level, 63] + levels[1, level, np.arange(64)], 0) + iota[1]
    found = np.concatenate([e[1, -1] * written[0], np.exp(inside)])
    assert np.all(np.isfinite(found)) and np.max(np.exp(inside)) <= 1 and np.max(e) <= 1

    exact = f.astype(np.longdouble)
    a = [Fraction(float(x)) for x in np.minimum(exact, 0) - np.log1p(np.exp(-np.abs(exact)))]
    logs = [Fraction(float(i[j])) + sum(a[j + 1 :]) for j in range(S)]
    expected = np.array([math.exp(max(float(x - max(logs)), -1e3)) for x in logs])
    np.testing.assert_allclose(found / np.sum(found), expected / np.sum(expected), atol=1e-6)


def test_terms_hold_every_bit():
    x = jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.float32)
    assert np.array_equal(np.sum(np.asarray(_pallas.split(x, 3), np.float64), axis=0), np.asarray(x, np.float64))
    half = x.astype(jnp.float16)
    assert np.array_equal(np.sum(np.asarray(_pallas.split(half, 2), np.float64), axis=0), np.asarray(half, np.float64))


def asks(**changes) -> Request:
    sizes = {"B": 1, "S": 8, "N": 1, "K": 16, "V": 16}
    return Request(**{"operation": "mlstm", "device": "cpu", "dtype": "float32", "sizes": sizes, **changes})


def test_old_jax_is_a_reason(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.10.2")
    assert ROW.reasons(asks()) == ["it needs JAX 0.11.2 or later (Mosaic GPU), but this is JAX 0.10.2"]


def test_a_cpu_without_the_interpreter_is_a_reason(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.12.0")
    monkeypatch.delenv(_pallas.INTERPRET, raising=False)
    assert ROW.reasons(asks()) == ["on a CPU it runs only under its interpreter (GATESPEC_PALLAS_INTERPRET=1)"]
    monkeypatch.setenv(_pallas.INTERPRET, "1")
    assert ROW.reasons(asks()) == []
    assert ROW.reasons(asks(dtype="float64")) == ["it takes bfloat16, float16, float32, but the values are float64"]
    assert ROW.reasons(asks(sizes={"K": 600, "V": 16})) == ["it takes K up to 512, but the call has K=600"]


def test_an_older_gpu_is_a_reason(monkeypatch):
    class Ampere:
        device_kind, compute_capability = "NVIDIA A100", "8.0"

    monkeypatch.setattr(jax, "__version__", "0.12.0")
    monkeypatch.setattr(jax, "devices", lambda _: [Ampere()])
    assert ROW.reasons(asks(device="gpu")) == [
        "it needs a Hopper GPU (compute capability 9.0) or later, but this is NVIDIA A100 (8.0)"
    ]
