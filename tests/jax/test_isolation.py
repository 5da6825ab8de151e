"""A NaN in one packed sequence reaches no other, nor another head: their results are the same bits as without it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from reference.arguments import MLSTMState
from tests.jax.tools import like, mlstm_inputs, mlstm_state, pull_back

PACKING = np.array([0, 5, 5, 12, 13, 40, 47], np.int32)
"""Chunks of 16 steps: the first one holds five sequences, one of them empty; the fifth sequence is in three chunks."""
HEAD = 1
TOKENS = {"start": 13, "middle": 30, "end": 39, "alone": 12, "last of all": 46, "first of all": 0}


class Call(NamedTuple):
    """The arrays of a call that can be spoilt, by name, and their gradients."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    i: np.ndarray
    f: np.ndarray
    C: np.ndarray
    n: np.ndarray
    m: np.ndarray
    dh: np.ndarray
    dC: np.ndarray
    dn: np.ndarray
    dm: np.ndarray


def drawn(dtype=np.float32) -> Call:
    rng, B = np.random.default_rng(11), len(PACKING) - 1
    state = [jnp.float32 if jnp.dtype(dtype).itemsize == 2 else dtype] * 3
    arrays = (*mlstm_inputs(rng, int(PACKING[-1]), dtype=dtype), *mlstm_state(rng, B, 3, dtype=state[0]))
    return Call(*map(np.asarray, arrays), *map(np.asarray, like(rng, (arrays[2], *arrays[5:]))))


def both_passes(call: Call, packing, chunk_size=16):
    """h and the final state, and the eight gradients."""

    def function(*x):
        initial = MLSTMState(*x[5:])
        return jax_impl.mlstm(
            *x[:5], initial_state=initial, return_state=True, cu_seqlens=packing, chunk_size=chunk_size
        )

    (h, state), gradients = pull_back(function, call[:8], (call.dh, MLSTMState(*call[9:])))
    return (h, *state), gradients


compiled = jax.jit(both_passes, static_argnames="chunk_size")


