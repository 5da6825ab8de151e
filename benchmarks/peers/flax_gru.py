"""``flax.linen.GRUCell`` under ``nn.RNN``, mapped over heads. Its reset gate stands after the product with the state,
tanh(x + r⊙(h W + b)): that of `reset_after`, and without it the same function where H = 1.
"""

import jax
import jax.numpy as jnp
from flax import linen

from ._adapter import recurrence


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None, bias=None):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    N, _, _, H = into.shape
    layer, zeros = linen.RNN(linen.GRUCell(H), return_carry=True), jnp.zeros((N, H), x.dtype)
    parameters = {
        "in": {"kernel": into[:, 2], "bias": zeros},
        "iz": {"kernel": into[:, 1], "bias": zeros},
        "ir": {"kernel": into[:, 0], "bias": zeros},
        "hn": {"kernel": weight, "bias": zeros if bias is None else bias},
        "hz": {"kernel": forget_weight},
        "hr": {"kernel": reset_weight},
    }

    def one_head(parameters, x, h0):
        return layer.apply({"params": {"cell": parameters}}, x, initial_carry=h0)

    # Its own zeros are in float32 whatever x is.
    h0 = jnp.zeros((x.shape[0], N, H), x.dtype) if h0 is None else h0
    last, y = jax.vmap(one_head, (0, 2, 1), (1, 2))(parameters, x, h0)
    return y, last


gru = recurrence(gru_layer, jnp)
