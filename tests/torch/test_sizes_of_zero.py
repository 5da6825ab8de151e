"""Sizes of 0: every call returns empty arrays, or is refused by name; so does every map over an axis of size 0."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import torch_impl


def _gradients(returned: object, x: list[Tensor]) -> None:
    outputs = [y for y in tree_leaves(returned) if y.requires_grad]
    found = torch.autograd.grad(outputs, x, [torch.ones_like(y) for y in outputs], allow_unused=True)
    pairs = [(dx, part) for dx, part in zip(found, x, strict=True) if dx is not None]
    assert all(dx.shape == part.shape and dx.isfinite().all() for dx, part in pairs)


def _leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def _front(B: int, S: int, packed: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    return ((B * S,), {"cu_seqlens": torch.arange(B + 1) * S}) if packed else ((B, S), {})


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])
def test_mlstm(packed: bool, states: bool) -> None:
    for B, S, N, V in itertools.product((0, 2), (0, 3), (0, 2), (0, 2)):
        front, packing = _front(B, S, packed)
        x = _leaves((*front, N, 4), (*front, N, 4), (*front, N, V), (*front, N), (*front, N))
        if states:
            C, n, m = _leaves((B, N, 4, V), (B, N, 4), (B, N))
            h, state = torch_impl.mlstm(*x, initial_state=torch_impl.MLSTMState(C, n, m), return_state=True, **packing)
            assert h.shape == (*front, N, V)
            assert [part.shape for part in state] == [part.shape for part in (C, n, m)]
            _gradients((h, state), [*x, C, n, m])
        else:
            h = torch_impl.mlstm(*x, **packing)
            assert h.shape == (*front, N, V)
            _gradients(h, x)


def test_mlstm_step() -> None:
    for B, N, V in itertools.product((0, 2), repeat=3):
        x = _leaves((B, N, 4), (B, N, 4), (B, N, V), (B, N), (B, N), (B, N, 4, V), (B, N, 4), (B, N))
        h, state = torch_impl.mlstm_step(x[0], x[1], x[2], x[3], x[4], torch_impl.MLSTMState(x[5], x[6], x[7]))
        assert h.shape == (B, N, V)
        _gradients((h, state), x)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_gru(packed: bool) -> None:
    for B, S, H in itertools.product((0, 2), (0, 3), (0, 2)):
        front, packing = _front(B, S, packed)
        x: list[Any] = [*_leaves(*[(*front, 2, H), (2, H, H)] * 3, (B, 2, H))]
        y, h = torch_impl.gru(*x, **packing)
        assert y.shape == (*front, 2, H)
        assert h.shape == (B, 2, H)
        _gradients((y, h), x)


def test_what_has_no_value_is_refused_by_name() -> None:
    q, v, i = torch.ones(1, 3, 2, 0), torch.ones(1, 3, 2, 2), torch.ones(1, 3, 2)
    with pytest.raises(ValueError, match="expected a head dim K of at least 1"):
        torch_impl.mlstm(q, q, v, i, i)
    x, W = torch.ones(1, 3, 0, 2), torch.ones(0, 2, 2)
    with pytest.raises(ValueError, match="expected Nx of at least 1"):
        torch_impl.gru(x, W, x, W, x, W)


def _mlstm(*x: Any, **packing: Any) -> Tensor:
    return torch_impl.mlstm(*x, **packing)


def _step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *state: Tensor) -> Tensor:
    C, n, m = state
    return torch_impl.mlstm_step(q, k, v, i, f, torch_impl.MLSTMState(C, n, m))[0]


def _gru(*x: Any) -> Tensor:
    return torch_impl.gru(*x)[0]


TOKENS = [(1, 5, 2, 3)] * 3 + [(1, 5, 2)] * 2
STEP = [(1, 2, 3)] * 3 + [(1, 2)] * 2 + [(1, 2, 3, 3), (1, 2, 3), (1, 2)]
MAPPED = {
    "mlstm": (_mlstm, TOKENS),
    "mlstm_step": (_step, STEP),
    "gru": (_gru, [(1, 5, 2, 3), (2, 3, 3)] * 3),
}


@pytest.mark.parametrize("name", MAPPED)
def test_map_over_an_axis_of_size_0(name: str) -> None:
    function, shapes = MAPPED[name]
    x = [torch.zeros(0, *shape) for shape in shapes]
    every = tuple(range(len(x)))
    y = torch.func.vmap(function)(*x)
    assert y.shape[0] == 0
    assert y.shape[1:] == function(*(torch.zeros(shape) for shape in shapes)).shape
    of_mapped = torch.func.grad(lambda *x: torch.func.vmap(function)(*x).sum(), argnums=every)(*x)
    mapped = torch.func.vmap(torch.func.grad(lambda *x: function(*x).sum(), argnums=every))(*x)
    for part, *found in zip(x, of_mapped, mapped, strict=True):
        assert all(dx.shape == part.shape for dx in found)
    leaves = [part.requires_grad_() for part in x]
    _gradients(torch.func.vmap(function)(*leaves), leaves)


def test_map_over_an_axis_of_size_0_with_shared_weights() -> None:
    x: list[Any] = [torch.zeros(0, 1, 5, 2, 3), torch.ones(2, 3, 3)] * 3
    y, h = torch.func.vmap(torch_impl.gru, in_dims=(0, None) * 3)(*x)
    assert y.shape == (0, 1, 5, 2, 3)
    assert h.shape == (0, 1, 2, 3)


def test_map_over_no_packings() -> None:
    x = [torch.zeros(0, *shape[1:]) for shape in TOKENS]
    ends = torch.zeros(0, 3, dtype=torch.int64)
    h = torch.func.vmap(lambda ends, *x: _mlstm(*x, cu_seqlens=ends))(ends, *x)
    assert h.shape == (0, 5, 2, 3)
    nested = torch.func.vmap(torch.func.vmap(_mlstm))(*(torch.zeros(2, 0, *shape) for shape in TOKENS))
    assert nested.shape == (2, 0, 1, 5, 2, 3)
