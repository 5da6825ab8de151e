"""The mLSTM over shards: equal to the unsharded call for any cuts, and the algebra of summaries."""

from functools import reduce
from typing import Any

import numpy as np
import pytest

import reference
from reference import MLSTMState, MLSTMSummary, combine_mlstm_summaries, mlstm_summary
from reference._gates import exp_difference
from tests.reference.numeric import assert_gradient

B, N, K, V = 2, 2, 3, 4
NAMES = "qkvif"
KINDS = ["plain", "resets", "silent", "extreme", "closed"]


def arrays(rng, *lead, kind="plain"):
    """q, k, v, i, f for the leading axes ``lead``, with gates of some kind."""
    q, k, v, i, f = (rng.normal(size=(*lead, *width)) for width in ((N, K), (N, K), (N, V), (N,), (N,)))
    i, f = 2 * i, 2 * f
    if kind == "resets":
        f[rng.random(f.shape) < 0.3] = -np.inf
    elif kind == "silent":
        silent = rng.random(lead) < 0.6
        i[silent], f[silent] = -np.inf, np.inf
    elif kind == "extreme":
        i, f = 500 * i, 500 * f
    elif kind == "closed":
        i[:], f[:] = -np.inf, -np.inf
    return q, k, v, i, f


def state(rng, B=B):
    return MLSTMState(*(rng.normal(size=(B, N, *width)) for width in ((K, V), (K,), ())))


def cut(x, at, axis):
    return np.split(x, at, axis=axis)


def sharded_with_state(*shards, **options) -> tuple[list[np.ndarray], MLSTMState]:
    h, last = reference.mlstm_sharded(*shards, **options, return_state=True)
    assert isinstance(last, MLSTMState)
    return [*h], last


def true_memory(*parts: Any):
    """C, n in units that two states or summaries share."""
    top = reduce(np.maximum, (part.m for part in parts))
    weights = (exp_difference(part.m, top) for part in parts)
    return [(w[..., None, None] * part.C, w[..., None] * part.n) for w, part in zip(weights, parts, strict=True)]


def assert_sharded_is_whole(rng, whole, at, initial, cu_seqlens=None, rtol=1e-10):
    axis = 1 if cu_seqlens is None else 0
    shards = [cut(x, at, axis) for x in whole]
    options = {"initial_state": initial, "cu_seqlens": cu_seqlens, "eps": 0.1}
    h, last = reference.mlstm(*whole, **options, return_state=True)
    got, got_last = sharded_with_state(*shards, **options)
    np.testing.assert_allclose(np.concatenate(got, axis), h, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(got_last.m, last.m, rtol=1e-12)
    for one, other in zip(*true_memory(got_last, last), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)

    dh, dstate = rng.normal(size=h.shape), MLSTMState(*(rng.normal(size=part.shape) for part in last))
    expected = reference.mlstm_backward(*whole, **options, dh=dh, dstate=dstate)
    found = reference.mlstm_sharded_backward(*shards, **options, dh=cut(dh, at, axis), dstate=dstate)
    assert set(found) == set(expected)
    scale = max(np.abs(expected[name]).max(initial=1.0) for name in NAMES)
    for name in NAMES:
        np.testing.assert_allclose(
            np.concatenate(found[name], axis), expected[name], rtol=rtol, atol=1e-12 * scale, err_msg=name
        )
    if initial is not None:
        for one, other in zip(found["initial_state"], expected["initial_state"], strict=True):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("S", [0, 1, 13])
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "state"])
def test_any_cut_gives_what_the_whole_gives(kind, S, given):
    rng = np.random.default_rng([S, given])
    for _ in range(3):
        at = np.sort(rng.integers(0, S + 1, size=rng.integers(0, 5)))
        assert_sharded_is_whole(rng, arrays(rng, B, S, kind=kind), at, state(rng) if given else None)


