"""Steps that adapters share: refusing a call, and a framework's GRU layer as the recurrence of the specification."""


def refuse(*cases):
    """Raise `NotImplementedError` for the first ``(condition, reason)`` whose condition is true."""
    for refused, reason in cases:
        if refused:
            raise NotImplementedError(f"it does not support {reason}")


def grouped_heads(q, k, v, *gates):
    """q and k with one number of heads, and the values and gates with another that it divides, of PyTorch tensors.

    Heads are repeated where a call has fewer; a function for grouped heads does the rest.
    """
    keys, N = max(x.shape[2] for x in (q, k)), max(x.shape[2] for x in (q, k, v, *gates))
    refuse((keys % q.shape[2] or keys % k.shape[2], "this grouping of heads"))
    wanted = (keys, keys, *(N for _ in (v, *gates)))
    return [
        x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)
        for x, heads in zip((q, k, v, *gates), wanted, strict=True)
    ]


def recurrence(gru_layer, xp, both=False):
    """``gru`` of gatespec from a layer that projects its input; ``xp`` is ``torch``, ``jax.numpy`` or ``numpy``.

    The layer applies its reset gate after the product with the state, and takes the bias of that product; where it is
    to be before the product, the layer is called with H = 1, where both forms are one. With ``both``, it has both forms
    and takes `reset_after` as well.
    """
    repeat = xp.repeat_interleave if hasattr(xp, "repeat_interleave") else xp.repeat

    def gru(
        input,
        weight,
        forget_input,
        forget_weight,
        reset_input,
        reset_weight,
        input_state=None,
        *,
        reset_after=False,
        recurrent_bias=None,
        **unserved,
    ):
        H, inputs, weights = weight.shape[-1], (reset_input, forget_input, input), (weight, forget_weight, reset_weight)
        refuse(
            (unserved, ", ".join(unserved)),
            (
                not both and H != 1 and not reset_after,
                "a reset gate inside the product: where H is not 1, it computes another function",
            ),
            (input.shape[1] == 0, "sequences without steps"),
            (len({x.dtype for x in (*inputs, *weights)}) > 1, "arrays of several dtypes"),
            (input_state is not None and input_state.dtype != input.dtype, "a state of another dtype"),
        )
        N = max(*(x.shape[2] for x in inputs), *(w.shape[0] for w in weights))
        # Beyond 1e4 a gate is shut or open to the last bit, and no zero of the identity below meets an infinity.
        x = xp.concatenate([repeat(x, N // x.shape[2], 2) for x in inputs], -1).clip(-1e4, 1e4)
        weights = [repeat(w, N // w.shape[0], 0) for w in weights]
        # The gates' inputs are projected already: each takes its part of x as it is.
        into = xp.eye(3 * H, dtype=x.dtype).reshape(3 * H, 3, H).swapaxes(0, 1)
        into = into.to(x.device) if hasattr(into, "to") else into
        arguments = (x, xp.broadcast_to(into, (N, *into.shape)), *weights, input_state)
        options = {"reset_after": reset_after} if both else {}
        if recurrent_bias is not None:
            options["bias"] = repeat(recurrent_bias, N // recurrent_bias.shape[0], 0)
        return gru_layer(*arguments, **options)

    return gru


def slstm_recurrence(loop, xp):
    """``slstm`` of gatespec from a loop over gates, weights and states that are stacked; ``xp`` is ``torch``.

    Its states are h, c, n and m, and those of an empty memory 0.
    """

    def slstm(
        z, i, f, o, weight_z, weight_i, weight_f, weight_o, *,
        initial_state=None, return_state=False, forget_gate="sigmoid", **unserved,
    ):  # fmt: skip
        refuse(
            (unserved, ", ".join(unserved)),
            (z.shape[1] == 0, "sequences without steps"),
            (forget_gate != "sigmoid", "an exponential forget gate"),
            (initial_state is not None and initial_state[0].dtype != z.dtype, "a state of another dtype"),
        )
        if initial_state is None:
            states = z.new_zeros((4, len(z), *z.shape[2:]))
        else:
            c, n, m, h = initial_state
            states = xp.stack([h, c, n, m])
        gates, weights = xp.stack([i, f, z, o], 2), xp.stack([weight_i, weight_f, weight_z, weight_o])
        every, last = loop(gates, weights, states)
        if not return_state:
            return every
        h, c, n, m = last
        return every, (c, n, m, h)

    return slstm
