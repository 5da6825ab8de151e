"""mlstm-kernels (NX-AI): PyTorch and JAX on a CPU and a GPU, Triton on a GPU. Head-first, eps = 1e-6."""

import importlib
import sys
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


def _in_jax(module: str) -> Any:
    """A module of its JAX part that uses no Triton, though its package imports Triton's beside it.

    Without jax-triton the package fails on import, when what is asked for has been loaded.
    """
    name = f"mlstm_kernels.jax.{module}"
    imported("mlstm_kernels.jax", "mlstm_kernels")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "jax_triton" and name in sys.modules:
            return sys.modules[name]
        raise UnavailableError(f"mlstm_kernels' JAX part does not import here: {error}") from error


def _sequence_in_jax(case: Case, chunk: int) -> Function:
    function = _in_jax("chunkwise.native").mlstm_chunkwise__native_autograd
    if case.S % chunk:
        raise UnavailableError(f"its chunk size {chunk} does not divide S = {case.S}")

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        return (function(q, k, v, i, f, eps=EPS, chunk_size=chunk),)

    return mlstm


def _step_in_jax(case: Case, _: Any) -> Function:
    function = _in_jax("recurrent.native_step").mlstm_recurrent_step__native

    def mlstm_step(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, ...]:
        h, state = function(q, k, v, i[..., None], f[..., None], C, n, m[..., None], eps=EPS)
        return (h, state[0], state[1], state[2][..., 0])

    return mlstm_step


def _row(kernel: str, **fields: Any) -> Contender:
    chunks = (64, 128, 256) if "triton" in kernel else (32, 64, 128, 256)
    # Its loops in Python take minutes a case on a GPU, beside its own Triton kernels.
    fields.setdefault("devices", ("cpu",))
    name = f"mlstm_kernels {kernel.partition('--')[2]}"
    return Contender(name, "mlstm", "torch", _sequence(kernel), choices=chunks, head_first=True, eps=EPS, **fields)


CONTENDERS = [
    _row("chunkwise--native_autograd", dtypes=("float32", "float64", "bfloat16")),
    _row("chunkwise--native_custbw", dtypes=("float32", "bfloat16", "float16"), differs=CONSTANT_NORMALISER),
    _row("chunkwise--triton_xl_chunk", devices=("cuda",), differs=CONSTANT_NORMALISER),
    _row("chunkwise--triton_limit_chunk", devices=("cuda",), differs=CONSTANT_NORMALISER),
    Contender(
        "mlstm_kernels JAX native_autograd",
        "mlstm",
        "jax",
        _sequence_in_jax,
        # Shorter chunks, unrolled, take minutes to compile and are no faster (64: within 2 %).
        choices=(128, 256),
        head_first=True,
        eps=EPS,
    ),
    Contender("mlstm_kernels JAX step native", "mlstm_step", "jax", _step_in_jax, eps=EPS),
    Contender("mlstm_kernels step native", "mlstm_step", "torch", _step("native"), eps=EPS),
    Contender("mlstm_kernels step triton", "mlstm_step", "torch", _step("triton"), devices=("cuda",), eps=EPS),
]