@pytest.mark.parametrize("kind", ["plain", "resets", "extreme"])
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "state"])
def test_packed_sequences_cross_any_number_of_borders(kind, given):
    rng = np.random.default_rng(given)
    for T in (0, 1, 17, 17, 17):
        count = int(rng.integers(0 if T == 0 else 1, 6))
        inner = np.sort(rng.integers(0, T + 1, size=max(0, count - 1)))
        cu_seqlens = np.array([0, *inner, T] if count else [0])
        at = np.sort(rng.integers(0, T + 1, size=rng.integers(0, 6)))
        initial = state(rng, count) if given else None
        assert_sharded_is_whole(rng, arrays(rng, T, kind=kind), at, initial, cu_seqlens)


def test_gradient_by_central_differences():
    rng = np.random.default_rng(3)
    whole, initial, at = arrays(rng, B, 7), state(rng), [2, 2, 5]

    def sharded(q, k, v, i, f, C, n, m):
        shards = [cut(x, at, 1) for x in (q, k, v, i, f)]
        h, last = sharded_with_state(*shards, initial_state=MLSTMState(C, n, m))
        return (np.concatenate(h, 1), *last)

    arguments = dict(zip((*NAMES, "C", "n", "m"), (*whole, *initial), strict=True))
    cotangents = [rng.normal(size=x.shape) for x in sharded(**arguments)]
    dh, dstate = cut(cotangents[0], at, 1), MLSTMState(*cotangents[1:])
    found = reference.mlstm_sharded_backward(
        *[cut(x, at, 1) for x in whole], initial_state=initial, dh=dh, dstate=dstate
    )
    gradients = {name: np.concatenate(found[name], 1) for name in NAMES} | found["initial_state"]._asdict()
    # h depends on m in its floor, where the definition counts m as a constant only above 64; no gate attains it here.
    assert_gradient(sharded, arguments, gradients, cotangents, rng, rtol=1e-5)


def test_nothing_flows_through_a_reset():
    """A reset in the second of three shards: no gradient before it, not even of roundoff, and all of it after."""
    rng = np.random.default_rng(4)
    q, k, v, i, f = arrays(rng, 1, 9)
    f[:, 4] = -np.inf
    at, initial = [3, 6], state(rng, 1)
    shards = [cut(x, at, 1) for x in (q, k, v, i, f)]
    dh = np.zeros((1, 9, N, V))
    dh[:, 4:] = rng.normal(size=dh[:, 4:].shape)
    dstate = MLSTMState(*(rng.normal(size=x.shape) for x in initial))
    found = reference.mlstm_sharded_backward(*shards, initial_state=initial, dh=cut(dh, at, 1), dstate=dstate)
    for name in "kvi":
        gradient = np.concatenate(found[name], 1)
        assert not gradient[:, :4].any(), name
        assert gradient[:, 4:].all(), name
    assert not np.concatenate(found["f"], 1)[:, :5].any()
    assert not any(part.any() for part in found["initial_state"])


def random_summaries(rng, count):
    """Summaries with empty shards, resets, silent steps and large gates among them."""
    return [
        mlstm_summary(*arrays(rng, B, int(rng.integers(0, 4)), kind=KINDS[int(rng.integers(5))])[1:])
        for _ in range(count)
    ]


