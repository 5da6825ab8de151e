"""Tensors of one call that lie on different devices are refused by name, before any work."""

import re

import pytest
import torch

from torch_impl import (
    dtilde_matrix,
    fwbw_backward,
    fwbw_forward,
    gru,
    mlstm,
    mlstm_step,
)


def tokens(*lead: int, N: int = 2, K: int = 3, V: int = 4) -> dict[str, torch.Tensor]:
    shapes = {"q": (N, K), "k": (N, K), "v": (N, V), "i": (N,), "f": (N,)}
    return {name: torch.zeros(*lead, *shape) for name, shape in shapes.items()}


def state(B: int = 2, N: int = 2, K: int = 3, V: int = 4) -> list[torch.Tensor]:
    return [torch.zeros(B, N, K, V), torch.zeros(B, N, K), torch.zeros(B, N)]


def refused(text: str, function, *args, **kwargs) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(text) + "$"):
        function(*args, **kwargs)


@pytest.mark.parametrize("name", ["k", "v", "i", "f"])
def test_mlstm(name) -> None:
    arrays = tokens(2, 5)
    shape = ",".join(map(str, arrays[name].shape))
    arrays[name] = arrays[name].to("meta")
    refused(f"mlstm: `{name}` is f32[{shape}] on meta; expected it on cpu to match `q`", mlstm, **arrays)


def test_states_and_packings() -> None:
    C, n, m = state()
    text = "`{}.n` is f32[2,2,3] on meta; expected it on cpu to match `q`"
    moved = C, n.to("meta"), m
    refused("mlstm: " + text.format("initial_state"), mlstm, **tokens(2, 5), initial_state=moved)
    refused("mlstm_step: " + text.format("state"), mlstm_step, **tokens(2), state=moved)
    bounds = torch.tensor([0, 2, 5])
    text = "mlstm: `cu_seqlens` is i64[3] on meta; expected it on cpu to match `q`"
    refused(text, mlstm, **tokens(5), cu_seqlens=bounds.to("meta"))


def test_a_packing_may_stay_on_the_host() -> None:
    arrays = {name: x.to("meta") for name, x in tokens(5).items()}
    assert mlstm(**arrays, cu_seqlens=torch.tensor([0, 2, 5])).shape == (5, 2, 4)


def test_gru() -> None:
    x, W = torch.zeros(2, 5, 1, 3), torch.zeros(1, 3, 3)
    refused(
        "gru: `weight` is f32[1,3,3] on meta; expected it on cpu to match `input`", gru, x, W.to("meta"), x, W, x, W
    )
    text = "gru: `input_state` is f32[2,1,3] on meta; expected it on cpu to match `input`"
    refused(text, gru, x, W, x, W, x, W, torch.zeros(2, 1, 3, device="meta"))


def test_fwbw_and_the_matrix() -> None:
    q, k, v, i, f = (x[:, :, 0] for x in tokens(2, 5).values())
    refused(
        "fwbw_forward: `f` is f32[2,5] on meta; expected it on cpu to match `q`",
        fwbw_forward,
        q,
        k,
        v,
        i,
        f.to("meta"),
        {},
    )
    h, context = fwbw_forward(q, k, v, i, f, {})
    text = "fwbw_backward: `dh` is f32[2,5,4] on meta; expected it on cpu to match `q`"
    refused(text, fwbw_backward, context, h.to("meta"), {})
    gate = torch.zeros(2, 5, 1)
    text = "dtilde_matrix: `fgate` is f32[2,5,1] on meta; expected it on cpu to match `igate`"
    refused(text, dtilde_matrix, gate, gate.to("meta"))
