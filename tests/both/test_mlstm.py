"""mLSTM: values and gradients against the reference, dense and packed, and at the edges of what is legal."""

from functools import partial

import numpy as np
import pytest

import reference
from tests.both.tools import compare, mlstm, mlstm_inputs, mlstm_reference, mlstm_state, native, pulled

PACKINGS = [
    [0, 0, 3, 70, 70, 99, 100],
    [0, 3, 3, 70, 200],
    [0, 0, 65, 65, 65, 130, 200, 200],
    [0, 200],
    [0, 1, 2, 3, 200],
]


def call(seed: int, B: int, S: int, with_state: bool = True) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [*mlstm_inputs(rng, B, S), *(mlstm_state(rng, B, 3) if with_state else ())]


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("S", [0, 1, 5, 63, 64, 65, 200])
def test_gradients(framework, S, with_state, dtype):
    compare(framework, mlstm(framework), mlstm_reference, call(S, 2, S, with_state), dtype)


@pytest.mark.grid
@pytest.mark.parametrize("chunk_size", [1, 2, 7, 16, 64, 1000])
def test_chunk_size_changes_no_value(framework, chunk_size):
    compare(framework, mlstm(framework, chunk_size), mlstm_reference, call(65, 2, 65))


@pytest.mark.grid
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("shift", [0.0, 90.0, -90.0], ids=["m", "m above 64", "m far below 0"])
def test_stated_exceptions_freeze_m(framework, eps, shift):
    """Above m = 64 the floor stops falling; there, and where eps is added, h knows m as a constant."""
    arrays = call(1, 2, 20)
    arrays[3] += shift
    arrays[7] += shift
    compare(framework, mlstm(framework, 6, eps=eps), partial(mlstm_reference, eps=eps), arrays)


def test_m_beyond_the_floor(framework):
    """Where the floor is the normaliser, it falls no further than exp(−64)."""
    arrays = call(7, 2, 5)
    arrays[3] += 70
    arrays[1] *= 1e-30
    compare(framework, mlstm(framework), mlstm_reference, arrays)


def test_split_and_carry_is_the_whole(framework):
    def halves(*arrays):
        first = mlstm(framework)(*(x[:, :23] for x in arrays[:5]), *arrays[5:])
        second = mlstm(framework)(*(x[:, 23:] for x in arrays[:5]), *first[1:])
        return [framework.concatenate([first[0], second[0]], 1), *second[1:]]

    compare(framework, halves, mlstm_reference, call(65, 2, 65))


def test_step_by_step_is_the_whole(framework):
    def steps(*arrays):
        hs, state = [], framework.package.MLSTMState(*arrays[5:])
        for t in range(6):
            h, state = framework.package.mlstm_step(*(x[:, t] for x in arrays[:5]), state)
            hs.append(h)
        return [framework.stack(hs, 1), *state]

    compare(framework, steps, mlstm_reference, call(5, 2, 6))


@pytest.mark.grid
@pytest.mark.parametrize(
    ("chunk_size", "with_state", "integers"),
    [(None, True, "int32"), (None, False, "int64"), (1, True, "int64"), (16, False, "int32"), (200, True, "int32")],
)
@pytest.mark.parametrize("bounds", PACKINGS, ids=str)
def test_packed_is_each_sequence_by_itself(framework, bounds, chunk_size, with_state, integers):
    rng = np.random.default_rng(2)
    arrays = [*mlstm_inputs(rng, bounds[-1]), *(mlstm_state(rng, len(bounds) - 1, 3) if with_state else ())]

    def packed(*arrays):
        return mlstm(framework, chunk_size, cu_seqlens=framework.array(np.array(bounds), integers))(*arrays)

    compare(framework, packed, partial(mlstm_reference, cu_seqlens=np.array(bounds)), arrays)


@pytest.mark.grid
@pytest.mark.parametrize("bounds", [[0], [0, 0], [0, 0, 0]], ids=str)
def test_packed_without_tokens(framework, bounds):
    rng = np.random.default_rng(3)
    arrays = [*mlstm_inputs(rng, 0), *mlstm_state(rng, len(bounds) - 1, 3)]
    packing = np.array(bounds, np.int32)
    packed = mlstm(framework, cu_seqlens=framework.array(packing, "int32"))
    compare(framework, packed, partial(mlstm_reference, cu_seqlens=packing), arrays, "float32")


@pytest.mark.grid
@pytest.mark.parametrize("shape", [(0, 4, 3, 5, 7), (2, 0, 3, 5, 7), (2, 4, 0, 5, 7), (2, 4, 3, 5, 0), (0, 0, 0, 5, 0)])
def test_axes_of_size_0(framework, shape):
    B, S, N, K, V = shape
    rng = np.random.default_rng(4)
    arrays = [*mlstm_inputs(rng, B, S, N=N, K=K, V=V), *mlstm_state(rng, B, N, K=K, V=V)]
    compare(framework, mlstm(framework), mlstm_reference, arrays, "float32")


