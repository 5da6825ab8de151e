"""An adapter of a dozen lines for a kernel with another layout and other names.

    gatespec run examples/head_first.py --op mlstm

`their_kernel` stands for your own kernel: heads come before steps, the state is called carry, `eps` is `epsilon`. In
this example it calls `torch_impl` inside; the adapter does not depend on that. `examples/head_first_numpy.py` is the
same for NumPy.
"""

import torch

import torch_impl


def their_kernel(query: torch.Tensor, key, value, in_gate, forget_gate, carry=None, epsilon=0.0):
    """``query, key (B, N, S, K)``, ``value (B, N, S, V)``, gates ``(B, N, S)`` → ``(B, N, S, V)``, ``(C, n, m)``."""
    steps_first = (x.transpose(1, 2) for x in (query, key, value, in_gate, forget_gate))
    h, state = torch_impl.mlstm(*steps_first, initial_state=carry, return_state=True, eps=epsilon)
    return h.transpose(1, 2), tuple(state)


def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, cu_seqlens=None, eps=0.0, **unused):
    if cu_seqlens is not None:
        raise NotImplementedError("packed sequences are not supported")
    heads_first = (x.transpose(1, 2) for x in (q, k, v, i, f))
    out, carry = their_kernel(*heads_first, carry=initial_state, epsilon=eps)
    h = out.transpose(1, 2)
    return (h, carry) if return_state else h
