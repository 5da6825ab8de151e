"""mlstm_kernels (PyTorch): torch.func.grad of the functions with a custom backward pass raises.

    pip install mlstm-kernels torch && python mlstm_kernels_functional.py

torch.func takes an autograd.Function that has `setup_context`; theirs have a `forward` with a context. The functions
under plain autograd are differentiated by both.
"""

import torch
from _shared import NATIVE, chunks, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
arrays = [torch.randn(1, 2, 16, 8) for _ in "qkv"] + [torch.randn(1, 2, 16) for _ in "if"]
wrong = False
for name in NATIVE:
    options = chunks(name, 16)

    def total(q, *others, name=name, options=options):
        return get_mlstm_kernel(name)(q, *others, eps=0.0, **options).sum()

    leaf = arrays[0].clone().requires_grad_()
    (plain,) = torch.autograd.grad(total(leaf, *arrays[1:]), leaf)
    try:
        gap = (torch.func.grad(total)(*arrays) - plain).abs().max().item()
        print(f"{name:34}: torch.func.grad agrees with torch.autograd.grad to {gap:.0e}")
    except RuntimeError as error:
        print(f"{name:34}: RuntimeError: {str(error).splitlines()[0][:80]}")
        wrong = True
verdict(wrong)
