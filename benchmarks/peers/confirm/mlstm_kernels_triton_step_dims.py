"""mlstm_kernels (Triton): the step reads and writes beyond its arrays where a head dim is no power of 2.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_step_dims.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). A head dim of 12 is computed in a block
of 16, and q, k and n are loaded and stored without a mask. Here they are the first 12 elements of buffers of 16, so
that nothing else is overwritten: what stands behind q and n changes h, and what stands behind the new n is lost. Head
dims of 8 and 16, whose blocks have their own size, touch nothing. (A multiple of 64 is computed in blocks of 64.)
"""

import torch
from _device import device
from _shared import verdict
from mlstm_kernels.torch import get_mlstm_step_kernel

step, V, room = get_mlstm_step_kernel("triton"), 16, 16
wrong = False
for K in (8, 12, 16):
    torch.manual_seed(0)
    buffers = {name: torch.randn(room, device=device) for name in ("q", "k", "n", "new")}
    v, C = torch.randn(1, 1, V, device=device), torch.randn(1, 1, K, V, device=device)
    zero = torch.zeros(1, 1, 1, device=device)
    results = []
    for behind in (0.0, 7.0):
        for buffer in buffers.values():
            buffer[K:] = behind
        q, k, n, new = (buffer[:K].reshape(1, 1, K) for buffer in buffers.values())
        outputs = {"matC_new": torch.empty_like(C), "vecN_new": new, "scaM_new": torch.empty_like(zero)}
        h, _ = step(q, k, v, zero, zero, C, n, zero, eps=0.0, **outputs)
        results.append((h, buffers["new"][K:].tolist()))
    moved = (results[1][0] - results[0][0]).abs().max().item() / results[0][0].abs().max().item()
    overwritten = sum(x != 7.0 for x in results[1][1])
    print(f"head dim {K:2}: other numbers behind the arrays change h by {moved:.2f} of its size;", end=" ")
    print(f"{overwritten} elements behind the new n overwritten")
    wrong |= moved > 0 or overwritten > 0
verdict(wrong)
