"""``torch.nn.GRU`` (cuDNN on a GPU): one layer for each head, for it has no heads."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, imported


def _load(case: Case, _: Any) -> Function:
    torch = imported("torch")
    N, H = case.N, case.K

    def gru(
        x: Any,
        input_projection: Any,
        forget_projection: Any,
        reset_projection: Any,
        weight: Any,
        forget_weight: Any,
        reset_weight: Any,
    ) -> tuple[Any]:
        # torch's rows are reset, update (our forget) and candidate; its products are W·h, ours h·W.
        into = torch.stack([reset_projection, forget_projection, input_projection], 1).mT.reshape(N, 3 * H, H)
        over = torch.stack([reset_weight, forget_weight, weight], 1).mT.reshape(N, 3 * H, H)
        h0 = x.new_zeros(1, case.B, H)
        heads = [
            torch._VF.gru(x[:, :, n], h0, [into[n], over[n]], False, 1, 0.0, True, False, True)[0] for n in range(N)
        ]
        return (torch.stack(heads, 2),)

    return gru


CONTENDERS = [
    Contender("torch.nn.GRU", "gru", "torch", _load, dtypes=("float32", "float64", "bfloat16"), reset_after=True)
]
