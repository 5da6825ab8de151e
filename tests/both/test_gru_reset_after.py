"""GRU with the reset gate after the product: against `torch.nn.GRU` and the reference, and its bias."""

from functools import partial

import numpy as np
import pytest

import reference
from tests.both.tools import compare, gru_inputs

torch = pytest.importorskip("torch")
NAMES = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight", "input_state")
PARAMETERS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def torch_layer(rng, F, H):
    layer = torch.nn.GRU(F, H, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for name in PARAMETERS:
            parameter = getattr(layer, name)
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape) * H**-0.5))
    return layer


def as_gru(layer, u, h0):
    """A call of `gru` that is PyTorch's layer: the gates' recurrent biases are parts of their inputs."""
    Wr, Wf, W = (part.T[None] for part in np.split(layer.weight_hh_l0.detach().numpy(), 3))
    b_r, b_f, b = np.split(layer.bias_hh_l0.detach().numpy(), 3)
    projected = u @ layer.weight_ih_l0.detach().numpy().T + layer.bias_ih_l0.detach().numpy()
    xr, xf, x = (part[:, :, None] for part in np.split(projected, 3, axis=-1))
    return (x, W, xf + b_f, Wf, xr + b_r, Wr, h0[:, None]), b[None]


def from_gru(gradients, db, layer, u):
    """The gradients of PyTorch's layer by those of the call."""
    dx, dW, dxf, dWf, dxr, dWr, dh0 = gradients
    of_inputs = np.concatenate([dxr, dxf, dx], axis=-1)[:, :, 0]
    summed = of_inputs.sum(axis=(0, 1))
    return {
        "u": of_inputs @ layer.weight_ih_l0.detach().numpy(),
        "h0": dh0[:, 0],
        "weight_ih_l0": np.einsum("bsk,bsf->kf", of_inputs, u),
        "weight_hh_l0": np.concatenate([dWr[0].T, dWf[0].T, dW[0].T]),
        "bias_ih_l0": summed,
        "bias_hh_l0": np.concatenate([summed[: -db.shape[-1]], db[0]]),
    }


def in_torch(arrays, bias, cotangents):
    import torch_impl

    leaves = [torch.tensor(x, requires_grad=True) for x in (*arrays, bias)]
    results = torch_impl.gru(*leaves[:-1], reset_after=True, recurrent_bias=leaves[-1])
    gradients = torch.autograd.grad(results, leaves, [torch.tensor(d) for d in cotangents])
    return [y.detach().numpy() for y in results], [d.numpy() for d in gradients]


def in_jax(arrays, bias, cotangents):
    jax = pytest.importorskip("jax")
    import jax_impl

    with jax.enable_x64(True):
        results, pull = jax.vjp(
            lambda *x: jax_impl.gru(*x[:-1], reset_after=True, recurrent_bias=x[-1]),
            *map(jax.numpy.asarray, (*arrays, bias)),
        )
        return [np.asarray(y) for y in results], [
            np.asarray(d) for d in pull(tuple(map(jax.numpy.asarray, cotangents)))
        ]


def in_reference(arrays, bias, cotangents):
    options = {"reset_after": True, "recurrent_bias": bias}
    found = reference.gru_backward(*arrays, **options, dy=cotangents[0], dstate=cotangents[1])
    return list(reference.gru(*arrays, **options)), [found[name] for name in (*NAMES, "recurrent_bias")]


