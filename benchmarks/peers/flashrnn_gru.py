"""FlashRNN (NX-AI): plain PyTorch (``vanilla``) on a CPU, fused CUDA and Triton on a GPU. Its reset gate stands after
the product with the state, tanh(x + r⊙(h W)): the same function as gatespec's where H = 1.
"""

import torch
from flashrnn import flashrnn


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None, backend="vanilla"):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    N, _, _, H = into.shape
    # Its inputs are reset, update (the forget gate), candidate; its recurrent weights candidate, reset, update.
    Wx = torch.einsum("bsnf,ngfh->bsgnh", x, into).contiguous()
    over = torch.stack([weight, reset_weight, forget_weight]).mT.contiguous()
    states = None if h0 is None else h0[None, :, None]
    dtype = str(x.dtype).removeprefix("torch.")
    y, last = flashrnn(Wx, over, x.new_zeros(4, N, H), states, function="gru", backend=backend, dtype=dtype)
    return y[0], last[0, :, 0]


def gru(input, weight, forget_input, forget_weight, reset_input, reset_weight, input_state=None, **unserved):
    H, inputs, weights = weight.shape[-1], (reset_input, forget_input, input), (weight, forget_weight, reset_weight)
    for refused, reason in (
        (unserved, ", ".join(unserved)),
        (H != 1, "a reset gate inside the product: where H is not 1, it computes another function"),
        (input.shape[1] == 0, "sequences without steps"),
        (len({x.dtype for x in (*inputs, *weights)}) > 1, "arrays of several dtypes"),
        (input_state is not None and input_state.dtype != input.dtype, "a state of another dtype"),
    ):
        if refused:
            raise NotImplementedError(f"it does not support {reason}")
    N = max(*(x.shape[2] for x in inputs), *(w.shape[0] for w in weights))
    # Beyond 1e4 a gate is shut or open to the last bit, and no zero of the identity below meets an infinity.
    x = torch.cat([x.repeat_interleave(N // x.shape[2], 2) for x in inputs], -1).clamp(-1e4, 1e4)
    weights = [w.repeat_interleave(N // w.shape[0], 0) for w in weights]
    # The gates' inputs are projected already: each takes its part of x as it is.
    into = torch.eye(3 * H, dtype=x.dtype, device=x.device).unflatten(1, (3, H)).transpose(0, 1).expand(N, -1, -1, -1)
    return gru_layer(x, into, *weights, input_state)
