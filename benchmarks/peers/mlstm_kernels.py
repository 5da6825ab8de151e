"""mlstm-kernels (NX-AI): PyTorch on a CPU and a GPU, Triton on a GPU. Head-first, eps = 1e-6."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, UnavailableError, imported

EPS = 1e-6
CONSTANT_NORMALISER = (
    "its backward pass treats the normaliser as a constant: wrong by a factor of order one unless a LayerNorm follows",
    ("both",),
)


def _sequence(kernel: str) -> Any:
    def load(case: Case, chunk: int) -> Function:
        import torch

        kernels = imported("mlstm_kernels.torch", "mlstm_kernels")
        function = kernels.get_mlstm_kernel(kernel)
        if case.S % chunk:
            raise UnavailableError(f"its chunk size {chunk} does not divide S = {case.S}")
        precision = {"autocast_kernel_dtype": getattr(torch, case.dtype)}

        def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
            return (function(q, k, v, i, f, eps=EPS, chunk_size=chunk, **precision),)

        return mlstm

    return load


def _step(kernel: str) -> Any:
    def load(case: Case, _: Any) -> Function:
        kernels = imported("mlstm_kernels.torch", "mlstm_kernels")
        function = kernels.get_mlstm_step_kernel(kernel)

        def mlstm_step(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, ...]:
            h, state = function(q, k, v, i[..., None], f[..., None], C, n, m[..., None], eps=EPS)
            return (h, state[0], state[1], state[2][..., 0])

        return mlstm_step

    return load


def _row(kernel: str, **fields: Any) -> Contender:
    chunks = (64, 128, 256) if "triton" in kernel else (32, 64, 128, 256)
    name = f"mlstm_kernels {kernel.partition('--')[2]}"
    return Contender(name, "mlstm", "torch", _sequence(kernel), choices=chunks, head_first=True, eps=EPS, **fields)


CONTENDERS = [
    _row("chunkwise--native_autograd", dtypes=("float32", "float64", "bfloat16")),
    _row("chunkwise--native_custbw", dtypes=("float32", "bfloat16", "float16"), differs=CONSTANT_NORMALISER),
    _row("chunkwise--triton_xl_chunk", devices=("cuda",), differs=CONSTANT_NORMALISER),
    _row("chunkwise--triton_limit_chunk", devices=("cuda",), differs=CONSTANT_NORMALISER),
    Contender("mlstm_kernels step native", "mlstm_step", "torch", _step("native"), eps=EPS),
    Contender("mlstm_kernels step triton", "mlstm_step", "torch", _step("triton"), devices=("cuda",), eps=EPS),
]
