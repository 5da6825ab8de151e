"""The layers."""

import copy
import io

import pytest
import torch

from tests.calls.layer_cases import LayerCase
from tests.torch.loops import relative_error
from torch_impl import GRU, MLSTMState, mLSTM, sLSTM

SIZES = LayerCase(1, 1, 5, 4, 6, (4, 1, 2, 1, 2, 4)).settings()


def build(**changed):
    torch.manual_seed(0)
    return GRU(**{**SIZES, **changed}).double()


def test_parameters_are_drawn_again():
    big = build(state_head_dim=64)
    before = copy.deepcopy(big.state_dict())
    big.reset_parameters()
    assert all(not torch.equal(value, before[name]) for name, value in big.state_dict().items())


def test_state_dict_round_trip():
    layer, other = build(), GRU(**SIZES).double()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    assert torch.equal(layer(x)[0], other(x)[0])


@pytest.mark.parametrize("shape", [(16, 128, 96), (2048, 96), (4, 512, 96)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_large_projection_is_the_product_it_stands_for(shape, turned):
    layer = GRU(**{**SIZES, "input_size": 96, "state_head_dim": 24, "output_size": 112}).input_projection
    x = torch.randn(*shape[:-2], shape[-1], shape[-2]).mT if turned else torch.randn(shape)
    x.requires_grad_()
    inputs = [x, layer.weight, layer.bias]
    output = layer(x)
    assert "Convolution" in found_in(output.grad_fn)
    assert output.shape == (*shape[:-1], 168) and output.is_contiguous()
    doubles = [value.detach().double().requires_grad_() for value in inputs]
    expected = torch.nn.functional.linear(*doubles)
    cotangent = torch.randn_like(output)
    got = torch.autograd.grad(output, inputs, cotangent)
    want = torch.autograd.grad(expected, doubles, cotangent.double())
    for a, b in zip((output, *got), (expected, *want), strict=True):
        assert a.dtype == torch.float32 and relative_error(a.double(), b) < 1e-5


def test_where_a_projection_is_pytorchs_own_product():
    layer = GRU(**{**SIZES, "input_size": 96, "state_head_dim": 24}).input_projection
    large = torch.randn(2048, 96)
    assert "Convolution" in found_in(layer(large).grad_fn)
    assert "Convolution" not in found_in(layer(large[:100]).grad_fn)
    assert "Convolution" not in found_in(layer(large[1:]).grad_fn)
    assert "Convolution" not in found_in(copy.deepcopy(layer).double()(large.double()).grad_fn)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(large).dtype == torch.bfloat16
    torch._C._set_mkldnn_enabled(False)
    try:
        assert "Convolution" not in found_in(layer(large).grad_fn)
    finally:
        torch._C._set_mkldnn_enabled(True)


def found_in(node):
    """The names of the operations behind a value."""
    if node is None:
        return ""
    return " ".join([node.name(), *(found_in(before) for before, _ in node.next_functions)])


def test_repr_names_what_it_is_made_of():
    text = repr(build())
    assert "num_reset_weight_heads=4" in text and "gradient_clipping=None" in text and "input_projection" in text


def test_devices_dtypes_and_copies():
    layer = GRU(**SIZES)
    assert copy.deepcopy(layer)(torch.ones(1, 2, 5))[0].dtype == torch.float32
    half = layer.to(torch.bfloat16)
    output, state = half(torch.ones(1, 2, 5, dtype=torch.bfloat16))
    assert output.dtype == torch.bfloat16 and state.dtype == torch.float32
    meta = GRU(**SIZES).to("meta")
    assert meta(torch.ones(1, 2, 5, device="meta"))[0].shape == (1, 2, 6)


def test_compile_with_a_changing_max_seqlen():
    """After the first change PyTorch traces the number as a symbol."""
    layer, x, cu_seqlens = build(), torch.randn(12, 5, dtype=torch.float64), torch.tensor([0, 5, 12])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for room in (7, 8, 12):
        (y, last), (expected, of_last) = (f(x, cu_seqlens=cu_seqlens, max_seqlen=room) for f in (compiled, layer))
        assert relative_error(y, expected) < 1e-12 and relative_error(last, of_last) < 1e-12
    torch._dynamo.reset()


def test_an_input_of_another_dtype_is_refused():
    layer = GRU(**SIZES)
    with pytest.raises(TypeError, match=r"^GRU: `input` is f64\[2,3,5\]; expected float32, the parameters' dtype$"):
        layer(torch.ones(2, 3, 5, dtype=torch.float64))


def test_an_mlstm_in_16_bits():
    """Products in 16 bits, states in float32; under autocast the norm's weight keeps its dtype."""
    torch.manual_seed(0)
    layer, x = mLSTM(32, 4, add_bias=True), torch.randn(2, 9, 32)
    torch.nn.init.normal_(layer.igate_preact.weight)
    exact, _ = copy.deepcopy(layer).double()(x.double())
    low, state = copy.deepcopy(layer).bfloat16()(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        mixed, carried = layer(x)
        step, _ = layer.step(x[:, 0], layer.initial_state(2))
    assert low.dtype is mixed.dtype is step.dtype is torch.bfloat16
    assert {part.dtype for part in (*state, *carried)} == {torch.float32}
    for got, expected in ((low, exact), (mixed, exact), (step, exact[:, 0])):
        assert 1e-4 < relative_error(got.double(), expected) < 3e-2


def test_an_mlstm_is_compiled_in_one_piece_and_drawn_again():
    layer, x, cu_seqlens = mLSTM(8, 2).double(), torch.randn(12, 8, dtype=torch.float64), torch.tensor([0, 5, 12])
    state = MLSTMState(*(torch.randn_like(part) for part in layer.initial_state(2)))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    (y, last), (expected, of_last) = (f(x, state, cu_seqlens) for f in (compiled, layer))
    for got, want in zip((y, *last), (expected, *of_last), strict=True):
        assert relative_error(got, want) < 1e-12
    torch._dynamo.reset()
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    drawn = {name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])}
    assert drawn == {f"{name}.weight" for name in ("q", "k", "v", "ogate_preact", "out_proj")}
    assert "qk_head_dim=2" in repr(layer) and mLSTM(8, 2, dtype=torch.float64, device="meta").q.weight.is_meta


@pytest.mark.parametrize(
    "make",
    [
        lambda **where: GRU(6, 4, 5, 2, reset_after=True, **where),
        lambda **where: sLSTM(6, 4, 5, 2, **where),
        lambda **where: mLSTM(8, 2, True, **where),
    ],
)
def test_parameters_are_made_on_a_device_and_in_a_dtype(make):
    parameters = dict(make(device="meta", dtype=torch.bfloat16).named_parameters())
    assert {(p.device.type, p.dtype) for p in parameters.values()} == {("meta", torch.bfloat16)}
    assert {(p.device.type, p.dtype) for p in make().parameters()} == {("cpu", torch.float32)}
    layer = make(dtype=torch.float64)
    x = torch.randn(2, 3, 8 if isinstance(layer, mLSTM) else 6, dtype=torch.float64)
    assert layer(x)[0].dtype is torch.float64 and dict(layer.named_parameters()).keys() == parameters.keys()
