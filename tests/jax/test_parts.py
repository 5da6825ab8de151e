"""The heads of a long call on a CPU are computed in parts, and axes of size 1 are left out: no value depends on it."""

import functools

import numpy as np
import pytest

from jax_impl._mlstm.arguments import Options
from jax_impl._mlstm.chunkwise import ChunkwiseOptions
from jax_impl._mlstm.head_ranges import Division, divided
from tests.both import with_jax
from tests.both.tools import compare, mlstm, mlstm_reference
from tests.jax.tools import mlstm_inputs, mlstm_state


def division(B: int, S: int, N: int, block: int = 1024, L: int = 64, one_device: bool = True) -> Division:
    arithmetic = ChunkwiseOptions(L=L, eps=0.0, stabilize_correctly=True, precision="highest")
    return divided(Options(arithmetic, True, "xla", False, block, one_device), B, S, N)


def counts(division: Division) -> tuple[int, int]:
    return len(division.forward), len(division.backward)


def test_only_long_calls_are_divided():
    assert counts(division(1, 2048, 4)) == (2, 2)
    assert counts(division(1, 500, 4)) == (1, 1)
    # A block of each part has two chunks: enough for the backward pass alone.
    assert counts(division(4, 1024, 4)) == (1, 2)
    # It has one.
    assert counts(division(16, 1024, 2)) == (1, 1)
    assert counts(division(1, 2048, 3)) == (1, 1)
    assert counts(division(1, 2048, 4, one_device=False)) == (1, 1)


@pytest.mark.parametrize(("B", "S", "N"), [(1, 2048, 4), (4, 1024, 4), (1, 5000, 1), (3, 700, 2), (2, 5, 6), (0, 9, 2)])
def test_parts_are_all_heads_once(B, S, N):
    found = division(B, S, N)
    for parts in found[1:]:
        assert [head for part in parts for head in range(part.first, part.first + part.count)] == [*range(N)]
        assert all(part.kept == tuple(size for size in (B, part.count) if size != 1) for part in parts)
    assert found.size % 64 == 0
    assert division(B, S, 0).forward[0].count == 0


def test_axes_stay_where_arrays_may_be_divided_among_devices():
    (part,) = division(1, 100, 1, one_device=False).forward
    assert part.squeezed(np.zeros((7, 1, 1, 5)), 1).shape == (7, 1, 1, 5)
    (part,) = division(1, 100, 1).forward
    assert part.squeezed(np.zeros((7, 1, 1, 5)), 1).shape == (7, 5)


@pytest.fixture
def on_one_device(monkeypatch):
    """Tests have eight devices. Blocks of 24 steps and heads make short calls long ones."""
    monkeypatch.setattr("jax_impl._mlstm.api.cpu_is_one_device", lambda: True)
    monkeypatch.setattr("jax_impl._mlstm.api.BLOCK_ON_CPU", 24)


def judge(arguments, dtype="float64"):
    compare(with_jax, mlstm(with_jax, 3, eps=0.125), functools.partial(mlstm_reference, eps=0.125), arguments, dtype)


@pytest.mark.grid
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(
    ("B", "S", "N", "parts"),
    [(1, 61, 2, (2, 2)), (1, 43, 6, (1, 2)), (2, 53, 2, (2, 2)), (1, 61, 1, (1, 1)), (3, 7, 1, (1, 1))],
)
def test_gradients_in_parts(on_one_device, B, S, N, parts, with_state):
    assert counts(division(B, S, N, block=24, L=3)) == parts
    rng = np.random.default_rng(S)
    arguments = mlstm_inputs(rng, B, S, N=N)
    judge((*arguments, *mlstm_state(rng, B, N)) if with_state else arguments)


def test_parts_in_float32(on_one_device):
    rng = np.random.default_rng(0)
    judge((*mlstm_inputs(rng, 1, 61, N=2), *mlstm_state(rng, 1, 2)), "float32")


def test_hard_resets_in_parts(on_one_device):
    q, k, v, i, f = mlstm_inputs(np.random.default_rng(0), 1, 61, N=2)
    i[:, ::7], f[:, 5::9], f[:, 3::11] = -np.inf, -np.inf, np.inf
    judge((q, k, v, i, f))