@pytest.mark.parametrize("run", [in_reference, in_torch, in_jax], ids=lambda run: run.__name__)
@pytest.mark.parametrize(("B", "S", "F", "H"), [(3, 9, 4, 5), (1, 1, 2, 1), (2, 70, 3, 8)])
def test_it_is_the_layer_of_pytorch(run, B, S, F, H):
    rng = np.random.default_rng(S)
    layer, u, h0 = torch_layer(rng, F, H), rng.normal(size=(B, S, F)), rng.normal(size=(B, H))
    dy, dlast = rng.normal(size=(B, S, H)), rng.normal(size=(B, H))
    leaves = {"u": torch.tensor(u, requires_grad=True), "h0": torch.tensor(h0, requires_grad=True)}
    leaves |= {name: getattr(layer, name) for name in PARAMETERS}
    y, last = layer(leaves["u"], leaves["h0"][None])
    known = torch.autograd.grad([y, last], [*leaves.values()], [torch.tensor(dy), torch.tensor(dlast)[None]])
    arrays, bias = as_gru(layer, u, h0)
    (found_y, found_last), (*gradients, db) = run(arrays, bias, (dy[:, :, None], dlast[:, None]))
    np.testing.assert_allclose(found_y[:, :, 0], y.detach().numpy(), rtol=0, atol=1e-11)
    np.testing.assert_allclose(found_last[:, 0], last[0].detach().numpy(), rtol=0, atol=1e-11)
    found = from_gru(gradients, db, layer, u)
    for name, expected in zip(leaves, known, strict=True):
        np.testing.assert_allclose(found[name], expected.numpy(), rtol=0, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("run", [in_torch, in_jax], ids=lambda run: run.__name__)
@pytest.mark.parametrize("heads", [(6, 3, 2, 1, 6, 2), (1, 2, 1, 1, 1, 4), (1,) * 6], ids=str)
@pytest.mark.parametrize(("S", "H"), [(0, 3), (35, 3), (2, 0)])
def test_grouped_heads_and_edges(run, heads, S, H):
    rng = np.random.default_rng(1)
    N, Nw = max(heads), heads[1]
    arrays = [rng.normal(size=(n, H, H) if at % 2 else (2, S, n, H)) for at, n in enumerate(heads)]
    arrays.append(rng.normal(size=(2, N, H)))
    cotangents = rng.normal(size=(2, S, N, H)), rng.normal(size=(2, N, H))
    bias = rng.normal(size=(Nw, H))
    expected, found = in_reference(arrays, bias, cotangents), run(arrays, bias, cotangents)
    for x, y in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def test_a_bias_needs_the_form_that_has_one():
    x, W = np.ones((1, 2, 1, 3)), np.ones((1, 3, 3))
    text = "gru: `recurrent_bias` is f64\\[1,3\\]; expected None where `reset_after` is False"
    with pytest.raises(ValueError, match=text):
        reference.gru(x, W, x, W, x, W, recurrent_bias=np.ones((1, 3)))
    with pytest.raises(
        ValueError, match="`recurrent_bias` is f64\\[2,3\\]; expected \\[Nw=1, H=3\\] to match `weight`"
    ):
        reference.gru(x, W, x, W, x, W, reset_after=True, recurrent_bias=np.ones((2, 3)))


def after_reference(arrays, cotangents=None, **options):
    """Output and final state of a call with a state and a bias; with their cotangents, the gradients of all arrays."""
    *arrays, bias = arrays
    options |= {"reset_after": True, "recurrent_bias": bias}
    if cotangents is None:
        return list(reference.gru(*arrays, **options))
    found = reference.gru_backward(*arrays, **options, dy=cotangents[0], dstate=cotangents[1])
    return [found[name] for name in (*NAMES, "recurrent_bias")]


def after(framework, **options):
    def call(*arrays):
        return framework.package.gru(*arrays[:-1], reset_after=True, recurrent_bias=arrays[-1], **options)

    return call


HEADS = (6, 3, 2, 1, 3, 6)


def with_bias(seed, *tokens, B, H=5):
    rng = np.random.default_rng(seed)
    arrays = gru_inputs(rng, *tokens, heads=HEADS, H=H, scale=H**-0.5)
    return [*arrays, rng.normal(size=(B, max(HEADS), H)), rng.normal(size=(HEADS[1], H))]


@pytest.mark.grid
@pytest.mark.parametrize("clipping", [None, 0.1])
@pytest.mark.parametrize("bounds", [[0, 0, 3, 20, 20, 31, 32], [0, 40], [0, 1, 2, 3, 40], [0, 0]], ids=str)
def test_packed_is_each_sequence_by_itself(framework, bounds, clipping):
    arrays, packing = with_bias(3, bounds[-1], B=len(bounds) - 1), np.array(bounds, np.int32)
    packed = after(framework, gradient_clipping=clipping, cu_seqlens=framework.array(packing, "int32"))
    compare(framework, packed, partial(after_reference, gradient_clipping=clipping, cu_seqlens=packing), arrays)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", None), ("bfloat16", 1.2 * 2.0**-8), ("float16", 1.2 * 2.0**-11)]
)
def test_dtypes(framework, dtype, tolerance):
    """No rounding inside the loop: results are as exact as one rounding allows."""
    arrays = with_bias(4, 2, 65, B=2, H=16)
    compare(framework, after(framework), after_reference, arrays, [dtype] * 6 + ["float32", dtype], tolerance)


def test_no_bias_is_one_of_zeros(framework):
    *arrays, bias = (framework.array(x, "float32") for x in with_bias(5, 2, 7, B=2))
    without = framework.package.gru(*arrays, reset_after=True)
    for x, y in zip(without, after(framework)(*arrays, 0 * bias), strict=True):
        np.testing.assert_array_equal(framework.numpy(x), framework.numpy(y))


def test_the_kernels_of_triton_take_it_and_those_of_pallas_refuse_it(framework):
    refused = {"torch_impl": False, "jax_impl": True}[framework.package.__name__]
    *arrays, bias = (framework.array(x, "float32") for x in with_bias(6, 2, 7, B=2))
    explained = framework.package.explain_backend("gru", *arrays, reset_after=True, recurrent_bias=bias)
    assert ("it takes no reset_after" in str(explained)) == refused
