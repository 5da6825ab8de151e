"""Linear attention and the delta rule from their definition, and what scripts compare with it. Needs PyTorch alone."""

import torch

NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dbeta")


def definition(q, k, v, g, beta=None):
    """One step after the other, in the dtype of its arguments; ``(B, S, N, ·)``, and g without or with key channels."""
    state, o = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        decay = g[:, t, ..., None] if g.ndim == 4 else g[:, t, ..., None, None]
        state, write = decay.exp() * state, v[:, t]
        if beta is not None:
            write = beta[:, t, ..., None] * (write - (k[:, t, ..., None] * state).sum(-2))
        state = state + k[:, t, ..., None] * write[..., None, :]
        o.append((q[:, t, ..., None] * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(o, 1), state


def arrays(channels, delta, S=130, B=1, N=2, K=16):
    """q, k of length 1, v, uniform numbers in (0, 1) for g and, for the delta rule, beta; float32."""
    q, k, v = (torch.randn(B, S, N, K) for _ in "qkv")
    gates = torch.rand(B, S, N, K) if channels else torch.rand(B, S, N)
    return [q, torch.nn.functional.normalize(k, dim=-1), v, gates, *([torch.rand(B, S, N)] if delta else [])]


def with_gradients(function, inputs):
    """o, the final state, and the gradient of every input for fixed random cotangents."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    results = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in results]
    return [*(x.detach() for x in results), *torch.autograd.grad(results, leaves, cotangents)]


def errors(function, inputs):
    """For each result, its largest distance from the definition in float64, over the definition's largest element."""
    exact = with_gradients(definition, [x.double() for x in inputs])
    found = with_gradients(function, inputs)
    pairs = zip(NAMES, found, exact, strict=False)
    return {name: ((x.double() - y).abs().max() / y.abs().max()).item() for name, x, y in pairs}


def sums_of_decays(chunks, channels=False, delta=False):
    """Whether one strong decay costs functions in chunks digits, or makes them return NaN, and costs a loop none.

    Args:
        chunks: the functions ``(q, k, v, g[, beta])`` in chunks, by name; they return o and the final state.
        channels: whether g has key channels.
        delta: whether they take beta.
    """
    torch.manual_seed(0)
    inputs = arrays(channels, delta)
    uniform = inputs[3]
    reset = -0.1 * uniform
    calls = {f"g in (-{width}, 0)": -width * uniform for width in (1, 16, 100)}
    for gate in (-1e3, -1e6, -torch.inf):
        calls[f"one g = {gate:g}"] = torch.cat([reset[:, :7], torch.full_like(reset[:, :1], gate), reset[:, 8:]], 1)
    shown = True
    for words, g in calls.items():
        arguments = [*inputs[:3], g, *inputs[4:]]
        for name, function in {"step by step": definition, **chunks}.items():
            found = errors(function, arguments)
            print(f"{words:15} {name:28} {', '.join(f'{each} {error:.0e}' for each, error in found.items())}")
            if words.startswith("one"):
                precise = all(error < 2e-6 for error in found.values())
                shown &= precise != (name in chunks)
    return shown
