"""Arrays without elements: every size that may be 0 is, with values and gradients as in the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from reference.arguments import MLSTMState
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, normal, pull_back

TOLERANCE = 1e-5


def sizes(zero: str, **others: int) -> list[int]:
    """The sizes by letter, of which those in ``zero`` are 0."""
    return [0 if letter in zero else other for letter, other in others.items()]


def mapped_over_nothing(function, arguments):
    """Shapes of value and gradients of ``function``, mapped over an axis of size 0 and compiled, without that axis."""

    def both(*arguments):
        result, vjp = jax.vjp(function, *arguments)
        return result, vjp(result)

    none = jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), arguments)
    found = jax.tree.leaves(jax.jit(jax.vmap(both))(*none))
    assert {x.shape[0] for x in found} == {0}
    return [x.shape[1:] for x in found]


def check(function, arguments, expected, gradients_of):
    """Value and gradients, compiled, and the same shapes when mapped over an axis of size 0."""
    cotangents = like(np.random.default_rng(1), jax.eval_shape(function, *arguments))
    gradients = gradients_of(cotangents)
    result, got = jax.jit(functools.partial(pull_back, function))(arguments, cotangents)
    assert_close(result, expected, TOLERANCE)
    assert_close(got, gradients, TOLERANCE)
    shapes = [np.shape(x) for x in jax.tree.leaves((expected, gradients))]
    assert mapped_over_nothing(function, arguments) == shapes


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("zero", ["B", "S", "N", "V", "BN", "NV", "BSNV"])
def test_mlstm(zero, packed):
    rng, (B, S, N, V) = np.random.default_rng(0), sizes(zero, B=2, S=3, N=2, V=4)
    tokens = (B * S,) if packed else (B, S)
    arrays = mlstm_inputs(rng, *tokens, N=N, K=5, V=V, dtype=np.float32)
    state = MLSTMState(*mlstm_state(rng, B, N, K=5, V=V, dtype=np.float32))
    options = {"cu_seqlens": np.arange(B + 1) * S} if packed else {}

    def call(*x):
        return jax_impl.mlstm(*x[:5], initial_state=x[5], return_state=True, **options)

    def gradients_of(cotangents):
        dh, dstate = jax.tree.map(np.asarray, cotangents)
        found = reference.mlstm_backward(*arrays, initial_state=state, dh=dh, dstate=dstate, **options)
        return tuple(found.values())

    expected = reference.mlstm(*arrays, initial_state=state, return_state=True, **options)
    check(call, (*arrays, state), expected, gradients_of)
    without_state = jax_impl.mlstm(*arrays, **options)
    assert_close(without_state, reference.mlstm(*arrays, **options), TOLERANCE)
    got = pull_back(lambda *x: jax_impl.mlstm(*x, **options), arrays, like(rng, without_state))[1]
    assert [x.shape for x in got] == [x.shape for x in arrays]


@pytest.mark.parametrize("zero", ["B", "N", "V", "BNV"])
def test_mlstm_step(zero):
    rng, (B, N, V) = np.random.default_rng(0), sizes(zero, B=2, N=2, V=4)
    arrays = mlstm_inputs(rng, B, N=N, K=5, V=V, dtype=np.float32)
    state = MLSTMState(*mlstm_state(rng, B, N, K=5, V=V, dtype=np.float32))

    def gradients_of(cotangents):
        dh, dstate = jax.tree.map(np.asarray, cotangents)
        return tuple(reference.mlstm_step_backward(*arrays, state, dh=dh, dstate=dstate).values())

    check(jax_impl.mlstm_step, (*arrays, state), reference.mlstm_step(*arrays, state), gradients_of)


@pytest.mark.parametrize("keep", [False, True], ids=["recomputed", "kept"])
@pytest.mark.parametrize("zero", ["B", "T", "V", "BTV"])
def test_fwbw(zero, keep):
    rng, (B, T, V) = np.random.default_rng(0), sizes(zero, B=2, T=3, V=4)
    q, k, v, i, f = (x[:, :, 0] for x in mlstm_inputs(rng, B, T, N=1, K=5, V=V, dtype=np.float32))
    state = mlstm_state(rng, B, K=5, V=V, dtype=np.float32)
    kept = dict.fromkeys(("keep_G", "keep_gates", "keep_M", "keep_c"), keep)
    config = {"chunk_size": 2, "return_state": True, "use_initial_state": True, **kept}
    arguments = (q, k, v, i, f, *state)

    def gradients_of(cotangents):
        dh, dstate = jax.tree.map(np.asarray, cotangents)
        context = reference.fwbw_forward(*arguments[:5], config, *state)[1]
        expected = reference.fwbw_backward(context, dh, config, *dstate)
        own = jax_impl.fwbw_forward(*arguments[:5], config, *state)[1]
        assert_close(jax_impl.fwbw_backward(own, dh, config, *dstate), expected, TOLERANCE)
        return expected

    expected = reference.mlstm_fwbw_custom_grad(config)(*arguments)
    check(jax_impl.mlstm_fwbw_custom_grad(config), arguments, expected, gradients_of)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("zero", ["B", "S", "H", "BS", "BSH"])
def test_gru(zero, packed):
    rng, (B, S, H) = np.random.default_rng(0), sizes(zero, B=2, S=3, H=4)
    tokens = (B * S,) if packed else (B, S)
    shapes = [shape for Nx, Nw in ((2, 1), (1, 2), (2, 2)) for shape in ((*tokens, Nx, H), (Nw, H, H))]
    arguments = [normal(rng, *shape, dtype=np.float32) for shape in (*shapes, (B, 2, H))]
    options = {"gradient_clipping": 0.5, **({"cu_seqlens": np.arange(B + 1) * S} if packed else {})}

    def gradients_of(cotangents):
        dy, dstate = jax.tree.map(np.asarray, cotangents)
        return tuple(reference.gru_backward(*arguments, dy=dy, dstate=dstate, **options).values())

    call = functools.partial(jax_impl.gru, **options)
    check(call, arguments, reference.gru(*arguments, **options), gradients_of)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)], ids=str)
@pytest.mark.parametrize("name", ["rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix"])
def test_scans_and_decay(name, shape):
    count, last = (2, (1,)) if name == "dtilde_matrix" else (1, ())
    arguments = tuple(normal(np.random.default_rng(at), *shape, *last, dtype=np.float32) for at in range(count))
    cotangent = {"causal_forget_matrix": "dF", "dtilde_matrix": "dD"}.get(name, "dy")

    def gradients_of(d):
        return tuple(getattr(reference, f"{name}_backward")(*arguments, **{cotangent: np.asarray(d)}).values())

    check(getattr(jax_impl, name), arguments, getattr(reference, name)(*arguments), gradients_of)


@pytest.mark.parametrize("package", [jax_impl, reference], ids=lambda package: package.__name__)
@pytest.mark.parametrize(
    ("zero", "message"),
    [
        ("K", "mlstm: `q` is f32[2,3,2,0]; expected a head dim K of at least 1"),
        ("Nx", "gru: `input` is f32[2,3,0,4]; expected Nx of at least 1"),
        ("Nw", "gru: `weight` is f32[0,4,4]; expected Nw of at least 1"),
    ],
)
def test_sizes_that_may_not_be_0(package, zero, message):
    with pytest.raises(ValueError) as caught:
        if zero == "K":
            package.mlstm(*mlstm_inputs(np.random.default_rng(0), 2, 3, N=2, K=0, V=4, dtype=np.float32))
        else:
            x, W = np.ones((2, 3, 0 if zero == "Nx" else 2, 4), "f4"), np.ones((0 if zero == "Nw" else 1, 4, 4), "f4")
            package.gru(x, W, x, W, x, W)
    assert str(caught.value) == message
