"""An sLSTM as a stranger writes it in PyTorch, dense and step by step, with faults by name."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.suite.strangers.torch_loops import times

NAMED = {
    "begins with m = 0": "slstm equals the specification with a fault: begins with m = 0, not −∞",
    "stabiliser detached where it is subtracted": (
        "The gradient of slstm equals that of the specification with a fault: "
        "stabiliser m held constant in the gradient where it is subtracted, but not where it is carried"
    ),
    "n at least 1": "slstm equals the specification with a fault: divisor of at least 1, c / max(n, 1)",
}
"""The faults, each with what the suite should say of it."""


def slstm_loop(*faults: str) -> Callable:
    """The loop, differentiated by autograd, the stabiliser included."""

    def slstm(z, i, f, o, *weights: Tensor, initial_state=None, return_state=False, forget_gate="sigmoid", **options):
        if options:
            raise NotImplementedError(f"the loop takes no {min(options)}")
        wide = torch.promote_types(z.dtype, torch.float32)
        (B, S, N, H), states = z.shape, initial_state
        if states is None:
            empty = 0.0 if "begins with m = 0" in faults else -torch.inf
            states = [torch.full((B, N, H), empty if name == "m" else 0.0, dtype=wide) for name in "cnmh"]
        c, n, m, h = states
        wide_weights = [W.to(wide) for W in weights]
        ys = []
        for t in range(S):
            pairs = zip((z, i, f, o), wide_weights, strict=True)
            u_z, u_i, u_f, u_o = (x[:, t].to(wide) + times(h, W) for x, W in pairs)
            a = F.logsigmoid(u_f) if forget_gate == "sigmoid" else u_f
            carried = torch.where(m == -torch.inf, m, a + m)
            m = torch.maximum(carried, u_i)
            unit = torch.where(m == -torch.inf, 0.0, m)
            unit = unit.detach() if "stabiliser detached where it is subtracted" in faults else unit
            decay, gain = torch.exp(carried - unit), torch.exp(u_i - unit)
            c, n = decay * c + gain * torch.tanh(u_z), decay * n + gain
            least = n.clamp(min=1.0) if "n at least 1" in faults else torch.where(n == 0, 1.0, n)
            h = torch.sigmoid(u_o) * c / least
            ys.append(h.to(z.dtype))
        y = torch.stack(ys, 1) if ys else torch.zeros_like(z)
        return (y, (c, n, m, h)) if return_state else y

    return slstm
