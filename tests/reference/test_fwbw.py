"""The fwbw interface of the spec: the same function as the mLSTM's, and contexts that keep what they are told to."""

from dataclasses import fields

import numpy as np
import pytest

import reference
from reference import MLSTMState
from tests.reference.numeric import assert_gradient, mlstm_with_given_m, stabiliser

KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")


def inputs(rng, B=2, T=9, K=4, V=3):
    q, k = rng.normal(size=(2, B, T, K))
    v = rng.normal(size=(B, T, V))
    i, f = 2 * rng.normal(size=(2, B, T))
    state = (rng.normal(size=(B, K, V)), rng.normal(size=(B, K)), rng.normal(size=B))
    return (q, k, v, i, f), state


@pytest.mark.parametrize(("T", "chunk_size"), [(0, None), (1, 5), (8, 8), (20, None), (20, 8), (20, 1), (5, 512)])
def test_is_the_mlstm(T, chunk_size):
    rng = np.random.default_rng(T)
    arrays, state = inputs(rng, T=T)
    config = dict(chunk_size=chunk_size, return_state=True, use_initial_state=True, stabilize_correctly=True)
    (h, last), ctx = reference.fwbw_forward(*arrays, config, *state)
    with_head = [np.expand_dims(x, 2) for x in arrays]
    expected, its_last = reference.mlstm(
        *with_head, initial_state=MLSTMState(*(part[:, None] for part in state)), return_state=True
    )
    np.testing.assert_allclose(h, expected[:, :, 0], rtol=1e-11, atol=1e-12)
    for part, its in zip(last, its_last, strict=True):
        np.testing.assert_allclose(part, its[:, 0], rtol=1e-11, atol=1e-12)
    dh, *dlast = (rng.normal(size=x.shape) for x in (h, *last))
    got = reference.fwbw_backward(ctx, dh, config, *dlast)
    grads = reference.mlstm_backward(
        *with_head,
        initial_state=MLSTMState(*(part[:, None] for part in state)),
        dh=dh[:, :, None],
        dstate=MLSTMState(*(part[:, None] for part in dlast)),
    )
    dinitial = grads.pop("initial_state")
    expected = [*(g[:, :, 0] for g in grads.values()), *(part[:, 0] for part in dinitial)]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("chunk_size", [1, 4, 64])
def test_floor_of_one(chunk_size):
    """`stabilize_correctly=False`: the floor is 1 beside m as defined, and m a constant in the gradient."""
    rng = np.random.default_rng(7)
    arrays, _ = inputs(rng, T=11)
    q, k, v, i, f = (np.expand_dims(x, 2) for x in arrays)
    zero = np.zeros((2, 1))
    m = stabiliser(i, f, zero)
    state = (np.zeros((2, 1, 4, 3)), np.zeros((2, 1, 4)), zero)

    def frozen(q, k, v, i, f):
        return mlstm_with_given_m(q, k, v, i, f, *state, m, floor=1.0)[:1]

    h, ctx = reference.fwbw_forward(*arrays, dict(chunk_size=chunk_size))
    expected = frozen(q, k, v, i, f)[0][:, :, 0]
    np.testing.assert_allclose(h, expected, rtol=1e-11, atol=1e-12)
    dh = rng.normal(size=h.shape)
    got = reference.fwbw_backward(ctx, dh, dict(chunk_size=chunk_size))
    assert got[5:] == (None, None, None)
    gradients = dict(zip("qkvif", (np.expand_dims(g, 2) for g in got), strict=False))
    assert_gradient(frozen, dict(q=q, k=k, v=v, i=i, f=f), gradients, [dh[:, :, None]], rng)


@pytest.mark.parametrize("kept", [(), *((name,) for name in KEEPS), KEEPS])
def test_keeps_what_it_is_told_to_and_changes_no_value(kept):
    rng = np.random.default_rng(9)
    arrays, state = inputs(rng, T=11)
    config = dict(chunk_size=4, use_initial_state=True, **{name: name in kept for name in KEEPS})
    h, ctx = reference.fwbw_forward(*arrays, config, *state)
    sizes = {"G": [(2, 4, 4), (2, 4, 4), (2, 3, 3)], "M": [(2, 4), (2, 4), (2, 3)]}
    for field in fields(ctx):
        if f"keep_{field.name}" in KEEPS:
            pieces = getattr(ctx, field.name)
            assert (pieces is not None) == (f"keep_{field.name}" in kept)
            if pieces is not None:
                assert len(pieces) == 3
                assert [p.shape for p in pieces] == sizes[field.name] if field.name in sizes else True
    plain = dict(config, **dict.fromkeys(KEEPS, False))
    plain_h, plain_ctx = reference.fwbw_forward(*arrays, plain, *state)
    np.testing.assert_array_equal(h, plain_h)
    dh = rng.normal(size=h.shape)
    for one, other in zip(
        reference.fwbw_backward(ctx, dh, config), reference.fwbw_backward(plain_ctx, dh, plain), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_kept_pieces_are_used():
    """Whatever is kept replaces its computation: a context with doubled scores gives other gradients."""
    rng = np.random.default_rng(10)
    arrays, _ = inputs(rng)
    config = dict(chunk_size=4, **dict.fromkeys(KEEPS, True))
    h, ctx = reference.fwbw_forward(*arrays, config)
    dh = rng.normal(size=h.shape)
    right = reference.fwbw_backward(ctx, dh, config)
    for name in ("G", "gates", "M", "c"):
        bent = [type(p)(*(2 * x for x in p)) if isinstance(p, tuple) else 2 * p for p in getattr(ctx, name)]
        wrong = reference.fwbw_backward(type(ctx)(**{**vars(ctx), name: bent}), dh, config)
        assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(wrong[:5], right[:5], strict=True)), name
