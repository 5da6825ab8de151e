"""mlstm_kernels (Triton): the step computes log σ(f) as log(sigmoid(f)), which is −∞ where f is below about −88.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_step_gate.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). From m = 0, and with an input gate of −∞,
the new stabiliser is log σ(f), which is f itself for a large negative f. It is compared, in double precision, with the
m that comes back.
"""

import math

import torch
from _device import device
from _shared import verdict
from mlstm_kernels.torch import get_mlstm_step_kernel

step, K = get_mlstm_step_kernel("triton"), 16
q = torch.ones(1, 1, K, device=device)
C, n, m = torch.ones(1, 1, K, K, device=device), torch.ones(1, 1, K, device=device), torch.zeros(1, 1, 1, device=device)
wrong = False
for gate in (5.0, 0.0, -5.0, -50.0, -85.0, -90.0, -110.0, -1000.0):
    i, f = torch.full_like(m, -torch.inf), torch.full_like(m, gate)
    _, (_, _, new) = step(q, q, q, i, f, C, n, m, eps=0.0)
    exact = min(gate, 0.0) - math.log1p(math.exp(-abs(gate)))
    print(f"f = {gate:7}: m = {new.item():.6f}, exact {exact:.6f}")
    wrong |= not abs(new.item() - exact) < 1e-4 * abs(exact)
verdict(wrong)
