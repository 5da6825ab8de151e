"""The mLSTM over shards: hard resets, shards without steps, and refusals. Laws try any cuts."""

import numpy as np
import pytest

import reference
from reference import MLSTMState, combine_mlstm_summaries, mlstm_summary

B, N, K, V = 2, 2, 3, 4


def arrays(rng, *lead):
    """q, k, v, i, f for the leading axes ``lead``."""
    q, k, v, i, f = (rng.normal(size=(*lead, *width)) for width in ((N, K), (N, K), (N, V), (N,), (N,)))
    return q, k, v, 2 * i, 2 * f


def state(rng, B=B):
    return MLSTMState(*(rng.normal(size=(B, N, *width)) for width in ((K, V), (K,), ())))


def cut(x, at, axis):
    return np.split(x, at, axis=axis)


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


def test_no_steps_pass_everything_on():
    """Gradients too, where the initial state is empty and has no weight in a combination."""
    rng = np.random.default_rng(8)
    shards = [[x, x] for x in arrays(rng, B, 0)]
    initial, dstate = state(rng)._replace(m=np.full((B, N), -np.inf)), state(rng)
    _, last = reference.mlstm_sharded(*shards, initial_state=initial, return_state=True)
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
