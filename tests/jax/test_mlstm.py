"""mLSTM: blocks, traced packing, the sizes of programs, and what NumPy's arrays are given to."""

import functools
import re

import jax
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl import MLSTMState
from tests.both import with_jax
from tests.both.tools import compare, mlstm, mlstm_reference
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, pull_back, shapes_in

PACKING = np.array([0, 0, 3, 70, 70, 99, 100])


def call(q, k, v, i, f, *state, **options):
    if not state:
        return jax_impl.mlstm(q, k, v, i, f, **options)
    h, last = jax_impl.mlstm(q, k, v, i, f, initial_state=state, return_state=True, **options)
    return h, tuple(last)


def test_blocks_change_no_value(monkeypatch):
    monkeypatch.setattr("jax_impl._mlstm.api.BLOCK_ON_CPU", 2 * 3 * 20)
    rng = np.random.default_rng(65)
    arguments = [*mlstm_inputs(rng, 2, 65), *mlstm_state(rng, 2, 3)]
    compare(with_jax, mlstm(with_jax, 9), mlstm_reference, arguments)


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


def test_float64_without_x64_is_refused():
    q, k, v, i, f = mlstm_inputs(np.random.default_rng(11), 2, 7)
    with pytest.raises(TypeError) as caught:
        jax_impl.mlstm(q, k, v, i, f)
    assert str(caught.value) == "mlstm: `q` is f64[2,7,3,5]; expected float32, or float64 with jax_enable_x64 on"


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