def assert_same_summary(got, expected):
    np.testing.assert_allclose(got.m, expected.m, rtol=1e-12)
    np.testing.assert_allclose(got.a, expected.a, rtol=1e-12, atol=1e-12)
    for one, other in zip(*true_memory(got, expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_combining_is_associative_and_has_an_identity(seed):
    rng = np.random.default_rng(seed)
    x, y, z = random_summaries(rng, 3)
    left = combine_mlstm_summaries(combine_mlstm_summaries(x, y), z)
    right = combine_mlstm_summaries(x, combine_mlstm_summaries(y, z))
    assert_same_summary(left, right)
    none = mlstm_summary(*arrays(rng, B, 0)[1:])
    for part, value in zip(none, (0, 0, -np.inf, 0), strict=True):
        np.testing.assert_array_equal(part, np.full(part.shape, value))
    assert_same_summary(combine_mlstm_summaries(x, none), x)
    assert_same_summary(combine_mlstm_summaries(none, x), x)


@pytest.mark.parametrize("kind", KINDS)
def test_summaries_are_those_of_their_steps(kind):
    """The summary of joined steps, and a state followed by steps."""
    rng = np.random.default_rng(5)
    whole = arrays(rng, B, 11, kind=kind)
    parts = [mlstm_summary(*x[1:]) for x in zip(*(cut(x, [0, 4, 9], 1) for x in whole), strict=True)]
    assert_same_summary(reduce(combine_mlstm_summaries, parts), mlstm_summary(*whole[1:]))
    initial = state(rng)
    after = combine_mlstm_summaries(MLSTMSummary(*initial, np.full((B, N), -np.inf)), mlstm_summary(*whole[1:]))
    _, last = reference.mlstm(*whole, initial_state=initial, return_state=True)
    assert_same_summary(after, MLSTMSummary(*last, np.full((B, N), -np.inf)))


def test_no_steps_pass_everything_on():
    """Gradients too, where the initial state is empty and has no weight in a combination."""
    rng = np.random.default_rng(8)
    shards = [[x, x] for x in arrays(rng, B, 0)]
    initial, dstate = state(rng)._replace(m=np.full((B, N), -np.inf)), state(rng)
    _, last = sharded_with_state(*shards, initial_state=initial)
    gradients = reference.mlstm_sharded_backward(*shards, initial_state=initial, dh=shards[2], dstate=dstate)
    for got, expected in ((last, initial), (gradients["initial_state"], dstate)):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)


def test_refusals():
    rng = np.random.default_rng(6)
    q, k, v, i, f = ([x] for x in arrays(rng, B, 5))
    refused = {
        "mlstm_sharded: `k` is a list of 2 shards; expected 1 to match `q`": (q, k * 2, v, i, f),
        "mlstm_sharded: `q` is a list of 0 shards; expected at least one": ([], [], [], [], []),
        "mlstm_sharded: `k[1]` is f64[2,4,2,3]; expected [B=2, S=5, N=2, K=3] to match `q[1]`": (
            (q * 2, [*k, k[0][:, 1:]], v * 2, i * 2, f * 2)
        ),
        "mlstm_sharded: `q[1]` is f64[1,5,2,3]; expected [B=2, S, N=2, K=3] to match `q[0]`": (
            [*part, part[0][:1]] for part in (q, k, v, i, f)
        ),
    }
    for message, shards in refused.items():
        with pytest.raises(ValueError) as error:
            reference.mlstm_sharded(*shards)
        assert str(error.value) == message
    with pytest.raises(TypeError, match=r"mlstm_sharded: `q` is f64\[2,5,2,3\]; expected a list with an array"):
        reference.mlstm_sharded(q[0], k, v, i, f)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"mlstm_sharded: `cu_seqlens` is an array that ends at 7; expected T=10"):
        packed = ([part[0][0]] * 2 for part in (q, k, v, i, f))
        reference.mlstm_sharded(*packed, cu_seqlens=np.array([0, 7]))
    with pytest.raises(ValueError, match=r"mlstm_summary: `v` is f64\[2,4,2,4\]; expected \[B=2, S=5, N=2, V\]"):
        mlstm_summary(k[0], v[0][:, 1:], i[0], f[0])
    one, other = (mlstm_summary(*arrays(rng, batch, 5)[1:]) for batch in (2, 1))
    with pytest.raises(ValueError, match=r"combine_mlstm_summaries: `later\.C` is f64\[1,2,3,4\]; expected \[B=2, N=2"):
        combine_mlstm_summaries(one, other)
    with pytest.raises(TypeError, match="mlstm_sharded: `return_state` is 1; expected True or False"):
        reference.mlstm_sharded(q, k, v, i, f, return_state=1)  # pyright: ignore[reportArgumentType, reportCallIssue]
