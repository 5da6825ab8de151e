"""flash-linear-attention: simple_gla, the fastest neighbour of the mLSTM on a GPU."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, imported

NEIGHBOUR = (
    "a neighbour, not an mLSTM: no input gate, no normaliser and no stabiliser; it does less work",
    ("forward", "both"),
)


def _load(case: Case, _: Any) -> Function:
    import torch

    function = imported("fla.ops.simple_gla", "flash_linear_attention").chunk_simple_gla

    def simple_gla(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        return (function(q, k, v * torch.sigmoid(i)[..., None], torch.nn.functional.logsigmoid(f.float()))[0],)

    return simple_gla


CONTENDERS = [Contender("fla simple_gla", "mlstm", "torch", _load, devices=("cuda",), differs=NEIGHBOUR)]
