"""The public implementations that are timed: a row each, over the adapters of `benchmarks.peers`.

An adapter is given as ``module`` or ``module:attribute`` of `benchmarks.peers`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed.contenders import Arrays, Contender, Function, Restriction, UnavailableError, imported
from benchmarks.speed.operations import Case, grouped

OPTIONS = {"eps": 1e-6}
"""Options of mlstm_kernels: the number that it adds to its normaliser by default."""

CONSTANT_NORMALISER = (
    "its backward pass treats the normaliser as a constant: wrong by a factor of order one unless a LayerNorm follows",
    ("both",),
)
NEIGHBOUR = (
    "a neighbour, not an mLSTM: no input gate, no normaliser and no stabiliser; it does less work",
    ("forward", "both"),
)


def _diagonal(arrays: Arrays) -> dict[str, Any]:
    return {**arrays, "weight": arrays["weight"] * np.eye(arrays["weight"].shape[-1])}


RESET_AFTER = Restriction(
    "resets after the product, so it is judged where the candidate's weight is diagonal",
    _diagonal,
    # Off the diagonal the gradients of the two forms differ.
    differs=("weight",),
)


def _adapter(name: str, package: str) -> Any:
    # The package alone is imported first, so that its absence is not taken for a fault of the adapter.
    imported("fla" if package == "flash_linear_attention" else package, package)
    module, _, attribute = name.partition(":")
    adapter = imported(f"benchmarks.peers.{module}", package)
    return getattr(adapter, attribute) if attribute else adapter


def _mlstm(name: str, package: str) -> Callable[[Case, Any], Function]:
    """A function of head-first arrays; the adapter transposes them: a view in PyTorch, and XLA removes both."""

    def load(case: Case, chunk: int) -> Function:
        adapter = _adapter(name, package)
        if case.S % chunk:
            raise UnavailableError(f"its chunk size {chunk} does not divide S = {case.S}")

        def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
            steps_first = (x.swapaxes(1, 2) for x in (q, k, v, i, f))
            return (adapter.mlstm(*steps_first, chunk_size=chunk, **OPTIONS).swapaxes(1, 2),)

        return mlstm

    return load


def _neighbour(name: str, package: str) -> Callable[[Case, Any], Function]:
    def load(case: Case, _: Any) -> Function:
        adapter = _adapter(name, package)
        return lambda q, k, v, i, f: (adapter.mlstm(q, k, v, i, f),)

    return load


def _step(name: str, package: str) -> Callable[[Case, Any], Function]:
    def load(case: Case, _: Any) -> Function:
        adapter = _adapter(name, package)

        def mlstm_step(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, ...]:
            h, state = adapter.mlstm_step(q, k, v, i, f, (C, n, m), **OPTIONS)
            return (h, *state)

        return mlstm_step

    return load


_SQUARED = 512
"""The largest S at which both passes of a loop over slices of its input are timed."""


def _slstm(name: str, package: str) -> Callable[[Case, Any], Function]:
    """A loop over slices of its input, each of whose gradients is an array of all steps."""

    def load(case: Case, _: Any) -> Function:
        if case.direction == "both" and case.S > _SQUARED:
            raise UnavailableError("both passes take time and memory that grow with S², here 20 s and more than 20 GB")
        adapter = _adapter(name, package)
        return lambda **arrays: (adapter.slstm(**arrays),)

    return load


def _gru(name: str, package: str, namespace: str) -> Callable[[Case, Any], Function]:
    """The layer with its input projections, like a framework's own GRU."""

    def load(case: Case, choice: Any) -> Function:
        adapter, stack = _adapter(name, package), imported(namespace).stack
        chosen = {} if choice is None else {"backend": choice}

        def gru(**arrays: Any) -> tuple[Any]:
            x, (of_input, of_forget, of_reset), weights = grouped(arrays)
            return (adapter.gru_layer(x, stack([of_reset, of_forget, of_input], 1), *weights, **chosen)[0],)

        return gru

    return load