def spoilt(call: Call, name: str, where: int, value: float) -> Call:
    """The call with one element of a sequence and head replaced."""
    x = getattr(call, name).copy()
    x[(where, HEAD, *(size // 2 for size in x.shape[2:]))] = value
    return call._replace(**{name: x})


def of_sequence(b: int, x: np.ndarray) -> np.ndarray:
    """Whether an element of a result belongs to a sequence and the head of these tests, broadcast to its shape."""
    here = np.zeros(x.shape, bool)
    here[b if len(x) == len(PACKING) - 1 else slice(*PACKING[b : b + 2]), HEAD] = True
    return here


def check(call: Call, clean: Call, b: int, chunk_size: int | None = 16) -> list[np.ndarray]:
    """Everything outside the sequence is as it was, and NaN is where the definition has it. Returns the results."""
    expected, got = (
        [np.asarray(x, np.float64) for x in jax.tree.leaves(compiled(each, PACKING, chunk_size=chunk_size))]
        for each in (clean, call)
    )
    for x, y in zip(got, expected, strict=True):
        own = of_sequence(b, x)
        np.testing.assert_array_equal(x[~own], y[~own])
        assert np.isfinite(x[~own]).all()
    with np.errstate(all="ignore"):
        for x, y in zip(got, of_reference(call), strict=True):
            assert np.isnan(x)[np.isnan(y)].all()
    return got


def of_reference(call: Call) -> list[np.ndarray]:
    initial = MLSTMState(*call[5:8])
    options = {"initial_state": initial, "cu_seqlens": PACKING}
    h, state = reference.mlstm(*call[:5], return_state=True, **options)
    gradients = reference.mlstm_backward(*call[:5], dh=call.dh, dstate=MLSTMState(*call[9:]), **options)
    return [h, *state, *(gradients[name] for name in "qkvif"), *gradients["initial_state"]]


def sequence_of(token: int) -> int:
    return int(np.searchsorted(PACKING, token, side="right")) - 1


@pytest.mark.parametrize("where", TOKENS)
@pytest.mark.parametrize("name", [*"qkvif", "dh"])
def test_a_nan_in_a_token_stays_in_its_sequence_and_head(name, where):
    clean, token = drawn(), TOKENS[where]
    h, *_ = got = check(spoilt(clean, name, token, np.nan), clean, sequence_of(token))
    assert not np.isnan(h[:token]).any()
    if name == "dh":
        assert not any(np.isnan(x).any() for x in got[:4])
        assert any(np.isnan(x).any() for x in got[4:])
    else:
        assert np.isnan(h[token, HEAD]).all()


@pytest.mark.parametrize("b", [0, 1, 4, 5])
@pytest.mark.parametrize("name", ["C", "n", "m", "dC", "dn", "dm"])
def test_a_nan_in_a_state_stays_in_its_sequence_and_head(name, b):
    clean = drawn()
    got = check(spoilt(clean, name, b, np.nan), clean, b)
    assert any(np.isnan(x).any() for x in got) and (name[0] != "d" or not any(np.isnan(x).any() for x in got[:4]))


@pytest.mark.parametrize("name", [*"qkvi", "C", "n", "m", "dh", "dC", "dn", "dm"])
def test_an_infinite_value_stays_in_its_sequence_and_head(name):
    clean = drawn()
    by_token = len(getattr(clean, name)) == PACKING[-1]
    got = check(spoilt(clean, name, TOKENS["middle"] if by_token else 4, np.inf), clean, 4)
    assert not all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize(("name", "value"), [("i", -np.inf), ("f", -np.inf), ("f", np.inf), ("m", -np.inf)])
def test_legal_infinite_gates_spoil_nothing(name, value):
    clean = drawn()
    got = check(spoilt(clean, name, 4 if name == "m" else TOKENS["middle"], value), clean, 4)
    assert all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize("of", ["scores", "a memory", "an initial state", "gradients of h", "of a final state"])
def test_products_beyond_the_dtype_stay_in_their_sequence_and_head(of):
    clean, own = drawn(), (slice(*PACKING[4:6]), HEAD)
    factors = {
        "scores": {"q": 1e30, "k": 1e30},
        "a memory": {"k": 1e30, "v": 1e30},
        "an initial state": {"C": 1e30, "q": 1e30},
        "gradients of h": {"dh": 1e38, "v": 1e5, "q": 1e-10},
        "of a final state": {"dC": 1e30, "v": 1e30},
    }[of]
    call = clean
    for name, factor in factors.items():
        x = getattr(clean, name).copy()
        x[own if len(x) == PACKING[-1] else (4, HEAD)] *= np.float32(factor)
        call = call._replace(**{name: x})
    got = check(call, clean, 4)
    assert not all(np.isfinite(x).all() for x in got)


@pytest.mark.whole_grid
@pytest.mark.parametrize("chunk_size", [1, 7, None])
@pytest.mark.parametrize("dtype", [np.float64, jnp.bfloat16, np.float16], ids=["float64", "bfloat16", "float16"])
def test_a_nan_stays_in_every_dtype_and_chunk_size(dtype, chunk_size):
    with jax.enable_x64(dtype == np.float64):
        clean = drawn(dtype)
        for name in ("k", "v", "f", "dh", "n"):
            where = 3 if name == "n" else TOKENS["alone"]
            check(spoilt(clean, name, where, np.nan), clean, 3, chunk_size)


@pytest.mark.parametrize("size", [1e6, 1e20])
def test_a_nan_stays_next_to_large_gates(size):
    """Whether the roundoff of m counts is one answer for all sequences, and a NaN does not give it."""
    clean = drawn()
    clean = clean._replace(i=np.float32(size) * clean.i, f=np.float32(size) * clean.f)
    for name, where in (("i", 30), ("f", 13), ("m", 4)):
        check(spoilt(clean, name, where, np.nan), clean, 4)


@pytest.mark.whole_grid
def test_a_nan_stays_without_states_and_under_vmap():
    """Each call of a map has a packing of its own."""
    rng = np.random.default_rng(5)
    packings = np.array([[0, 3, 9, 9, 20], [0, 0, 12, 13, 20]])
    clean = mlstm_inputs(rng, 2, 20, dtype=np.float32)
    dh = like(rng, clean[2])

    def mapped(*x):
        function = jax.vmap(lambda cu, *x: jax_impl.mlstm(*x, cu_seqlens=cu))
        return pull_back(lambda *x: function(packings, *x), x, dh)

    run = jax.jit(mapped)
    expected = jax.tree.leaves(run(*clean))
    for at in range(5):
        arrays = [x.copy() for x in clean]
        arrays[at][0, 5, HEAD] = arrays[at][1, 12, HEAD] = np.nan
        for x, y in zip(map(np.array, jax.tree.leaves(run(*arrays))), map(np.array, expected), strict=True):
            assert np.isnan(x[0, 5, HEAD]).all() and np.isnan(x[1, 12, HEAD]).all()
            for own in ((0, slice(3, 9), HEAD), (1, 12, HEAD)):
                x[own] = y[own] = 0
            np.testing.assert_array_equal(x, y)
