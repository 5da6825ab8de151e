"""mLSTM: values and gradients against the definition, dense and packed, and at the edges of what is legal."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl import MLSTMState
from tests.jax import loops
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, normal, pull_back, relative_error, shapes_in

LENGTHS = [0, 1, 5, 63, 64, 65, 200]
PACKING = np.array([0, 0, 3, 70, 70, 99, 100])


@functools.cache
def exact(S: int, with_state: bool):
    """A call, cotangents, and what the loop makes of them in float64."""
    rng = np.random.default_rng(S)
    arguments = mlstm_inputs(rng, 2, S)
    with jax.enable_x64(True):
        if not with_state:
            dh = like(rng, arguments[2])
            h, gradients = jax.jit(lambda x, dh: pull_back(lambda *x: loops.mlstm(*x)[0], x, dh))(arguments, dh)
            return arguments, dh, h, gradients
        arguments += mlstm_state(rng, 2, 3)
        cotangents = like(rng, (arguments[2], arguments[5:]))
        result, gradients = jax.jit(lambda x, dy: pull_back(loops.mlstm, x, dy))(arguments, cotangents)
        return arguments, cotangents, result, gradients


def call(q, k, v, i, f, *state, **options):
    if not state:
        return jax_impl.mlstm(q, k, v, i, f, **options)
    h, last = jax_impl.mlstm(q, k, v, i, f, initial_state=state, return_state=True, **options)
    return h, tuple(last)


@pytest.mark.grid
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("S", LENGTHS)
def test_gradients_are_those_of_the_loop(S, with_state):
    arguments, cotangents, expected, gradients = exact(S, with_state)
    with jax.enable_x64(True):
        result, got = pull_back(call, arguments, cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


@pytest.mark.grid
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("S", LENGTHS)
def test_gradients_in_float32(S, with_state):
    arguments, cotangents, expected, gradients = exact(S, with_state)
    narrow = [x.astype(np.float32) for x in arguments]
    cotangents = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float32)), cotangents)
    result, got = pull_back(call, narrow, cotangents)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves((result, got)))
    assert_close(result, expected, 1e-4)
    assert_close(got, gradients, 1e-4)


@pytest.mark.grid
@pytest.mark.parametrize("chunk_size", [1, 7, 64, 1000])
def test_chunk_size_changes_no_value(chunk_size):
    arguments, cotangents, expected, gradients = exact(65, True)
    with jax.enable_x64(True):
        result, got = pull_back(functools.partial(call, chunk_size=chunk_size), arguments, cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


def test_blocks_change_no_value(monkeypatch):
    arguments, cotangents, expected, gradients = exact(65, True)
    monkeypatch.setattr("jax_impl._mlstm.api.BLOCK_ON_CPU", 2 * 3 * 20)
    with jax.enable_x64(True):
        result, got = pull_back(functools.partial(call, chunk_size=9), arguments, cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


def test_eps_with_frozen_stabiliser():
    rng = np.random.default_rng(1)
    arguments = (*mlstm_inputs(rng, 2, 5), *mlstm_state(rng, 2, 3))
    with jax.enable_x64(True):
        cotangents = like(rng, (arguments[2], arguments[5:]))
        expected, gradients = pull_back(functools.partial(loops.mlstm, eps=0.3), arguments, cotangents)
        result, got = pull_back(functools.partial(call, eps=0.3), arguments, cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


def test_split_and_carry_is_the_whole():
    arguments, cotangents, expected, gradients = exact(65, True)

    def halves(q, k, v, i, f, *state):
        h1, state = call(*(x[:, :23] for x in (q, k, v, i, f)), *state)
        h2, state = call(*(x[:, 23:] for x in (q, k, v, i, f)), *state)
        return jnp.concatenate([h1, h2], axis=1), state

    with jax.enable_x64(True):
        result, got = pull_back(halves, [jnp.asarray(x) for x in arguments], cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


def test_step_by_step_is_the_whole():
    arguments, cotangents, expected, gradients = exact(5, True)

    def steps(q, k, v, i, f, *state):
        hs, state = [], MLSTMState(*state)
        for t in range(5):
            h, state = jax_impl.mlstm_step(*(x[:, t] for x in (q, k, v, i, f)), state)
            hs.append(h)
        return jnp.stack(hs, axis=1), tuple(state)

    with jax.enable_x64(True):
        result, got = pull_back(steps, [jnp.asarray(x) for x in arguments], cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="counts the kernels of a program for a CPU")
def test_a_step_is_no_more_than_eight_kernels():
    """As many as XLA runs one after the other in the calling thread; more are divided among threads."""
    N, K = 4, 64
    vectors, gates = [jax.ShapeDtypeStruct((1, N, K), np.float32)] * 3, [jax.ShapeDtypeStruct((1, N), np.float32)] * 2
    before = MLSTMState(C=jax.ShapeDtypeStruct((1, N, K, K), np.float32), n=vectors[0], m=gates[0])
    program = jax.jit(jax_impl.mlstm_step).lower(*vectors, *gates, before).compile().as_text()
    operations = re.findall(r"^ +(?:ROOT )?\S+ = .*? ([\w-]+)\(", program[program.index("\nENTRY") :], re.MULTILINE)
    kernels = [name for name in operations if name not in ("parameter", "constant", "bitcast", "tuple")]
    assert "dot" in kernels
    assert len(kernels) <= 8, kernels


def packed_call(rng, dtype=np.float64):
    T, B = int(PACKING[-1]), len(PACKING) - 1
    return (*mlstm_inputs(rng, T, dtype=dtype), *mlstm_state(rng, B, 3, dtype=dtype))


@pytest.mark.grid
@pytest.mark.parametrize("chunk_size", [None, 1, 16, 200])
def test_packed_is_each_sequence_by_itself(chunk_size):
    rng = np.random.default_rng(2)
    arguments = packed_call(rng)
    expected = reference.mlstm(*arguments[:5], initial_state=arguments[5:], return_state=True, cu_seqlens=PACKING)
    with jax.enable_x64(True):
        cotangents = like(rng, (arguments[2], arguments[5:]))
        function = functools.partial(call, cu_seqlens=PACKING, chunk_size=chunk_size)
        result, got = pull_back(function, arguments, cotangents)
    gradients = reference.mlstm_backward(
        *arguments[:5],
        initial_state=MLSTMState(*arguments[5:]),
        dh=np.asarray(cotangents[0]),
        dstate=MLSTMState(*map(np.asarray, cotangents[1])),
        cu_seqlens=PACKING,
    )
    assert_close(result, expected, 1e-11)
    assert_close(got, (*(gradients[name] for name in "qkvif"), *gradients["initial_state"]), 1e-11)


def test_packed_with_traced_packing_and_float32():
    rng = np.random.default_rng(2)
    arguments = packed_call(rng, np.float32)
    cotangents = like(rng, (arguments[2], arguments[5:]))
    traced = jax.jit(lambda x, dy, cu: pull_back(functools.partial(call, cu_seqlens=cu), x, dy))
    (h, last), _ = traced(arguments, cotangents, PACKING.astype(np.int32))
    expected = reference.mlstm(*arguments[:5], initial_state=arguments[5:], return_state=True, cu_seqlens=PACKING)
    assert_close((h, last), expected, 1e-4)
    # The same compiled function serves every packing of as many sequences, and one that is none stays within bounds.
    other = np.array([0, 10, 20, 50, 60, 90, 100], np.int32)
    (h, last), _ = traced(arguments, cotangents, other)
    expected = reference.mlstm(*arguments[:5], initial_state=arguments[5:], return_state=True, cu_seqlens=other)
    assert_close((h, last), expected, 1e-4)
    for bad in ([0, -5, 300, 2, 2**30, 7, 9], [50, 40, 30, 20, 10, 0, 0], [7, 7, 7, 7, 7, 7, 7]):
        jax.block_until_ready(traced(arguments, cotangents, np.array(bad, np.int32)))


def test_packed_sequences_that_share_chunks_are_separate():
    """A query of one sequence times a key of the next is beyond float32; an empty one lies between two chunks."""
    rng = np.random.default_rng(4)
    q, k, v, i, f = mlstm_inputs(rng, 48, dtype=np.float32)
    packing = np.array([0, 12, 20, 20, 36, 48])
    size = np.float32([1e25, 1e-25, 1, 1e25, 1e-25]).repeat(np.diff(packing))[:, None, None]
    state = tuple(1e-3 * x for x in mlstm_state(rng, 5, 3, dtype=np.float32))

    def function(*x):
        return jax_impl.mlstm(*x[:5], initial_state=x[5:], cu_seqlens=packing, chunk_size=20)

    h, gradients = pull_back(function, (q / size, k * size, 1e-25 * v, i, f, *state), like(rng, v))
    assert all(np.isfinite(x).all() for x in (h, *gradients))
    assert all(not np.any(x[2]) for x in gradients[5:])


@pytest.mark.parametrize("packing", [[0], [0, 0, 0]])
def test_packing_without_a_step(packing):
    rng = np.random.default_rng(3)
    B = len(packing) - 1
    arguments = (*mlstm_inputs(rng, 0, dtype=np.float32), *mlstm_state(rng, B, 3, dtype=np.float32))
    cotangents = like(rng, (arguments[2], arguments[5:]))
    result, got = pull_back(functools.partial(call, cu_seqlens=np.array(packing)), arguments, cotangents)
    assert_close(result, (arguments[2], arguments[5:]), 1e-6)
    assert_close(got, (*arguments[:5], *cotangents[1]), 1e-6)


@pytest.mark.grid
@pytest.mark.parametrize("shape", [(0, 4, 3, 5, 7), (2, 0, 3, 5, 7), (2, 4, 0, 5, 7), (2, 4, 3, 5, 0)])
def test_axes_of_size_0(shape):
    B, S, N, K, V = shape
    rng = np.random.default_rng(4)
    arguments = (
        *mlstm_inputs(rng, B, S, N=N, K=K, V=V, dtype=np.float32),
        *mlstm_state(rng, B, N, K=K, V=V, dtype=np.float32),
    )
    result, got = pull_back(call, arguments, like(rng, (arguments[2], arguments[5:])))
    expected = reference.mlstm(*arguments[:5], initial_state=arguments[5:], return_state=True)
    assert_close(result, expected, 1e-5)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, tuple(arguments))


def extremes(rng, S, dtype):
    """Gates at and beyond their limits, among ordinary ones."""
    q, k, v, i, f = mlstm_inputs(rng, 2, S)
    kinds = rng.integers(0, 8, size=f.shape)
    for kind, value in enumerate([np.inf, -np.inf, 1e4, -1e4]):
        f[kinds == kind] = value
    kinds = rng.integers(0, 8, size=i.shape)
    for kind, value in enumerate([-np.inf, -1e4, 60.0]):
        i[kinds == kind] = value
    i[:, 20:24], f[:, 22] = -np.inf, -np.inf
    return [x.astype(dtype) for x in (q, k, v, i, f)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_gates(dtype):
    rng = np.random.default_rng(5)
    arguments = (*extremes(rng, 65, dtype), *mlstm_state(rng, 2, 3, dtype=dtype))
    tolerance = 1e-11 if dtype == np.float64 else 1e-4
    with jax.enable_x64(dtype == np.float64):
        cotangents = like(rng, (arguments[2], arguments[5:]))
        result, got = pull_back(functools.partial(call, chunk_size=9), arguments, cotangents)
    expected = reference.mlstm(*arguments[:5], initial_state=arguments[5:], return_state=True)
    gradients = reference.mlstm_backward(
        *arguments[:5],
        initial_state=MLSTMState(*arguments[5:]),
        dh=np.asarray(cotangents[0]),
        dstate=MLSTMState(*map(np.asarray, cotangents[1])),
    )
    assert_close(result, expected, tolerance)
    assert_close(got, (*(gradients[name] for name in "qkvif"), *gradients["initial_state"]), tolerance)


def test_empty_memory_stays_legal():
    """i = f = −∞ empties the memory: h = 0, m = −∞, which the next call starts from."""
    rng = np.random.default_rng(6)
    q, k, v, i, f = mlstm_inputs(rng, 2, 5, dtype=np.float32)
    gone = np.full_like(i, -np.inf)
    h, last = jax_impl.mlstm(q, k, v, gone, gone, return_state=True)
    assert not h.any()
    assert not last.C.any()
    assert np.isneginf(last.m).all()
    state = (*last[:2], last.m)
    result, got = pull_back(call, (q, k, v, i, f, *state), like(rng, (v, tuple(last))))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((result, got)))
    expected = reference.mlstm(q, k, v, i, f, initial_state=MLSTMState(*map(np.asarray, state)), return_state=True)
    assert_close(result, expected, 1e-5)


def test_m_beyond_the_floor():
    """Above m = 64 the floor stops falling, and m is a constant in it."""
    rng = np.random.default_rng(7)
    arguments = (*mlstm_inputs(rng, 2, 5), *mlstm_state(rng, 2, 3))
    arguments[3][...] += 70
    arguments[1][...] *= 1e-30
    with jax.enable_x64(True):
        cotangents = like(rng, (arguments[2], arguments[5:]))
        expected, gradients = pull_back(loops.mlstm, arguments, cotangents)
        result, got = pull_back(call, arguments, cotangents)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


def test_forget_gradient_of_a_long_sequence():
    """A median element error below 2e-6 at S = 4096 in float32, and exactly 0 across a hard reset."""
    rng = np.random.default_rng(8)
    S, reset = 4096, 1000
    q, k, v, i, f = mlstm_inputs(rng, 1, S, N=2, K=16, V=16, gates=1.0)
    f += 3.0
    f[:, reset] = -np.inf
    dh = normal(rng, *v.shape)
    with jax.enable_x64(True):
        exact = np.asarray(pull_back(call, (q, k, v, i, f), jnp.asarray(dh))[1][4])
    narrow = [x.astype(np.float32) for x in (q, k, v, i, f)]
    got = np.asarray(pull_back(call, narrow, jnp.asarray(dh, jnp.float32))[1][4])
    assert (got[:, reset] == 0).all()
    kept = exact != 0
    assert np.median(np.abs(got - exact)[kept] / np.abs(exact)[kept]) < 2e-6


@pytest.mark.grid
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("gates_dtype", [None, jnp.float32])
def test_16_bit_values(dtype, gates_dtype):
    """Outputs and gradients in the dtype of the inputs, states in float32, as exact as one rounding of each allows."""
    rng = np.random.default_rng(9)
    inputs = mlstm_inputs(rng, 2, 65)
    arguments = [jnp.asarray(x, gates_dtype or dtype if at > 2 else dtype) for at, x in enumerate(inputs)]
    state = [jnp.asarray(x, jnp.float32) for x in mlstm_state(rng, 2, 3)]
    cotangents = like(rng, (arguments[2], tuple(state)))
    (h, last), got = pull_back(call, (*arguments, *state), cotangents)
    assert h.dtype == dtype
    assert {part.dtype for part in last} == {jnp.dtype(jnp.float32)}
    assert [x.dtype for x in got] == [x.dtype for x in (*arguments, *state)]
    wide = [jnp.asarray(x, jnp.float32) for x in (*arguments, *state)]
    expected, gradients = pull_back(call, wide, jax.tree.map(lambda x: x.astype(jnp.float32), cotangents))
    rounding = float(jnp.finfo(dtype).eps)
    assert_close((h, last), expected, rounding)
    assert_close(got, gradients, rounding)


def test_no_value_is_quadratic_in_the_sequence():
    """Counted in the jaxpr of forward and backward: no value holds S² elements, and chunk_size is what sets L."""
    S, sizes = 640, {}
    arguments = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in mlstm_inputs(np.random.default_rng(0), 1, S, N=1)]
    for L in (16, 64):
        function = functools.partial(call, chunk_size=L)
        jaxpr = jax.make_jaxpr(lambda x, dh, f=function: pull_back(f, x, dh))(arguments, arguments[2])
        sizes[L] = shapes_in(jaxpr.jaxpr)
        assert max(np.prod(shape, dtype=int) for shape in sizes[L]) <= 2 * S * 64 < S * S
    squares = {
        L: {shape[-1] for shape in shapes if len(shape) >= 4 and shape[-1] == shape[-2]} for L, shapes in sizes.items()
    }
    assert 16 in squares[16] and 64 not in squares[16]
    assert 64 in squares[64] and 16 not in squares[64]


def test_numpy_inputs_are_neither_written_to_nor_aliased():
    rng = np.random.default_rng(10)
    arguments = (*mlstm_inputs(rng, 2, 0, dtype=np.float32), *mlstm_state(rng, 2, 3, dtype=np.float32))
    _, last = call(*arguments)
    before = np.array(last[0])
    arguments[5][...] = 0
    np.testing.assert_array_equal(last[0], before)
    arguments = (*mlstm_inputs(rng, 2, 5, dtype=np.float32), *mlstm_state(rng, 2, 3, dtype=np.float32))
    copies = [x.copy() for x in arguments]
    pull_back(call, arguments, like(rng, (arguments[2], arguments[5:])))
    for x, copy in zip(arguments, copies, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_float64_without_x64_is_refused():
    q, k, v, i, f = mlstm_inputs(np.random.default_rng(11), 2, 7)
    with pytest.raises(TypeError) as caught:
        jax_impl.mlstm(q, k, v, i, f)
    assert str(caught.value) == "mlstm: `q` is f64[2,7,3,5]; expected float32, or float64 with jax_enable_x64 on"


def test_int64_packing_is_taken():
    arguments = mlstm_inputs(np.random.default_rng(12), 7, dtype=np.float32)
    h = jax_impl.mlstm(*arguments, cu_seqlens=np.array([0, 3, 7], np.int64), max_seqlen=4)
    assert relative_error(h, reference.mlstm(*arguments, cu_seqlens=np.array([0, 3, 7]))) < 1e-5


def test_backends_are_explained_under_tracing_too():
    arguments = mlstm_inputs(np.random.default_rng(13), 2, 7, dtype=np.float32)
    explained = []

    def traced(*x):
        explained.append(jax_impl.explain_backend("mlstm", *x))
        return jax_impl.mlstm(*x, kernel_backend="xla")

    jax.jit(traced)(*arguments)
    for explanation in (jax_impl.explain_backend("mlstm", *arguments), *explained):
        assert explanation.chosen is jax_impl.KernelBackend.xla
        assert set(explanation.against) == {jax_impl.KernelBackend.pallas}
    with pytest.raises(ValueError, match=r"^mlstm: `kernel_backend` is pallas, which does not support this call: "):
        jax_impl.mlstm(*arguments, kernel_backend="pallas")
