"""GRU against a loop under autograd: values, gradients, grouping, clipping, packing, dtypes."""

import pytest
import torch

import reference
from tests.torch.loops import cotangents, gradients, gru_arguments, gru_loop, like, packed_loop, relative_error
from torch_impl import _products, gru

ONE = (1,) * 6
HEADS = [ONE, (3,) * 6, (4, 2, 1, 4, 2, 1), (1, 6, 2, 3, 6, 1), (2, 1, 2, 1, 4, 2), (1, 1, 1, 1, 1, 5)]


def run(arrays, **options):
    return list(gru(*arrays[:6], *arrays[6:], **options))


def loop(arrays, clip=None):
    return list(gru_loop(*arrays[:6], arrays[6] if len(arrays) > 6 else None, clip))


@pytest.mark.parametrize("final", [True, False], ids=["final", "output"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("S", (0, 1, 5, 63, 64, 65, 200))
def test_gradients(S, with_state, final):
    arrays = gru_arguments(2, S, 5, (3, 1, 3, 3, 1, 3), seed=S, with_state=with_state)
    for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        ours = like(arrays, dtype)
        rounded = like(ours, torch.float64)
        outputs, expected = run(ours), loop(rounded)
        count = 2 if final else 1
        upstream = cotangents(outputs[:count])
        for x, y in zip(outputs, expected, strict=True):
            assert relative_error(x, y) < bound
        got = gradients(outputs[:count], ours, upstream)
        want = gradients(expected[:count], rounded, [d.double() for d in upstream])
        for x, y in zip(got, want, strict=True):
            assert x.dtype == dtype and relative_error(x, y) < bound


def test_gradients_of_a_wide_head():
    """So many multiplications that oneDNN does them."""
    arrays = gru_arguments(16, 20, 256, ONE, with_state=True)
    with torch.no_grad():
        for weight in arrays[1:6:2]:
            weight *= 256**-0.5
    ours = like(arrays, torch.float32)
    rounded = like(ours, torch.float64)
    outputs, expected = run(ours, gradient_clipping=2.0), loop(rounded, 2.0)
    upstream = cotangents(outputs)
    want = gradients(expected, rounded, [d.double() for d in upstream])
    for x, y in zip([*outputs, *gradients(outputs, ours, upstream)], [*expected, *want], strict=True):
        assert relative_error(x, y) < 1e-4


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_every_head_count(heads, clip):
    arrays = gru_arguments(3, 9, 4, heads, with_state=True)
    outputs, expected = run(arrays, gradient_clipping=clip), loop(arrays, clip)
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-12
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("clip", [0.0, 0.05, -0.05, 1e9])
@pytest.mark.parametrize("S", [0, 1, 7])
def test_clipping(clip, S):
    arrays = gru_arguments(2, S, 4, ONE, with_state=True)
    outputs, expected = run(arrays, gradient_clipping=clip), loop(arrays, abs(clip))
    upstream = [10 * d for d in cotangents(outputs)]
    unclipped = gradients(run(arrays), arrays, upstream)
    got = gradients(outputs, arrays, upstream)
    for x, y in zip(got, gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11
    if S and abs(clip) < 1:
        assert relative_error(got[1], unclipped[1]) > 1e-3


PACKINGS = [[0, 3, 3, 17, 40], [0, 0, 5, 5, 10, 40, 40], [0, 40], [0, 1, 2, 3, 40], [0, 20, 40]]


@pytest.mark.parametrize("heads", [ONE, (4, 2, 1, 4, 2, 1)], ids=str)
@pytest.mark.parametrize("bounds", PACKINGS, ids=str)
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
def test_packed_is_looped(bounds, heads, with_state):
    arrays = gru_arguments(len(bounds) - 1, 40, 3, heads, with_state=with_state, packed=True)
    state = arrays[6:] or None
    outputs = gru(*arrays[:6], *(state or [None]), 0.2, torch.tensor(bounds, dtype=torch.int32))
    expected = packed_loop(gru_loop, arrays[:6], (True, False) * 3, state, bounds, 0.2)
    # The loop clips what reaches an empty sequence's state no more than ours does.
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-12
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("bounds", [[0], [0, 0], [0, 0, 0]], ids=str)
def test_packed_without_tokens(bounds):
    arrays = gru_arguments(len(bounds) - 1, 0, 3, (2,) * 6, with_state=True, packed=True)
    output, state = gru(*arrays[:6], arrays[6], 0.1, torch.tensor(bounds))
    upstream = cotangents([output, state])
    assert output.shape == (0, 2, 3) and torch.equal(state, arrays[6])
    assert torch.equal(gradients([output, state], arrays, upstream)[6], upstream[1])


def test_packing_costs_no_idle_step(monkeypatch):
    """A step holds as many sequences as still run."""
    from torch_impl._gru import composed

    widths = []
    real = composed.torch.lerp

    def lerp(start, *args, **kwargs):
        widths.append(start.shape[1])
        return real(start, *args, **kwargs)

    monkeypatch.setattr(composed.torch, "lerp", lerp)
    arrays = [x.detach() for x in gru_arguments(4, 9, 3, ONE, packed=True)]
    gru(*arrays, cu_seqlens=torch.tensor([0, 1, 1, 7, 9]))
    assert widths == [3, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(("B", "S"), [(0, 5), (2, 0), (0, 0)])
def test_empty(B, S):
    arrays = gru_arguments(B, S, 3, (2,) * 6, with_state=True)
    outputs = run(arrays)
    assert [tuple(x.shape) for x in outputs] == [(B, S, 2, 3), (B, 2, 3)]
    for x in gradients(outputs, arrays, cotangents(outputs)):
        assert torch.isfinite(x).all()


def test_agrees_with_the_reference():
    arrays = gru_arguments(2, 12, 4, (4, 2, 1, 4, 2, 1), with_state=True)
    numbers = [x.detach().numpy() for x in arrays]
    outputs = run(arrays, gradient_clipping=0.2)
    upstream = cotangents(outputs)
    for x, y in zip(outputs, reference.gru(*numbers), strict=True):
        assert relative_error(x, torch.from_numpy(y)) < 1e-12
    expected = reference.gru_backward(*numbers, 0.2, dy=upstream[0].numpy(), dstate=upstream[1].numpy())
    for x, y in zip(gradients(outputs, arrays, upstream), expected.values(), strict=True):
        assert relative_error(x, torch.from_numpy(y)) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_values_around_a_float32_state(dtype):
    arrays = gru_arguments(2, 100, 8, (2,) * 6, with_state=True)
    ours = like(arrays[:6], dtype) + like(arrays[6:], torch.float32)
    rounded = like(ours, torch.float64)
    outputs, expected = run(ours), loop(rounded)
    assert [x.dtype for x in outputs] == [dtype, torch.float32]
    assert relative_error(outputs[1], expected[1]) < 1e-5
    upstream = cotangents(outputs)
    got, want = gradients(outputs, ours, upstream), gradients(expected, rounded, [d.double() for d in upstream])
    for x, y in zip([*outputs, *got], [*expected, *want], strict=True):
        assert relative_error(x, y) < max(0.6 * torch.finfo(x.dtype).eps, 2e-5)
    assert [x.dtype for x in got] == [x.dtype for x in ours]


def test_saturated_gates():
    arrays = gru_arguments(2, 10, 3, ONE, with_state=True)
    with torch.no_grad():
        for x, scale in zip(arrays[:6:2], (1e4, -1e4, 1e4), strict=True):
            x *= scale
    outputs, expected = run(arrays), loop(arrays)
    upstream = cotangents(outputs)
    got, want = gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream)
    for x, y in zip([*outputs, *got], [*expected, *want], strict=True):
        assert torch.isfinite(x).all() and relative_error(x, y, scale=1.0) < 1e-11


def test_strides_change_no_value():
    arrays = gru_arguments(3, 8, 4, (2,) * 6, with_state=True)
    other = [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in arrays]
    outputs, expected = run(other), run(arrays)
    upstream = cotangents(outputs)
    broadcast = [upstream[0][:1, :1].expand_as(upstream[0]), upstream[1]]
    for d in (upstream, broadcast):
        got, want = (gradients(run(x), x, d) for x in (other, arrays))
        for x, y in zip([*outputs, *got], [*expected, *want], strict=True):
            assert relative_error(x, y) < 1e-13


@pytest.mark.parametrize("S", [0, 1, 9])
def test_neither_mutates_nor_aliases(S):
    arrays = gru_arguments(2, S, 4, (2,) * 6, with_state=True)
    before = [x.detach().clone() for x in arrays]
    for needs_grad in (True, False):
        ours = arrays if needs_grad else [x.detach() for x in arrays]
        outputs = run(ours, gradient_clipping=0.1)
        if needs_grad:
            upstream = cotangents(outputs)
            copies = [d.clone() for d in upstream]
            outputs = outputs + gradients(outputs, ours, upstream)
            assert all(torch.equal(x, y) for x, y in zip(upstream, copies, strict=True))
        storages = [x.untyped_storage().data_ptr() for x in (*outputs, *ours) if x.numel()]
        assert len(set(storages)) == len(storages)
        assert all(torch.equal(x, y) for x, y in zip(ours, before, strict=True))


def test_weight_gradients_are_one_product(monkeypatch):
    """The backward pass multiplies twice a step and twice after the loop, whatever the number of steps."""
    from torch_impl._gru import api

    calls = []
    real = torch.bmm

    def bmm(*args, **kwargs):
        calls.append(args[0].shape)
        return real(*args, **kwargs)

    arrays = gru_arguments(2, 30, 4, (2,) * 6)
    outputs = run(arrays)
    monkeypatch.setattr(api.torch, "bmm", bmm)
    gradients(outputs, arrays, cotangents(outputs))
    assert len([shape for shape in calls if shape[-1] == 60]) == 2


def test_what_is_kept_only_for_a_gradient():
    arrays = [x.detach() for x in gru_arguments(2, 5, 4, (2,) * 6)]
    for keep in ((), ("rf",), ("z", "rf", "states")):
        assert len(torch.ops.gatespec.gru_forward(*arrays, None, None, None, "torch", keep)) == 2 + len(keep)


def test_onednn_is_left_alone_where_it_is_turned_off():
    weight = torch.ones(1, 256, 512)
    assert _products.packed(weight, 16, 256) is not None
    torch._C._set_mkldnn_enabled(False)
    try:
        assert _products.packed(weight, 16, 256) is None
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize("shape", [(1, 4096, 96, 96), (1, 4001, 96, 100), (3, 2050, 64, 128), (2, 100, 8, 8)])
def test_a_large_sum_of_products_is_exact(shape):
    torch.manual_seed(0)
    N, R, inner, outer = shape
    x, y = torch.randn(N, R, 2 * inner)[..., :inner], torch.randn(N, R, 2 * outer)[..., outer:]
    expected = x.double().mT @ y.double()
    # R roundings of either sign.
    assert relative_error(_products.summed(x, y).double(), expected) < R**0.5 * torch.finfo(x.dtype).eps
