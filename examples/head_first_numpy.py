"""The adapter of `examples/head_first.py` for a NumPy kernel that has its own gradient.

gatespec run examples/head_first_numpy.py --op mlstm
"""

import reference


def their_kernel(query, key, value, in_gate, forget_gate, carry=None, epsilon=0.0):
    """``query, key (B, N, S, K)``, ``value (B, N, S, V)``, gates ``(B, N, S)`` → ``(B, N, S, V)``, ``(C, n, m)``."""
    steps_first = (x.swapaxes(1, 2) for x in (query, key, value, in_gate, forget_gate))
    h, state = reference.mlstm(*steps_first, initial_state=carry, return_state=True, eps=epsilon)
    return h.swapaxes(1, 2), tuple(state)


def their_gradient(query, key, value, in_gate, forget_gate, d_out, d_carry, carry=None, epsilon=0.0):
    """The gradients of all arguments, in their layout and order, and those of the carry."""
    steps_first = (x.swapaxes(1, 2) for x in (query, key, value, in_gate, forget_gate))
    dh = d_out.swapaxes(1, 2)
    found = reference.mlstm_backward(*steps_first, initial_state=carry, dh=dh, dstate=d_carry, eps=epsilon)
    return [found[name].swapaxes(1, 2) for name in "qkvif"], found.get("initial_state")


def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, cu_seqlens=None, eps=0.0, **unused):
    if cu_seqlens is not None:
        raise NotImplementedError("packed sequences are not supported")
    heads_first = (x.swapaxes(1, 2) for x in (q, k, v, i, f))
    out, carry = their_kernel(*heads_first, carry=initial_state, epsilon=eps)
    h = out.swapaxes(1, 2)
    return (h, carry) if return_state else h


def mlstm_backward(q, k, v, i, f, *, initial_state=None, dh, dstate, cu_seqlens=None, eps=0.0, **unused):
    if cu_seqlens is not None:
        raise NotImplementedError("packed sequences are not supported")
    heads_first = (x.swapaxes(1, 2) for x in (q, k, v, i, f))
    found, of_carry = their_gradient(
        *heads_first, d_out=dh.swapaxes(1, 2), d_carry=dstate, carry=initial_state, epsilon=eps
    )
    gradients = {name: x.swapaxes(1, 2) for name, x in zip("qkvif", found, strict=True)}
    return gradients if of_carry is None else {**gradients, "initial_state": of_carry}
