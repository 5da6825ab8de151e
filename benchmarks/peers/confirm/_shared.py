"""Steps of several scripts. A script finds this file in its own folder; neither needs anything of gatespec."""

import math
import sys

NATIVE = tuple(
    f"{form}_{gradient}"
    for form in ("chunkwise--native", "parallel--native", "parallel--native_stablef")
    for gradient in ("autograd", "custbw")
)
"""The functions of sequences in the PyTorch part of mlstm-kernels."""

TRITON = ("chunkwise--triton_xl_chunk", "chunkwise--triton_limit_chunk", "parallel--triton_limit_headdim")


def verdict(shown, otherwise="not seen with this version."):
    """End the script: with status 1 if the fault was shown."""
    print("Verdict:", "confirmed." if shown else otherwise)
    sys.exit(bool(shown))


def chunks(name, size):
    """The options of one of mlstm-kernels' functions: chunks of ``size`` steps, if it computes in chunks."""
    return {"chunk_size": size} if "chunkwise" in name else {}


def decayed(S, gate):
    """The stabiliser S·log σ(gate) of a memory that S equal forget gates decay and nothing is written to."""
    return -S * math.log1p(math.exp(-gate))


def quotient(function, arrays, at, direction, width):
    """The difference quotient of a number along a direction of one of its arguments."""
    moved = ([x + step * direction if j == at else x for j, x in enumerate(arrays)] for step in (width, -width))
    ahead, behind = (float(function(*ends)) for ends in moved)
    return (ahead - behind) / (2 * width)


def definition(q, k, v, i, f):
    """One head in NumPy, ``(S, K)`` and ``(S,)``: h_t = C_tᵀq̂_t / max(|n_t·q̂_t|, exp(−m_t))."""
    import numpy as np

    S, K = q.shape
    C, n, m, h = np.zeros((K, K)), np.zeros(K), 0.0, []
    for t in range(S):
        a = -np.logaddexp(0, -f[t])
        last, m = m, max(a + m, i[t])
        C = np.exp(a + last - m) * C + np.exp(i[t] - m) * np.outer(k[t], v[t])
        n = np.exp(a + last - m) * n + np.exp(i[t] - m) * k[t]
        scaled = q[t] / np.sqrt(K)
        h.append(C.T @ scaled / max(abs(n @ scaled), np.exp(-m)))
    return np.array(h)


def detached(q, k, v, i, f):
    """The parallel form in PyTorch, with nothing differentiated through its denominator."""
    import torch

    S, a = q.shape[2], torch.nn.functional.logsigmoid(f)
    sums = a[..., :, None].expand(*a.shape, S).tril(-1).cumsum(-2)
    D = (sums + i[..., None, :]).masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf)
    m = D.amax(-1, keepdim=True).detach()
    w = (D - m).exp() * (q @ k.mT) * q.shape[-1] ** -0.5
    return w @ v / torch.maximum(w.sum(-1, keepdim=True).abs(), (-m).exp()).detach()


def along(function, arrays, at, direction):
    """The derivative of a number along a direction of one of its arguments, by PyTorch's autograd."""
    import torch

    leaves = [x.clone().requires_grad_() for x in arrays]
    (gradient,) = torch.autograd.grad(function(*leaves), leaves[at], allow_unused=True, materialize_grads=True)
    return (gradient * direction).sum().item()


def vmap_raises(function, arrays, label=""):
    """Whether ``function``, called on one set of arrays after the other, raises or differs under `torch.vmap`."""
    import torch

    one_by_one = torch.stack([function(*(x[a] for x in arrays)) for a in range(len(arrays[0]))])
    try:
        error = (torch.vmap(function)(*arrays) - one_by_one).abs().max().item()
        print(f"{label}mapped: differs by {error:.1e} from one call after the other")
        return not error < 1e-4
    except RuntimeError as raised:
        print(f"{label}mapped: RuntimeError: {str(raised).splitlines()[0][:160]}")
        return True


def rounded_sums(kernel, arrays, label=""):
    """Whether a PyTorch function of 16-bit arrays is off by more roundings than in float32, rounded once at the end."""
    import torch

    found = False
    for dtype in (torch.bfloat16, torch.float16):
        narrow = [x.to(dtype) for x in arrays]
        exact = kernel(*(x.double() for x in narrow), eps=0.0)
        unit = torch.finfo(dtype).eps / 2 * exact.abs().max()
        own = (kernel(*narrow, eps=0.0).double() - exact).abs().max() / unit
        once = (kernel(*(x.float() for x in narrow), eps=0.0).to(dtype).double() - exact).abs().max() / unit
        print(f"{label}{dtype!s:15}: off by {own:6.1f} roundings; in float32 and rounded once: {once:.1f}")
        found |= bool(own > 4 * once)
    return found


def empty_steps(functions, dtypes):
    """Whether h, or its gradient by i or f, is NaN in every function where the last step's gates are very negative.

    A function takes i and f of the last step, ``(1, 1)`` each, and returns h, whose last element is that step's.
    """
    import torch

    # Forget and input gate of the step, and where it gives NaN.
    calls = ((-1e4, -30.0, ""), (-1e4, -800.0, "di"), (-800.0, -900.0, "df"), (-torch.inf, -torch.inf, "h"))
    shown = True
    for name, function in functions.items():
        for dtype in dtypes:
            words = []
            for forget, write, wrong in calls:
                i = torch.full((1, 1), write, dtype=dtype, requires_grad=True)
                f = torch.full((1, 1), forget, dtype=dtype, requires_grad=True)
                h = function(i, f).flatten()[-1]
                h.backward()
                found = {"h": h, "di": i.grad, "df": f.grad}
                values = ", ".join(f"{which} = {x.item():.2g}" for which, x in found.items() if which in ("h", wrong))
                words.append(f"f {forget:g}, i {write:g}: {values}")
                shown &= not wrong or bool(found[wrong].isnan().all())
            print(f"{name:34} {str(dtype)[6:]:8} {'; '.join(words)}")
    return shown
