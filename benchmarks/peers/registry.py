"""Every public implementation that is judged: where its adapter is, what it is held to, what was confirmed of it.

``make peers`` judges them; ``docs/peers.md`` shows what was found.
"""

from dataclasses import dataclass

ALL = ("float64", "float32", "bfloat16", "float16")
NARROW = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One public implementation of one operation.

    Attributes:
        name: as it is shown.
        target: of ``python -m conformance run``, within `benchmarks.peers`.
        package: on PyPI.
        op: of gatespec.
        framework: ``torch``, ``jax`` or ``numpy``.
        dtypes: that it takes.
        interpreted: whether it is a Triton kernel, which a CPU runs under Triton's interpreter.
        laws: those that it is held to; empty for all of the operation.
        note: what a reader has to know about how it is judged.
        confirmed: scripts of `benchmarks.peers.confirm` that show its faults without gatespec.
    """

    name: str
    target: str
    package: str
    op: str
    framework: str
    dtypes: tuple[str, ...] = ALL
    interpreted: bool = False
    laws: tuple[str, ...] = ()
    note: str = ""
    confirmed: tuple[str, ...] = ()


def _native(function: str, *confirmed: str, **fields) -> Peer:
    """Of mlstm-kernels' PyTorch part, by its own name of the function."""
    target = f"mlstm_kernels_torch:{function.replace('--', '_')}"
    return Peer(
        name=f"mlstm_kernels {function}",
        target=target,
        package="mlstm-kernels",
        op="mlstm",
        framework="torch",
        confirmed=confirmed,
        **fields,
    )


def _jax(function: str, *confirmed: str, **fields) -> Peer:
    return Peer(
        name=f"mlstm_kernels JAX {function}",
        target=f"mlstm_kernels_jax:{function.replace('--', '_')}",
        package="mlstm-kernels",
        op="mlstm",
        framework="jax",
        confirmed=confirmed,
        **fields,
    )


def _triton(function: str, attribute: str, **fields) -> Peer:
    return Peer(
        name=f"mlstm_kernels {function}",
        target=f"mlstm_kernels_triton:{attribute}",
        package="mlstm-kernels",
        op="mlstm",
        framework="torch",
        dtypes=NARROW,
        interpreted=True,
        confirmed=("mlstm_kernels_triton_normaliser", "mlstm_kernels_triton_forget_gate"),
        **fields,
    )


def _torch(name: str, target: str, package: str, op: str = "mlstm", **fields) -> Peer:
    return Peer(name=name, target=target, package=package, op=op, framework="torch", **fields)


RESET_AFTER = (
    "its reset gate stands after the product with the state, tanh(x + r⊙(h W)): the same function where H = 1, "
    "where it is judged"
)
NEIGHBOUR = "no normaliser and no stabiliser: held to the laws that need no mLSTM"
RELATIONS = ("causality", "permutation", "batch_invariance", "linearity", "determinism", "uninitialised", "memory")

PEERS: tuple[Peer, ...] = (
    _native("chunkwise--native_autograd", "mlstm_kernels_forget_gate"),
    _native(
        "chunkwise--native_custbw", "mlstm_kernels_normaliser", "mlstm_kernels_states", "mlstm_kernels_forget_gate"
    ),
    _native("parallel--native_autograd", "mlstm_kernels_forget_gate"),
    _native("parallel--native_custbw", "mlstm_kernels_normaliser", "mlstm_kernels_forget_gate"),
    _native("parallel--native_stablef_autograd"),
    _native("parallel--native_stablef_custbw", "mlstm_kernels_normaliser"),
    _native("recurrent--sequence_native", "mlstm_kernels_16_bits"),
    _torch(
        "mlstm_kernels step native",
        "mlstm_kernels_step:native",
        "mlstm-kernels",
        "mlstm_step",
        confirmed=("mlstm_kernels_16_bits",),
    ),
    _triton("chunkwise--triton_xl_chunk", "xl_chunk"),
    _triton("chunkwise--triton_limit_chunk", "limit_chunk"),
    _triton("parallel--triton_limit_headdim", "limit_headdim"),
    _torch(
        "mlstm_kernels step triton",
        "mlstm_kernels_step:triton",
        "mlstm-kernels",
        "mlstm_step",
        dtypes=NARROW,
        interpreted=True,
        note="a kernel for inference, without a gradient",
    ),
    _jax("chunkwise--native_autograd", "mlstm_kernels_jax_forget_gate"),
    _jax("parallel--native_autograd", "mlstm_kernels_jax_forget_gate"),
    _jax("parallel--native_custbw", "mlstm_kernels_jax_normaliser", dtypes=NARROW),
    _jax("parallel--native_stablef_autograd"),
    _jax("parallel--native_stablef_custbw", "mlstm_kernels_jax_normaliser", dtypes=NARROW),
    _jax("recurrent--sequence_native", "mlstm_kernels_jax_state"),
    _jax("recurrent--scan_native", "mlstm_kernels_jax_state"),
    Peer(
        name="mlstm_kernels JAX step native",
        target="mlstm_kernels_jax_step",
        package="mlstm-kernels",
        op="mlstm_step",
        framework="jax",
    ),
    _torch(
        "transformers xLSTM chunkwise",
        "transformers_xlstm:chunkwise",
        "transformers",
        confirmed=("transformers_forget_gate",),
    ),
    _torch(
        "transformers xLSTM any length",
        "transformers_xlstm:any_length",
        "transformers",
        dtypes=NARROW,
        confirmed=("transformers_bfloat16",),
    ),
    _torch(
        "transformers xLSTM recurrent",
        "transformers_xlstm:recurrent",
        "transformers",
    ),
    _torch("xlstm parallel_stabilized_simple", "xlstm_backends:parallel", "xlstm", confirmed=("xlstm_forget_gate",)),
    _torch("xlstm chunkwise_simple", "xlstm_backends:chunkwise", "xlstm", confirmed=("xlstm_forget_gate",)),
    _torch(
        "xlstm recurrent_step_stabilized_simple",
        "xlstm_backends:step",
        "xlstm",
        "mlstm_step",
        confirmed=("xlstm_step_inputs",),
    ),
    _torch(
        "fla fused_recurrent_simple_gla",
        "fla_simple_gla:fused_recurrent",
        "fla-core",
        dtypes=NARROW,
        interpreted=True,
        laws=RELATIONS,
        note=NEIGHBOUR,
    ),
    _torch("torch.nn.GRU", "torch_gru", "torch", "gru", note=RESET_AFTER),
    _torch("flashrnn vanilla GRU", "flashrnn_gru", "flashrnn", "gru", note=RESET_AFTER),
    Peer(name="flax.linen.GRUCell", target="flax_gru", package="flax", op="gru", framework="jax", note=RESET_AFTER),
    Peer(
        name="keras.layers.GRU",
        target="keras_gru",
        package="keras",
        op="gru",
        framework="jax",
        confirmed=("keras_float64",),
        note="`reset_after=False`, on Keras' JAX backend",
    ),
    Peer(
        name="ONNX Runtime GRU",
        target="onnxruntime_gru",
        package="onnxruntime",
        op="gru",
        framework="numpy",
        dtypes=("float32",),
        note="`linear_before_reset=0`; no gradient",
    ),
)
