"""GRU: the products and steps that are computed, strides, and products by oneDNN."""

import pytest
import torch

from tests.torch.loops import cotangents, gradients, gru_arguments, relative_error
from torch_impl import _products, gru

ONE = (1,) * 6


def run(arrays, **options):
    return list(gru(*arrays[:6], *arrays[6:], **options))


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
        assert len(torch.ops.gatespec.gru_forward(*arrays, None, None, None, None, False, "torch", keep)) == 2 + len(
            keep
        )


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


@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("H", [65, 127])
def test_a_gradient_that_is_carried_far_is_as_accurate_as_that_of_a_loop(H, reset_after):
    """Where a gate remembers, the gradient that is carried is far larger than each step's terms."""
    torch.manual_seed(0)
    S, scale = 130, 1 / H**0.5
    x, xf, xr = (torch.randn(1, S, 1, H, dtype=torch.float64) for _ in range(3))
    weights = [torch.randn(1, H, H, dtype=torch.float64) * scale for _ in range(3)]
    state = torch.randn(1, 1, H, dtype=torch.float64)
    arrays = [x, weights[0], xf + 8, weights[1], xr, weights[2], state]
    arrays = [each.float().double() for each in arrays]
    dlast = torch.full((1, 1, H), 1e6, dtype=torch.float64)

    def of_state(function, dtype):
        given = [each.to(dtype).requires_grad_() for each in arrays]
        (found,) = torch.autograd.grad(function(*given), given[-1], dlast.to(dtype))
        return found.double()

    def loop(x, W, xf, Wf, xr, Wr, h):
        for t in range(S):
            f, r = (torch.sigmoid(h @ weight + gate[:, t]) for weight, gate in ((Wf, xf), (Wr, xr)))
            z = torch.tanh(r * (h @ W) + x[:, t] if reset_after else (r * h) @ W + x[:, t])
            h = f * h + (1 - f) * z
        return h

    exact = of_state(loop, torch.float64)
    ours, theirs = (
        ((of_state(function, torch.float32) - exact) / exact).abs().max()
        for function in (lambda *given: gru(*given, reset_after=reset_after)[1], loop)
    )
    assert ours <= 2 * theirs
