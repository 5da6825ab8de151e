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


@pytest.mark.parametrize("T", [0, 1, 5, 8, 20])
@pytest.mark.parametrize("chunk_size", [None, 1, 5, 8, 512])
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


def test_gates_with_a_trailing_axis_and_the_layer():
    rng = np.random.default_rng(11)
    (q, k, v, i, f), state = inputs(rng)
    layer = reference.mLSTMBackendFwbw(dict(chunk_size=4, use_initial_state=True))
    assert layer.can_vmap_over_heads
    assert layer.config_class is reference.mLSTMBackendFwbwConfig
    h, last = layer(q, k, v, i[..., None], f[..., None], *state, return_last_states=True)
    np.testing.assert_array_equal(h, layer(q, k, v, i, f, *state))
    assert [part.shape for part in last] == [(2, 4, 3), (2, 4), (2,)]
    backward = reference.mlstm_fwbw_custom_grad(dict(chunk_size=4)).backward
    grads = backward(q, k, v, i[..., None], f[..., None], dh=np.ones_like(v))
    assert grads[3].shape == grads[4].shape == (*i.shape, 1)
    mixed = backward(q, k, v, i, f[..., None], dh=np.ones_like(v))
    np.testing.assert_array_equal(mixed[3], grads[3][..., 0])
    np.testing.assert_array_equal(mixed[4], grads[4])


def test_config_takes_over_what_a_model_says():
    class Model:
        chunk_size = 32
        return_state = True
        embedding_dim = 64

    config = reference.mLSTMBackendFwbwConfig()
    config.assign_model_config_params(Model())
    assert (config.chunk_size, config.return_state, config.keep_gates) == (32, True, True)


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        # Five steps are two chunks of 3 as they are two of 4.
        (dict(chunk_size=3, keep_c=True), dict(chunk_size=4, keep_c=True), "chunk_size=3; expected chunk_size=4"),
        (dict(keep_G=True), {}, "keep_G=True; expected keep_G=False"),
        ({}, dict(use_initial_state=True), "use_initial_state=False; expected use_initial_state=True"),
        ({}, dict(stabilize_correctly=True), "stabilize_correctly=False; expected stabilize_correctly=True"),
    ],
)
def test_a_context_of_another_configuration_is_refused(made, given, message):
    (q, k, v, i, f), _ = inputs(np.random.default_rng(12))
    _, ctx = reference.fwbw_forward(q, k, v, i, f, made)
    with pytest.raises(ValueError, match=f"^fwbw_backward: `ctx` is made with {message} to match `config`$"):
        reference.fwbw_backward(ctx, np.ones_like(v), given)
    assert reference.fwbw_backward(ctx, np.ones_like(v), {**made, "return_state": True})[0].shape == q.shape


@pytest.mark.parametrize(("ctx", "got"), [(None, "None"), ((1, 2), "a tuple"), (np.ones(2), r"f64\[2\]")])
def test_what_is_no_context_is_refused(ctx, got):
    with pytest.raises(TypeError, match=f"^fwbw_backward: `ctx` is {got}; expected the context that this package's"):
        reference.fwbw_backward(ctx, np.ones((1, 2, 3)), {})


def test_a_configuration_is_read_when_a_function_is_made_of_it():
    (q, k, v, i, f), _ = inputs(np.random.default_rng(13))
    config = reference.mLSTMBackendFwbwConfig(chunk_size=4, keep_c=True)
    function = reference.mlstm_fwbw_custom_grad(config)
    _, ctx = reference.fwbw_forward(q, k, v, i, f, config)
    h, config.chunk_size = function(q, k, v, i, f), -5
    np.testing.assert_array_equal(function(q, k, v, i, f), h)
    assert ctx.config.chunk_size == 4
