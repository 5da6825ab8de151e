"""FlashRNN (NX-AI): fused CUDA and Triton recurrences of many heads, on a GPU; its plain PyTorch form on a CPU."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, imported


def _load(case: Case, backend: str) -> Function:
    torch, flashrnn = imported("torch"), imported("flashrnn").flashrnn
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
        # Its inputs are reset, update (our forget), candidate; its recurrent weights candidate, reset, update.
        into = torch.stack([reset_projection, forget_projection, input_projection], 1)
        over = torch.stack([weight, reset_weight, forget_weight]).mT.contiguous()
        Wx = torch.einsum("bsni,ngij->bsgnj", x, into).contiguous()
        bias = x.new_zeros(4, N, H)
        states, _ = flashrnn(Wx, over, bias, function="gru", backend=backend, dtype=case.dtype)
        return (states[0],)

    return gru


def _row(name: str, **fields: Any) -> Contender:
    return Contender(f"flashrnn {name}", "gru", "torch", _load, reset_after=True, **fields)


CONTENDERS = [
    _row("vanilla", devices=("cpu",), dtypes=("float32",), choices=("vanilla",)),
    _row("fused", devices=("cuda",), dtypes=("bfloat16",), choices=("cuda", "triton_fused")),
]
