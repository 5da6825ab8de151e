"""mlstm_kernels (Triton): with one head, inputs transposed from (B, S, 1, ·) give wrong results for several sequences.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_one_head.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). PyTorch counts a tensor as contiguous
whatever the stride of an axis of length 1, so that `contiguous()` leaves these inputs as they are; the kernels take
the stride of the axis of heads for the distance of two sequences. The same numbers in tensors of (B, 1, S, ·), and
each sequence alone, are shown for comparison. The size of the error changes from run to run.
"""

import torch
from _device import device
from _shared import TRITON, chunks, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
B, S, K = 2, 64, 64
# (B, S, 1, ·), as a projection of a model gives them.
arrays = [torch.randn(B, S, 1, K, device=device) for _ in "qkv"]
arrays += [torch.randn(B, S, 1, device=device), 3 + torch.randn(B, S, 1, device=device)]
wrong = False
for name in TRITON:
    kernel, options = get_mlstm_kernel(name), chunks(name, 64)
    views = [x.transpose(1, 2) for x in arrays]
    copies = [torch.empty(x.shape, device=device).copy_(x) for x in views]
    alone = torch.cat([kernel(*(x[b : b + 1] for x in copies), eps=0.0, **options) for b in range(B)])
    errors = [(kernel(*given, eps=0.0, **options) - alone).abs().max().item() for given in (copies, views)]
    print(f"{name:32} largest |h - each alone|: {errors[0]:.1e} in (B, 1, S, ·), {errors[1]:.1e} transposed")
    wrong |= errors[1] > 1e-3
verdict(wrong)
