"""Without gradients, a forward pass goes through its steps in pieces: the same bits, and memory for one piece."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torch_impl
from torch_impl import _step_layout


def gru(leading: tuple[int, ...], N: int, H: int, B: int, **options) -> list[Tensor]:
    inputs = [torch.randn(*leading, heads, H) for heads in (N, N // 2, 1)]
    weights = [torch.randn(heads, H, H) / H**0.5 for heads in (N, 1, N // 2)]
    arrays = [x for pair in zip(inputs, weights, strict=True) for x in pair]
    y, last = torch_impl.gru(*arrays, torch.randn(B, N, H), **options)
    return [y, last]


def gru_reset_after(leading: tuple[int, ...], N: int, H: int, B: int, **options) -> list[Tensor]:
    return gru(leading, N, H, B, reset_after=True, recurrent_bias=torch.randn(N, H), **options)


def slstm(leading: tuple[int, ...], N: int, H: int, B: int, **options) -> list[Tensor]:
    inputs = [torch.randn(*leading, N, H) for _ in range(4)]
    weights = [torch.randn(N, H, H) / H**0.5 for _ in range(4)]
    state = torch_impl.SLSTMState(*(torch.rand(B, N, H) for _ in range(4)))
    y, last = torch_impl.slstm(*inputs, *weights, initial_state=state, return_state=True, **options)
    return [y, *last]


@pytest.mark.parametrize("call", [gru, gru_reset_after, slstm])
@pytest.mark.parametrize("lengths", [None, (3, 0, 7, 1, 7), (0, 0)], ids=["dense", "packed", "empty sequences"])
@pytest.mark.parametrize("piece", [0, 40, 200])
def test_pieces_change_no_bit(call, lengths, piece, monkeypatch):
    N, H = 4, 5
    if lengths is None:
        leading, B, options = (2, 11), 2, {}
    else:
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        leading, B, options = (sum(lengths),), len(lengths), {"cu_seqlens": bounds, "max_seqlen": max(lengths)}
    found = []
    for size in (1 << 30, piece):
        monkeypatch.setattr(_step_layout, "_PIECE", size)
        torch.manual_seed(0)
        found.append(call(leading, N, H, B, **options))
    for whole, in_pieces in zip(*found, strict=True):
        assert torch.equal(whole, in_pieces)


SCRIPT = """
import sys
import torch
from tests.memory import peak_bytes
from tests.torch import test_recurrences_in_pieces as calls

call = getattr(calls, sys.argv[1])
call((1, 64), 4, 64, 1)
before = peak_bytes()
call((1, 16384), 4, 64, 1)
print(peak_bytes() - before)
"""


@pytest.mark.parametrize(("call", "inputs"), [("gru", 1 + 1 / 2 + 1 / 4), ("slstm", 4)])
def test_memory_is_that_of_inputs_and_outputs(call, inputs):
    """At S = 16,384 y takes 16 MB; the rows of all steps would be 64 MB more for the GRU, 144 MB for the sLSTM."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT, call], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < (inputs + 1 + 1) * (1 << 24)
