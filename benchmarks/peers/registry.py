"""Every public implementation that is judged: where its adapter is, what it is held to, what was confirmed of it.

``make peers`` judges them; ``docs/peers.md`` shows what was found.
"""

from dataclasses import dataclass

from benchmarks.peers import faults

NARROW = ("float32", "bfloat16", "float16")
# Triton's interpreter has no bfloat16 constants, and its products of bfloat16 blocks are wrong.
INTERPRETED = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One public implementation of one operation.

    Attributes:
        name: as it is shown.
        about: what it is, for a reader who does not know it.
        target: of ``python -m conformance run``, within `benchmarks.peers`.
        package: on PyPI.
        op: of gatespec.
        framework: ``torch``, ``jax`` or ``numpy``.
        dtypes: that it takes; empty for those in which the suite tries each law by itself.
        interpreted: whether it is a Triton kernel, which a CPU runs under Triton's interpreter.
        laws: those that it is held to; empty for all of the operation.
        promises: what it asks of its callers: cases are drawn within.
        note: what a reader has to know about how it is judged.
        confirmed: what of its faults was shown without gatespec; of several that fit a failed check, the first counts.
    """

    name: str
    about: str
    target: str
    package: str
    op: str
    framework: str
    dtypes: tuple[str, ...] = ()
    interpreted: bool = False
    laws: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()
    note: str = ""
    confirmed: tuple[faults.Confirmed, ...] = ()


def _native(function: str, about: str, *confirmed: faults.Confirmed, **fields) -> Peer:
    """A peer from the PyTorch part of mlstm-kernels, by its own name of the function."""
    target = f"mlstm_kernels_torch:{function.replace('--', '_')}"
    return Peer(
        name=f"mlstm_kernels {function}",
        about=about,
        target=target,
        package="mlstm-kernels",
        op="mlstm",
        framework="torch",
        confirmed=confirmed,
        **fields,
    )


def _jax(function: str, about: str, *confirmed: faults.Confirmed, **fields) -> Peer:
    return Peer(
        name=f"mlstm_kernels JAX {function}",
        about=about,
        target=f"mlstm_kernels_jax:{function.replace('--', '_')}",
        package="mlstm-kernels",
        op="mlstm",
        framework="jax",
        confirmed=confirmed,
        **fields,
    )


def _triton(function: str, about: str, attribute: str, *confirmed: faults.Confirmed, **fields) -> Peer:
    return Peer(
        name=f"mlstm_kernels {function}",
        about=about,
        target=f"mlstm_kernels_triton:{attribute}",
        package="mlstm-kernels",
        op="mlstm",
        framework="torch",
        dtypes=INTERPRETED,
        interpreted=True,
        confirmed=(faults.MLSTM_KERNELS_TRITON_NORMALISER, *confirmed, faults.MLSTM_KERNELS_TRITON_FORGET_GATE),
        **fields,
    )


def _torch(name: str, about: str, target: str, package: str, op: str = "mlstm", **fields) -> Peer:
    return Peer(name=name, about=about, target=target, package=package, op=op, framework="torch", **fields)


JAX_RECURRENT = "given an initial state, it raises (`mlstm_kernels_jax_state.py` shows it), so it is judged without"
RESET_AFTER = (
    "it applies the reset gate after the product with the state, tanh(x + r⊙(h W)), which is the same function where "
    "H = 1"
)
CHUNKS = ("chunk_size == None or S % chunk_size == 0",)
WITHOUT_CHUNKS = ("not chunk_size",)
WITHOUT_STATES = ("not chunk_size", "not initial_state")
BLOCKS = ("S in (16, 32, 64)", "K in (16, 32, 64)", "V in (16, 32, 64)")
NEIGHBOUR = "no normaliser and no stabiliser: held to the laws that need no mLSTM"
RELATIONS = ("causality", "permutation", "batch_invariance", "linearity", "determinism", "uninitialised", "memory")

PEERS: tuple[Peer, ...] = (
    _native(
        "chunkwise--native_autograd",
        "PyTorch, in chunks, differentiated by autograd",
        faults.MLSTM_KERNELS_FORGET_GATE,
        faults.MLSTM_KERNELS_CHUNKWISE_16_BITS,
        faults.MLSTM_KERNELS_EMPTY_STEP,
        faults.MLSTM_KERNELS_FLOAT16,
        faults.MLSTM_KERNELS_VMAP,
        promises=CHUNKS,
    ),
    _native(
        "chunkwise--native_custbw",
        "PyTorch, in chunks, with a backward pass of its own",
        faults.MLSTM_KERNELS_NORMALISER,
        faults.MLSTM_KERNELS_STATES,
        faults.MLSTM_KERNELS_CHUNKWISE_16_BITS,
        faults.MLSTM_KERNELS_FORGET_GATE,
        faults.MLSTM_KERNELS_FLOAT16,
        faults.MLSTM_KERNELS_SECOND_DERIVATIVE,
        faults.MLSTM_KERNELS_FUNCTIONAL,
        faults.MLSTM_KERNELS_VMAP,
        promises=CHUNKS,
    ),
    _native(
        "parallel--native_autograd",
        "PyTorch, all steps at once, differentiated by autograd",
        faults.MLSTM_KERNELS_FORGET_GATE,
        faults.MLSTM_KERNELS_PARALLEL_16_BITS,
        faults.MLSTM_KERNELS_EMPTY_STEP,
        faults.MLSTM_KERNELS_FLOAT16,
        promises=WITHOUT_STATES,
    ),
    _native(
        "parallel--native_custbw",
        "PyTorch, all steps at once, with a backward pass of its own",
        faults.MLSTM_KERNELS_NORMALISER,
        faults.MLSTM_KERNELS_FORGET_GATE,
        faults.MLSTM_KERNELS_PARALLEL_16_BITS,
        faults.MLSTM_KERNELS_FLOAT16,
        faults.MLSTM_KERNELS_SECOND_DERIVATIVE,
        faults.MLSTM_KERNELS_FUNCTIONAL,
        faults.MLSTM_KERNELS_VMAP,
        promises=WITHOUT_STATES,
    ),
    _native(
        "parallel--native_stablef_autograd",
        "PyTorch, all steps at once, decays summed for each pair of steps, differentiated by autograd",
        faults.MLSTM_KERNELS_EMPTY_STEP,
        faults.MLSTM_KERNELS_FLOAT16,
        faults.MLSTM_KERNELS_PARALLEL_16_BITS,
        promises=WITHOUT_STATES,
    ),
    _native(
        "parallel--native_stablef_custbw",
        "PyTorch, all steps at once, decays summed for each pair of steps, with a backward pass of its own",
        faults.MLSTM_KERNELS_NORMALISER,
        faults.MLSTM_KERNELS_FLOAT16,
        faults.MLSTM_KERNELS_PARALLEL_16_BITS,
        faults.MLSTM_KERNELS_SECOND_DERIVATIVE,
        faults.MLSTM_KERNELS_FUNCTIONAL,
        faults.MLSTM_KERNELS_VMAP,
        promises=WITHOUT_STATES,
    ),
    _native(
        "recurrent--sequence_native",
        "PyTorch, a loop over steps, differentiated by autograd",
        faults.MLSTM_KERNELS_16_BITS,
        faults.MLSTM_KERNELS_EMPTY_STEP,
        promises=WITHOUT_CHUNKS,
    ),
    _torch(
        "mlstm_kernels step native",
        "PyTorch, one step",
        "mlstm_kernels_step:native",
        "mlstm-kernels",
        "mlstm_step",
        confirmed=(faults.MLSTM_KERNELS_16_BITS, faults.MLSTM_KERNELS_EMPTY_STEP),
    ),
    _triton(
        "chunkwise--triton_xl_chunk",
        "Triton kernels for chunks of any length, with a backward pass of their own",
        "xl_chunk",
        faults.MLSTM_KERNELS_TRITON_STATES,
        faults.MLSTM_KERNELS_TRITON_ONE_HEAD,
        faults.MLSTM_KERNELS_TRITON_FLOAT16,
        promises=BLOCKS,
    ),
    _triton(
        "chunkwise--triton_limit_chunk",
        "Triton kernels for short chunks, with a backward pass of their own",
        "limit_chunk",
        faults.MLSTM_KERNELS_TRITON_STATES,
        faults.MLSTM_KERNELS_TRITON_ONE_HEAD,
        faults.MLSTM_KERNELS_TRITON_FLOAT16,
        promises=BLOCKS,
    ),
    _triton(
        "parallel--triton_limit_headdim",
        "Triton kernels for all steps at once, with a backward pass of their own",
        "limit_headdim",
        faults.MLSTM_KERNELS_TRITON_FLOAT16,
        faults.MLSTM_KERNELS_TRITON_EPS,
        promises=("S % 64 == 0", "S > 0", "K == 64", "V == 64", *WITHOUT_STATES),
    ),
    _torch(
        "mlstm_kernels step triton",
        "a Triton kernel for one step, without a gradient",
        "mlstm_kernels_step:triton",
        "mlstm-kernels",
        "mlstm_step",
        dtypes=INTERPRETED,
        interpreted=True,
        promises=("K in (16, 32, 64)", "V in (16, 32, 64)"),
        confirmed=(
            faults.MLSTM_KERNELS_TRITON_STEP_16_BITS,
            faults.MLSTM_KERNELS_TRITON_STEP_GATE,
            faults.MLSTM_KERNELS_TRITON_STEP_EMPTY,
            faults.MLSTM_KERNELS_TRITON_STEP_DIMS,
        ),
        note="a kernel for inference, without a gradient; its source says that it fails in tests and is not for use; "
        "it has no masks for head dims that are no power of 2 (`mlstm_kernels_triton_step_dims.py` shows it)",
    ),
    _jax(
        "chunkwise--native_autograd",
        "JAX, in chunks, differentiated by JAX",
        faults.MLSTM_KERNELS_JAX_FORGET_GATE,
        faults.MLSTM_KERNELS_JAX_CHUNKWISE_16_BITS,
        faults.MLSTM_KERNELS_JAX_FLOOR,
        promises=CHUNKS,
    ),
    _jax(
        "parallel--native_autograd",
        "JAX, all steps at once, differentiated by JAX",
        faults.MLSTM_KERNELS_JAX_FORGET_GATE,
        faults.MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        faults.MLSTM_KERNELS_JAX_FLOOR,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "parallel--native_custbw",
        "JAX, all steps at once, with a backward pass of its own",
        faults.MLSTM_KERNELS_JAX_NORMALISER,
        faults.MLSTM_KERNELS_JAX_FORGET_GATE,
        faults.MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        dtypes=NARROW,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "parallel--native_stablef_autograd",
        "JAX, all steps at once, decays summed for each pair of steps, differentiated by JAX",
        faults.MLSTM_KERNELS_JAX_FLOOR,
        faults.MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "parallel--native_stablef_custbw",
        "JAX, all steps at once, decays summed for each pair of steps, with a backward pass of its own",
        faults.MLSTM_KERNELS_JAX_NORMALISER,
        faults.MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        dtypes=NARROW,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "recurrent--sequence_native",
        "JAX, a Python loop over steps, differentiated by JAX, judged without initial states",
        faults.MLSTM_KERNELS_JAX_STATE,
        faults.MLSTM_KERNELS_JAX_FLOOR,
        faults.MLSTM_KERNELS_JAX_RECURRENT_16_BITS,
        promises=(*WITHOUT_STATES, "S <= 16"),
        note=JAX_RECURRENT + "; XLA unrolls its loop, and compiles long ones for minutes",
    ),
    _jax(
        "recurrent--scan_native",
        "JAX, a `lax.scan` over steps, differentiated by JAX, judged without initial states",
        faults.MLSTM_KERNELS_JAX_STATE,
        faults.MLSTM_KERNELS_JAX_FLOOR,
        faults.MLSTM_KERNELS_JAX_SCAN_16_BITS,
        promises=WITHOUT_STATES,
        note=JAX_RECURRENT + " and with `state_dtype=float32`",
    ),
    Peer(
        name="mlstm_kernels JAX step native",
        about="JAX, one step",
        target="mlstm_kernels_jax_step",
        package="mlstm-kernels",
        op="mlstm_step",
        framework="jax",
        confirmed=(faults.MLSTM_KERNELS_JAX_FLOOR, faults.MLSTM_KERNELS_JAX_STEP_16_BITS),
    ),
    _torch(
        "transformers xLSTM chunkwise",
        "PyTorch, in chunks, as in its xLSTM model without `xlstm`",
        "transformers_xlstm:chunkwise",
        "transformers",
        promises=CHUNKS,
        confirmed=(
            faults.TRANSFORMERS_CHUNKWISE_16_BITS,
            faults.TRANSFORMERS_FORGET_GATE,
            faults.TRANSFORMERS_EMPTY_STEP,
            faults.TRANSFORMERS_VMAP,
        ),
    ),
    _torch(
        "transformers xLSTM any length",
        "PyTorch, in chunks of 64, 32 and 16 and a loop over the other steps, as in its xLSTM model without `xlstm`",
        "transformers_xlstm:any_length",
        "transformers",
        dtypes=NARROW,
        note="calls of fewer than 16 steps, as most kinds in its table are, take the loop alone",
        confirmed=(
            faults.TRANSFORMERS_BFLOAT16,
            faults.TRANSFORMERS_RECURRENT_16_BITS,
            faults.TRANSFORMERS_EMPTY_STEP,
            faults.TRANSFORMERS_FORGET_GATE,
            faults.TRANSFORMERS_VMAP,
        ),
    ),
    _torch(
        "transformers xLSTM recurrent",
        "PyTorch, a loop over steps, as in its xLSTM model without `xlstm`",
        "transformers_xlstm:recurrent",
        "transformers",
        promises=WITHOUT_CHUNKS,
        confirmed=(faults.TRANSFORMERS_RECURRENT_16_BITS, faults.TRANSFORMERS_EMPTY_STEP),
    ),
    _torch(
        "xlstm parallel_stabilized_simple",
        "PyTorch, all steps at once, differentiated by autograd",
        "xlstm_backends:parallel",
        "xlstm",
        promises=WITHOUT_STATES,
        confirmed=(faults.XLSTM_FORGET_GATE, faults.XLSTM_PARALLEL_16_BITS, faults.XLSTM_EMPTY_STEP),
    ),
    _torch(
        "xlstm chunkwise_simple",
        "PyTorch, in chunks, differentiated by autograd",
        "xlstm_backends:chunkwise",
        "xlstm",
        promises=("V == K", *CHUNKS),
        confirmed=(
            faults.XLSTM_FORGET_GATE,
            faults.XLSTM_EMPTY_CHUNK,
            faults.XLSTM_CHUNKWISE_16_BITS,
            faults.XLSTM_EMPTY_STEP,
            faults.XLSTM_VMAP,
        ),
    ),
    _torch(
        "xlstm recurrent_step_stabilized_simple",
        "PyTorch, one step",
        "xlstm_backends:step",
        "xlstm",
        "mlstm_step",
        promises=("V == K",),
        confirmed=(faults.XLSTM_STEP_INPUTS, faults.XLSTM_STEP_16_BITS, faults.XLSTM_EMPTY_STEP),
        note="it changes the shape of its arguments (`xlstm_step_inputs.py` shows it), so it is given copies",
    ),
    _torch(
        "fla fused_recurrent_simple_gla",
        "a Triton kernel of gated linear attention, which is the mLSTM without normaliser and stabiliser",
        "fla_simple_gla:fused_recurrent",
        "fla-core",
        dtypes=INTERPRETED,
        interpreted=True,
        laws=RELATIONS,
        note=NEIGHBOUR,
    ),
    _torch(
        "torch.nn.GRU",
        "PyTorch's GRU layer, judged at H = 1, where its formula is that of the specification",
        "torch_gru",
        "torch",
        "gru",
        confirmed=(faults.TORCH_GRU_16_BITS, faults.TORCH_GRU_VMAP),
        promises=("H == 1",),
        note=RESET_AFTER,
    ),
    _torch(
        "flashrnn vanilla GRU",
        "the GRU of flashrnn without its CUDA kernels, in PyTorch, judged at H = 1, where its formula is that of the "
        "specification",
        "flashrnn_gru",
        "flashrnn",
        "gru",
        promises=("H == 1",),
        confirmed=(faults.FLASHRNN_GRU_16_BITS, faults.FLASHRNN_VMAP),
        note=RESET_AFTER,
    ),
    Peer(
        name="flax.linen.GRUCell",
        about="Flax's GRU cell, scanned over steps, judged at H = 1, where its formula is that of the specification",
        target="flax_gru",
        package="flax",
        confirmed=(faults.FLAX_GRU_16_BITS,),
        op="gru",
        framework="jax",
        promises=("H == 1",),
        note=RESET_AFTER,
    ),
    Peer(
        name="keras.layers.GRU",
        about="Keras' GRU layer, run by JAX",
        target="keras_gru",
        package="keras",
        op="gru",
        framework="jax",
        confirmed=(faults.KERAS_FLOAT64, faults.KERAS_GRU_16_BITS),
        note="`reset_after=False`, on Keras' JAX backend",
    ),
    Peer(
        name="ONNX Runtime GRU",
        about="the GRU operator of ONNX Runtime on a CPU, without a gradient",
        target="onnxruntime_gru",
        package="onnxruntime",
        op="gru",
        framework="numpy",
        dtypes=("float32",),
        note="`linear_before_reset=0`; no gradient",
    ),
)
