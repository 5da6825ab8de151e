"""mlstm_kernels (PyTorch): `chunkwise--native_custbw` returns no gradient for n and m, and m counts as a constant.

    pip install mlstm-kernels torch && python mlstm_kernels_states.py

The function takes an initial state (C, n, m) and returns a final one, all three differentiable by autograd's rules:
they are inputs and outputs of an autograd.Function. For every output and every input, the derivative along a random
direction is compared with the difference quotient of the function's own forward pass, in float64.
`chunkwise--native_autograd`, the same forward pass under plain autograd, agrees in all of them.
"""

import torch
from _shared import along, quotient, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(1)
B, N, S, K = 1, 2, 16, 4
INPUTS = ("q", "k", "v", "i", "f", "C", "n", "m")


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


arrays = [normal(B, N, S, K), normal(B, N, S, K), normal(B, N, S, K), normal(B, N, S), 3 + normal(B, N, S)]
arrays += [normal(B, N, K, K), normal(B, N, K), normal(B, N, 1)]
wrong = {}
for name in ("chunkwise--native_autograd", "chunkwise--native_custbw"):
    kernel = get_mlstm_kernel(name)

    def outputs(q, k, v, i, f, C, n, m, kernel=kernel):
        options = {"c_initial": C, "n_initial": n, "m_initial": m, "return_last_states": True}
        h, last = kernel(q, k, v, i, f, eps=0.0, chunk_size=8, **options)
        return dict(zip("hCnm", (h, *last), strict=True))

    weights = {output: torch.randn_like(y) for output, y in outputs(*arrays).items()}
    print(f"{name}: derivative / difference quotient of ⟨output, weights⟩ along a direction of each input")
    print("  output" + "".join(f"{'d' + letter:>12}" for letter in INPUTS))
    wrong[name] = False
    for output, weight in weights.items():
        words = []

        def weighted(*arrays, outputs=outputs, output=output, weight=weight):
            return (outputs(*arrays)[output] * weight).sum()

        for at, x in enumerate(arrays):
            direction = normal(*x.shape)
            exact, own = quotient(weighted, arrays, at, direction, 1e-6), along(weighted, arrays, at, direction)
            if abs(exact) < 1e-7 and abs(own) < 1e-7:
                words.append("both 0")
                continue
            words.append(f"{own / exact:.4f}")
            wrong[name] |= abs(own - exact) > 1e-4 * abs(exact)
        print(f"  {output:6}" + "".join(f"{word:>12}" for word in words))
verdict(wrong["chunkwise--native_custbw"])
