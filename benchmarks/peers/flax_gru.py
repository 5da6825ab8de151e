"""``flax.linen.GRUCell`` under ``nn.RNN``, mapped over heads. Its reset gate stands after the product with the state,
tanh(x + r⊙(h W)): the same function as gatespec's where H = 1.
"""

import jax
import jax.numpy as jnp
from flax import linen


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    N, _, _, H = into.shape
    layer, zeros = linen.RNN(linen.GRUCell(H), return_carry=True), jnp.zeros((N, H), x.dtype)
    parameters = {
        "in": {"kernel": into[:, 2], "bias": zeros},
        "iz": {"kernel": into[:, 1], "bias": zeros},
        "ir": {"kernel": into[:, 0], "bias": zeros},
        "hn": {"kernel": weight, "bias": zeros},
        "hz": {"kernel": forget_weight},
        "hr": {"kernel": reset_weight},
    }

    def one_head(parameters, x, h0):
        return layer.apply({"params": {"cell": parameters}}, x, initial_carry=h0)

    # Its own zeros are in float32 whatever x is.
    h0 = jnp.zeros((x.shape[0], N, H), x.dtype) if h0 is None else h0
    last, y = jax.vmap(one_head, (0, 2, 1), (1, 2))(parameters, x, h0)
    return y, last


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
    x = jnp.concatenate([jnp.repeat(x, N // x.shape[2], 2) for x in inputs], -1).clip(-1e4, 1e4)
    weights = [jnp.repeat(w, N // w.shape[0], 0) for w in weights]
    # The gates' inputs are projected already: each takes its part of x as it is.
    into = jnp.eye(3 * H, dtype=x.dtype).reshape(3 * H, 3, H).swapaxes(0, 1)
    return gru_layer(x, jnp.broadcast_to(into, (N, *into.shape)), *weights, input_state)
