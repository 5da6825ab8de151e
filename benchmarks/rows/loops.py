"""A GRU as it is usually first written in PyTorch: a loop over steps that autograd differentiates."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, imported


def _load(case: Case, _: Any) -> Function:
    torch = imported("torch")

    def gru(
        x: Any,
        input_projection: Any,
        forget_projection: Any,
        reset_projection: Any,
        weight: Any,
        forget_weight: Any,
        reset_weight: Any,
    ) -> tuple[Any]:
        # (S, N, B, H): heads as a batch of products.
        lanes = x.permute(1, 2, 0, 3)
        xs, fs, rs = (lanes @ projection for projection in (input_projection, forget_projection, reset_projection))
        h = x.new_zeros(case.N, case.B, case.K)
        states = []
        for t in range(case.S):
            r = torch.sigmoid(h @ reset_weight + rs[t])
            f = torch.sigmoid(h @ forget_weight + fs[t])
            z = torch.tanh((r * h) @ weight + xs[t])
            h = f * h + (1 - f) * z
            states.append(h)
        return (torch.stack(states).permute(2, 0, 1, 3),)

    return gru


CONTENDERS = [Contender("torch loop under autograd", "gru", "torch", _load)]