def extremes(kind: str, rng: np.random.Generator, i: np.ndarray, f: np.ndarray) -> None:
    """Overwrite parts of the gates; sizes are such that their sums are exact."""
    if kind == "reset":
        f[:, 20], f[:, 33] = -np.inf, -np.inf
    elif kind == "keep":
        f[:] = np.inf
    elif kind == "no write":
        i[:, 5:30] = -np.inf
    elif kind == "emptied":
        i[:, 10:15], f[:, 10:15] = -np.inf, -np.inf
    elif kind == "empty from the start":
        i[:, :9], f[:, :9] = -np.inf, -np.inf
    elif kind == "nothing at all":
        i[:], f[:] = -np.inf, -np.inf
    elif kind == "large":
        f[rng.integers(0, 2, f.shape) == 0] = 1e4
        f[rng.integers(0, 3, f.shape) == 0] = -1e4
        i[rng.integers(0, 3, i.shape) == 0] = -1e4
    elif kind == "large input":
        i[:, 1::3], i[:, ::3] = 1e4, -1e4
    elif kind == "ties":
        i[:], f[:] = 0.0, np.inf


EXTREMES = (
    "reset", "keep", "no write", "emptied", "empty from the start", "nothing at all", "large", "large input", "ties",
)  # fmt: skip


@pytest.mark.grid
@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_extremes(framework, kind, with_state, dtype):
    arrays = call(3, 2, 50, with_state)
    if with_state and kind == "ties":
        arrays[7][:] = 0.0
    extremes(kind, np.random.default_rng(5), arrays[3], arrays[4])
    # A gradient may be exactly 0, as the difference of terms of size 1.
    compare(framework, mlstm(framework, 16), mlstm_reference, arrays, dtype, scale=1.0)


def test_an_empty_memory_is_a_legal_start(framework):
    """i = f = −∞ empties the memory: h = 0, m = −∞, which the next call starts from."""
    arrays = call(6, 2, 20)
    for x, value in zip(arrays[5:], (0.0, 0.0, -np.inf), strict=True):
        x[:] = value
    compare(framework, mlstm(framework, 6), mlstm_reference, arrays)
    arrays[3][:], arrays[4][:] = -np.inf, -np.inf
    h, C, _, m = (framework.numpy(x) for x in mlstm(framework)(*native(framework, arrays[:5], "float32")))
    assert not h.any() and not C.any() and np.isneginf(m).all()


@pytest.mark.long
def test_forget_gradient_over_a_long_sequence(framework):
    """In float32 at S = 4096 half the elements are right to 2e-6, and no gradient crosses a hard reset."""
    rng = np.random.default_rng(8)
    S, reset = 4096, 1000
    arrays = [x.astype(np.float32) for x in mlstm_inputs(rng, 1, S, N=2, K=16, V=16, gates=1.0)]
    arrays[4] += 3
    arrays[4][:, reset] = -np.inf
    dh = rng.normal(size=(1, S, 2, 16)).astype(np.float32)
    got, exact = (
        pulled(framework, lambda *x: [framework.package.mlstm(*x)], arrays, [dh], dtype)[1][4]
        for dtype in ("float32", "float64")
    )
    assert (got[:, reset] == 0).all() and (exact[:, reset] == 0).all()
    kept = exact != 0
    assert np.median(np.abs(got - exact)[kept] / np.abs(exact)[kept]) < 2e-6


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gates", ["same", "float32"])
def test_16_bit_values(framework, dtype, gates):
    """Outputs and gradients in the dtype of the inputs, states in float32, as exact as one rounding of each allows."""
    dtypes = [dtype] * 3 + [dtype if gates == "same" else "float32"] * 2 + ["float32"] * 3
    tolerance = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    compare(framework, mlstm(framework), mlstm_reference, call(9, 2, 70), dtypes, tolerance)


def test_results_do_not_depend_on_the_batch(framework):
    arrays = native(framework, call(10, 3, 70, with_state=False), "float32")
    whole = framework.numpy(framework.package.mlstm(*arrays))
    for b in range(3):
        alone = framework.numpy(framework.package.mlstm(*(x[b : b + 1] for x in arrays)))
        np.testing.assert_allclose(alone[0], whole[b], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["empty", "reset", "large"])
def test_step_extremes(framework, kind):
    arrays = [x[:, 0] if at < 5 else x for at, x in enumerate(call(11, 2, 1))]
    if kind == "empty":
        arrays[3][:], arrays[4][:], arrays[7][:] = -np.inf, -np.inf, -np.inf
        arrays[5][:], arrays[6][:] = 0.0, 0.0
    elif kind == "reset":
        arrays[4][:] = -np.inf
    else:
        arrays[3][:], arrays[4][:] = 1e4, -1e4

    def step(*arrays):
        return framework.package.mlstm_step(*arrays[:5], arrays[5:])

    def expected(arrays, cotangents=None):
        state = reference.MLSTMState(*arrays[5:])
        if cotangents is None:
            h, last = reference.mlstm_step(*arrays[:5], state)
            return [h, *last]
        dstate = reference.MLSTMState(*cotangents[1:])
        found = reference.mlstm_step_backward(*arrays[:5], state, dh=cotangents[0], dstate=dstate)
        return [*(found[name] for name in "qkvif"), *found["state"]]

    compare(framework, step, expected, arrays, scale=1.0)
