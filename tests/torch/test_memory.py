"""Memory over a long sequence, in a process of its own."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
from tests.memory import peak_bytes
from torch_impl import mlstm

S, N, D = 32768, 4, 128
warm = [torch.ones(1, 2, 1, 1, requires_grad=True) for _ in range(3)]
mlstm(*warm, warm[0][..., 0], warm[0][..., 0]).sum().backward()
before = peak_bytes()
arrays = [torch.randn(1, S, N, D, requires_grad=True) for _ in range(3)]
arrays += [torch.randn(1, S, N, requires_grad=True) for _ in range(2)]
h = mlstm(*arrays)
h.backward(torch.randn_like(h))
assert all(x.grad.isfinite().all() for x in arrays)
print(peak_bytes() - before)
"""


def test_forward_and_backward_of_32768_steps_stay_under_2_gb():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2e9, done.stdout


DELTA_SCRIPT = """
import torch
from tests.memory import peak_bytes
from torch_impl import gated_delta_rule

S, N, D = 16384, 4, 64
warm = [torch.ones(1, 2, 1, 1, requires_grad=True) for _ in range(3)]
gated_delta_rule(*warm, -warm[0][..., 0])[0].sum().backward()
before = peak_bytes()
arrays = [torch.randn(1, S, N, D) / 8 for _ in range(3)] + [-torch.rand(1, S, N), torch.rand(1, S, N)]
arrays = [x.requires_grad_() for x in arrays]
o, _ = gated_delta_rule(*arrays)
o.backward(torch.randn_like(o))
assert all(x.grad.isfinite().all() for x in arrays)
print(peak_bytes() - before)
"""


def test_the_gated_delta_rule_saves_a_state_for_a_chunk_not_a_step():
    """A state for each step would be 1.07 GB, tokens and their gradients are 0.13 GB."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", DELTA_SCRIPT], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4e8, done.stdout
