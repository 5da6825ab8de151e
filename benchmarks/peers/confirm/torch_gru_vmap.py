"""torch.nn.GRU: torch.vmap over its weights raises.

    pip install torch && python torch_gru_vmap.py

The layer is called by `torch.func.functional_call` on one set of parameters, and mapped over three.
"""

import torch
from _shared import verdict

layers = [torch.nn.GRU(2, 3) for _ in range(3)]
parameters = {name: torch.stack([layer.state_dict()[name] for layer in layers]) for name in layers[0].state_dict()}
x = torch.randn(3, 5, 1, 2)


def call(parameters, x):
    return torch.func.functional_call(layers[0], parameters, (x,))[0]


one_by_one = torch.stack([call(layer.state_dict(), each) for layer, each in zip(layers, x, strict=True)])
try:
    error = (torch.vmap(call)(parameters, x) - one_by_one).abs().max().item()
    print(f"mapped: differs by {error:.1e} from one call after the other")
    wrong = not error < 1e-5
except RuntimeError as raised:
    print(f"mapped: RuntimeError: {str(raised).splitlines()[0][:200]}")
    wrong = True
verdict(wrong)
