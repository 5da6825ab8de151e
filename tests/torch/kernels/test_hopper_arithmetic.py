"""What an H100's arithmetic would break first, on a GPU, under the interpreter, and under it with that arithmetic."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.torch.kernels.test_mlstm_kernels import Case
from torch_impl import MLSTMState, SLSTMState, gru, mlstm, mlstm_step, slstm, slstm_step
from torch_impl._triton.interpreter import interpreted

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
HALF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Largest rounding error of a number, relative to it."""


def bias(found: torch.Tensor, exact: np.ndarray) -> float:
    """The mean error towards larger numbers, relative to the mean number."""
    error = (found.double().cpu().numpy() - exact) * np.sign(exact)
    return error.mean() / np.abs(exact).mean()


@pytest.mark.parametrize("dtype", HALF)
def test_products_are_not_biased(dtype, device) -> None:
    """The errors of operands that are truncated have one sign. With them, float16's h is 0.70 roundoffs too small."""
    case = Case(1, 130, 2, 64, 64, device, dtype, cotangents=False)
    h, _, (dq, dk, dv, *_) = case.run()
    expected = (case.h, *(case.gradients[name] for name in "qkv"))
    for found, exact in zip((h, dq, dk, dv), expected, strict=True):
        assert abs(bias(found, exact)) < HALF[dtype] / 8


def draw(device, *shapes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


B, S, N, H = 3, 66, 1, 3
TOKEN, GATE, STATE = (B, S, N, H), (B, S, N), (B, N, H)


def an_mlstm(device, dtype, spoil):
    x = draw(device, TOKEN, TOKEN, TOKEN, GATE, GATE, dtype=dtype)
    state = MLSTMState(*draw(device, (B, N, H, H), STATE, (B, N), dtype=torch.float32))
    spoil(x)
    h, last = mlstm(*x, initial_state=state, return_state=True, kernel_backend="triton")
    return h, last


def an_mlstm_step(device, dtype, spoil):
    x = draw(device, STATE, STATE, STATE, (B, N), (B, N), dtype=dtype)
    state = MLSTMState(*draw(device, (B, N, H, H), STATE, (B, N), dtype=torch.float32))
    spoil(x)
    q, k, v, i, f = x
    return mlstm_step(q, k, v, i, f, state, kernel_backend="triton")


def a_gru(device, dtype, spoil):
    x = draw(device, TOKEN, TOKEN, TOKEN, dtype=dtype)
    W = draw(device, *[(N, H, H)] * 3, dtype=dtype)
    spoil(x)
    y, last = gru(x[0], W[0], x[1], W[1], x[2], W[2], kernel_backend="triton")
    return y, (last,)


def an_slstm(device, dtype, spoil):
    x, W = draw(device, *[TOKEN] * 4, dtype=dtype), draw(device, *[(N, H, H)] * 4, dtype=dtype)
    spoil(x)
    return slstm(*x, *W, return_state=True, kernel_backend="triton")


def an_slstm_step(device, dtype, spoil):
    x, W = draw(device, *[STATE] * 4, dtype=dtype), draw(device, *[(N, H, H)] * 4, dtype=dtype)
    state = SLSTMState(*draw(device, *[STATE] * 4, dtype=torch.float32))
    spoil(x)
    call: Any = slstm_step
    return call(*x, *W, state, kernel_backend="triton")


CALLS: dict[str, tuple[Callable[..., Any], int]] = {
    "mlstm": (an_mlstm, 5),
    "mlstm_step": (an_mlstm_step, 5),
    "gru": (a_gru, 3),
    "slstm": (an_slstm, 4),
    "slstm_step": (an_slstm_step, 4),
}
SPOILED = [(name, argument) for name, (_, count) in CALLS.items() for argument in range(count)]


@pytest.mark.grid
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "argument"), SPOILED)
def test_a_nan_stays_in_its_sequence_and_reaches_its_state(name, argument, dtype, device) -> None:
    """Also where m is the larger of two numbers, and where operands are rounded or limited."""
    call, _ = CALLS[name]
    clean, clean_state = call(device, dtype, lambda x: None)

    def spoil(x):
        of_sequence = x[argument].view(B, -1)[1]
        of_sequence[-min(2, len(of_sequence))] = float("nan")

    found, state = call(device, dtype, spoil)
    others = [0, 2]
    for x, y in ((found, clean), *zip(state, clean_state, strict=True)):
        assert torch.equal(x[others], y[others])
    assert found[1].isnan().any()
    gates = {"mlstm": (3, 4), "mlstm_step": (3, 4), "slstm": (1, 2), "slstm_step": (1, 2)}
    # A query is in no state, and neither is an output gate.
    if (name, argument) not in (("mlstm", 0), ("mlstm_step", 0)):
        assert any(part[1].isnan().any() for part in state)
    if argument in gates.get(name, ()):
        assert state.m[1].isnan().any()


needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
compiles = pytest.mark.skipif(interpreted(), reason="this process interprets kernels already")
OTHERS = "test_half_precision or test_step or test_scans or test_decay_matrices or test_longer_and_wider"


@needs_triton
@compiles
@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU, whose arithmetic is its own")
def test_the_kernels_hold_with_the_arithmetic_of_a_gpu() -> None:
    """The tests above, and of every kernel's own tests one for each operation and dtype."""
    options = ["-q", "-p", "no:cacheprovider", "-m", "on_device", "-p", "tests.torch.kernels.hopper", "--grids", "each"]
    names = ("test_mlstm_kernels.py", "test_gru_kernels.py", "test_slstm_kernels.py", "test_scan_kernels.py")
    for chosen in ([str(Path(__file__))], ["-k", OTHERS, *(str(HERE / name) for name in names)]):
        command = [sys.executable, "-m", "pytest", *options, *chosen]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
