"""``torch.nn.GRU`` as a second oracle of the GRU, for diagonal W, where the two coincide.

Its candidate is tanh(x + r⊙(h W)), ours is tanh(x + (r⊙h) W); its update gate, z in its own documentation, is our f.
Each head is a separate float64 layer whose input weight is the identity, so that the input is added to the gates
unchanged. Infinite preactivations would become NaN there.
"""

from collections.abc import Mapping

import numpy as np
import torch

Values = dict[str, np.ndarray]
_INPUTS = ("reset_input", "forget_input", "input")
_WEIGHTS = ("reset_weight", "forget_weight", "weight")


def outputs_and_gradients(arrays: Mapping[str, np.ndarray], cotangents: Values, heads: int) -> tuple[Values, Values]:
    """Outputs ``y`` and ``state`` of a dense call, and its gradients; that of W only on its diagonal.

    Args:
        arrays: the arrays of a `gru` call, by name.
        cotangents: cotangents of ``y`` and ``state``.
        heads: N.
    """
    leaves = {name: torch.tensor(x.copy(), dtype=torch.float64, requires_grad=True) for name, x in arrays.items()}
    diagonal = torch.diag_embed(torch.diagonal(leaves["weight"], dim1=-2, dim2=-1))
    weights = {**{name: leaves[name] for name in _WEIGHTS}, "weight": diagonal}
    parts = [_head(leaves, weights, n, heads) for n in range(heads)]
    outputs = {"y": torch.stack([y for y, _ in parts], 2), "state": torch.stack([last for _, last in parts], 1)}
    given = [torch.tensor(cotangents[name].copy(), dtype=torch.float64) for name in outputs]
    gradients = torch.autograd.grad(
        list(outputs.values()), list(leaves.values()), given, allow_unused=True, materialize_grads=True
    )
    return (
        {name: y.detach().numpy() for name, y in outputs.items()},
        {name: gradient.numpy() for name, gradient in zip(leaves, gradients, strict=True)},
    )


def _head(
    leaves: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], n: int, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Head n of a call: ``(B, S, H)`` and ``(B, H)``."""

    def served(x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.select(axis, n // (heads // x.shape[axis]))

    x = torch.cat([served(leaves[name], 2) for name in _INPUTS], -1)
    B, S, H = x.shape[0], x.shape[1], x.shape[2] // 3
    h0 = leaves["input_state"][:, n] if "input_state" in leaves else x.new_zeros((B, H))
    if not B or not S:
        return x[:, :, :H], h0 + 0
    layer = torch.nn.GRU(3 * H, H, bias=False, batch_first=True, dtype=torch.float64)
    parameters = {
        "weight_ih_l0": torch.eye(3 * H, dtype=torch.float64),
        "weight_hh_l0": torch.cat([served(weights[name], 0).mT for name in _WEIGHTS]),
    }
    y, last = torch.func.functional_call(layer, parameters, (x, h0[None]))
    return y, last[0]