def _sequence(name: str, adapter: str, **fields: Any) -> Contender:
    # Its Python loops take minutes per case on a GPU, where it has Triton kernels of its own.
    fields = {"framework": "torch", "devices": ("cpu",), "choices": (32, 64, 128, 256), **fields}
    load = _mlstm(adapter, "mlstm_kernels")
    return Contender(name=f"mlstm_kernels {name}", op="mlstm", load=load, head_first=True, options=OPTIONS, **fields)


def _one_step(name: str, adapter: str, framework: str, **fields: Any) -> Contender:
    load = _step(adapter, "mlstm_kernels")
    return Contender(
        name=f"mlstm_kernels {name}", op="mlstm_step", framework=framework, load=load, options=OPTIONS, **fields
    )


def _layer(name: str, adapter: str, package: str, framework: str, op: str = "gru", **fields: Any) -> Contender:
    load = _gru(adapter, package, "jax.numpy" if framework == "jax" else framework)
    return Contender(name=name, op=op, framework=framework, load=load, **fields)


def _loop(name: str, adapter: str, package: str) -> Contender:
    """An sLSTM in plain PyTorch, in float32."""
    load = _slstm(adapter, package)
    return Contender(name=name, op="slstm", framework="torch", load=load, devices=("cpu",), dtypes=("float32",))


_TRITON = {"devices": ("cuda",), "choices": (64, 128, 256), "differs": CONSTANT_NORMALISER}
CONTENDERS: dict[str, list[Contender]] = {
    "mlstm_kernels": [
        _sequence(
            "native_autograd",
            "mlstm_kernels_torch:chunkwise_native_autograd",
            dtypes=("float32", "float64", "bfloat16"),
        ),
        _sequence(
            "native_custbw",
            "mlstm_kernels_torch:chunkwise_native_custbw",
            dtypes=("float32", "bfloat16", "float16"),
            differs=CONSTANT_NORMALISER,
        ),
        _sequence("triton_xl_chunk", "mlstm_kernels_triton:xl_chunk", **_TRITON),
        _sequence("triton_limit_chunk", "mlstm_kernels_triton:limit_chunk", **_TRITON),
        _sequence(
            "JAX native_autograd",
            "mlstm_kernels_jax:chunkwise_native_autograd",
            framework="jax",
            devices=("cpu", "cuda"),
            # Shorter chunks are unrolled, take minutes to compile and are not faster (64: within 2 %).
            choices=(128, 256),
        ),
        _one_step("JAX step native", "mlstm_kernels_jax_step", "jax"),
        _one_step("step native", "mlstm_kernels_step:native", "torch"),
        _one_step("step triton", "mlstm_kernels_step:triton", "torch", devices=("cuda",)),
    ],
    "fla": [
        Contender(
            name="fla simple_gla",
            op="mlstm",
            framework="torch",
            load=_neighbour("fla_simple_gla:chunk", "flash_linear_attention"),
            devices=("cuda",),
            differs=NEIGHBOUR,
        )
    ],
    "torch_gru": [
        _layer(
            "torch.nn.GRU",
            "torch_gru",
            "torch",
            "torch",
            dtypes=("float32", "float64", "bfloat16"),
            restriction=RESET_AFTER,
        ),
        _layer(
            "torch.nn.GRU",
            "torch_gru",
            "torch",
            "torch",
            "gru_reset_after",
            dtypes=("float32", "float64", "bfloat16"),
        ),
    ],
    "flax_gru": [_layer("flax.linen.GRUCell", "flax_gru", "flax", "jax", restriction=RESET_AFTER)],
    "keras_gru": [_layer("keras.layers.GRU", "keras_gru", "keras", "jax")],
    "xlstm": [_loop("xlstm vanilla", "xlstm_slstm", "xlstm")],
    "flashrnn": [
        _loop("flashrnn vanilla", "flashrnn_slstm", "flashrnn"),
        *(
            _layer(
                f"flashrnn {name}",
                "flashrnn_gru",
                "flashrnn",
                "torch",
                devices=(device,),
                dtypes=(dtype,),
                choices=backends,
                restriction=RESET_AFTER,
            )
            for name, device, dtype, backends in (
                ("vanilla", "cpu", "float32", ("vanilla",)),
                ("fused", "cuda", "bfloat16", ("cuda", "triton_fused")),
            )
        ),
    ],
}
"""The public implementations by the names that ``--peers`` takes."""
