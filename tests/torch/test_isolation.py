"""A sequence and head whose stabiliser is large or infinite changes no bit of another's results or gradients."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_impl

LENGTHS = (92, 150, 1, 56, 130)
N, K, V = 2, 8, 6


def _spoiled(name: str, value: float, i: Tensor, m: Tensor, step: int | tuple[int, ...], sequence: int) -> None:
    if name == "i":
        i[step] = value
    else:
        m[sequence] = value


def _call(packed: bool, which: tuple[str, float] | None, spoiled: int) -> list[Tensor]:
    """Results and gradients of the other sequences."""
    torch.manual_seed(1)
    B = len(LENGTHS)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    front = (sum(LENGTHS),) if packed else (B, 100)
    shapes = [(*front, N, K), (*front, N, K), (*front, N, V), (*front, N), (*front, N), (B, N, K, V), (B, N, K), (B, N)]
    x = [torch.randn(shape) * (3 if shape == (*front, N) else 1) for shape in shapes]
    if which is not None:
        _spoiled(*which, x[3], x[7], int(ends[spoiled]) if packed else (spoiled, 50), spoiled)
    x = [part.requires_grad_() for part in x]
    options: dict[str, Any] = {"cu_seqlens": ends} if packed else {}
    initial = torch_impl.MLSTMState(x[5], x[6], x[7])
    h, state = torch_impl.mlstm(*x[:5], initial_state=initial, return_state=True, **options)
    outputs = [h, *state]
    gradients = torch.autograd.grad(outputs, x, [torch.randn_like(y) for y in outputs])
    others = torch.arange(B) != spoiled
    steps = others.repeat_interleave(torch.tensor(LENGTHS)) if packed else others
    return [y.detach()[steps if y.shape[: len(front)] == front else others] for y in (*outputs, *gradients)]


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("which", [("i", math.inf), ("i", 1e8), ("i", 3e3), ("m", math.inf), ("m", -1e9)], ids=str)
def test_other_sequences(packed: bool, which: tuple[str, float]) -> None:
    for spoiled in (0, 2, 4):
        for clean, found in zip(_call(packed, None, spoiled), _call(packed, which, spoiled), strict=True):
            assert torch.equal(clean, found)


@pytest.mark.parametrize("which", [("i", math.inf), ("i", 1e8), ("m", math.inf)], ids=str)
def test_other_rows_and_heads_of_a_step(which: tuple[str, float]) -> None:
    torch.manual_seed(0)
    shapes = [(3, N, K), (3, N, K), (3, N, V), (3, N), (3, N), (3, N, K, V), (3, N, K), (3, N)]
    x = [torch.randn(shape) for shape in shapes]
    spoiled = [part.clone() for part in x]
    spoiled[3 if which[0] == "i" else 7][1, 1] = which[1]
    others = torch.ones(3, N, dtype=torch.bool)
    others[1, 1] = False
    for_both = [
        torch_impl.mlstm_step(
            part[0], part[1], part[2], part[3], part[4], torch_impl.MLSTMState(part[5], part[6], part[7])
        )
        for part in (x, spoiled)
    ]
    (h, state), (found, found_state) = for_both
    for a, b in zip((h, *state), (found, *found_state), strict=True):
        assert torch.equal(a[others], b[others])
