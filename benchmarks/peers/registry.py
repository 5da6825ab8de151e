"""Every public implementation that is judged: where its adapter is, what it is held to, what was confirmed of it.

``make peers`` judges them; ``docs/peers.md`` shows what was found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.faults import BY_SCRIPT, Confirmed

NARROW = ("float32", "bfloat16", "float16")
INTERPRETED: dict[str, Any] = {"dtypes": ("float32", "float16"), "interpreted": True}
"""Triton's interpreter has no bfloat16 constants, and its products of bfloat16 blocks are wrong."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One public implementation of one operation.

    Attributes:
        name: as it is shown.
        about: what it is, for a reader who does not know it.
        target: of ``gatespec run``, within `benchmarks.peers`.
        package: on PyPI.
        op: of gatespec.
        framework: ``torch``, ``jax`` or ``numpy``.
        dtypes: that it takes; empty for those in which the suite tries each law by itself.
        interpreted: whether it is a Triton kernel, which a CPU runs under Triton's interpreter.
        laws: those that it is held to; empty for all of the operation.
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
    note: str = ""
    confirmed: tuple[Confirmed, ...] = ()


def _peer(name: str, about: str, scripts: str = "", framework: str = "torch", op: str = "gru", **fields: Any) -> Peer:
    """A peer of whose faults ``scripts`` were confirmed, named with blanks between them."""
    confirmed = tuple(BY_SCRIPT[script] for script in scripts.split())
    return Peer(name=name, about=about, framework=framework, op=op, confirmed=confirmed, **fields)


def _family(title: str, module: str, prefix: str, **shared: Any) -> Callable[..., Peer]:
    """Peers with one adapter, whose names begin with ``title``, and their scripts' names with ``prefix``."""

    def peer(name: str, about: str, scripts: str = "", attribute: str = "", **fields: Any) -> Peer:
        target = f"{module}:{attribute or name.replace('--', '_')}"
        named = " ".join(f"{prefix}_{script}" for script in scripts.split())
        return _peer(f"{title} {name}", about, named, **{"op": "mlstm", "target": target, **shared, **fields})

    return peer


_native = _family("mlstm_kernels", "mlstm_kernels_torch", "mlstm_kernels", package="mlstm-kernels")
_jax = _family("mlstm_kernels JAX", "mlstm_kernels_jax", "mlstm_kernels_jax", package="mlstm-kernels", framework="jax")
_triton = _family(
    "mlstm_kernels", "mlstm_kernels_triton", "mlstm_kernels_triton", package="mlstm-kernels", **INTERPRETED
)
_transformers = _family("transformers xLSTM", "transformers_xlstm", "transformers", package="transformers")
_xlstm = _family("xlstm", "xlstm_backends", "xlstm", package="xlstm")
_naive = _family("fla", "fla_naive", "fla", package="fla-core", dtypes=("float32", "bfloat16"))
_linear = _family(
    "transformers", "transformers_linear", "transformers", package="transformers", dtypes=("float32", "bfloat16")
)

STABLE = "all steps at once, decays summed for each pair of steps"
OWN_BACKWARD = "with a backward pass of its own"
JAX_RECURRENT = "given an initial state, it raises (`mlstm_kernels_jax_state.py` shows it), so it is judged without"
WIDE_RESULT = "it returns o in float32 whatever the dtype of the values; for 16-bit values the adapter rounds it"
RESET_AFTER: dict[str, Any] = {
    "note": "it applies the reset gate after the product with the state, tanh(x + r⊙(h W + b)), as `reset_after` does; "
    "without that option it is judged where H = 1, where both forms are the same function",
}
RELATIONS = ("causality", "permutation", "batch_invariance", "linearity", "determinism", "uninitialised", "memory")

PEERS: tuple[Peer, ...] = (
    _native(
        "chunkwise--native_autograd",
        "PyTorch, in chunks, differentiated by autograd",
        "forget_gate chunkwise_16_bits empty_step float16 vmap",
    ),
    _native(
        "chunkwise--native_custbw",
        f"PyTorch, in chunks, {OWN_BACKWARD}",
        "normaliser states chunkwise_16_bits forget_gate float16 second_derivative functional vmap",
    ),
    _native(
        "parallel--native_autograd",
        "PyTorch, all steps at once, differentiated by autograd",
        "forget_gate parallel_16_bits empty_step float16",
    ),
    _native(
        "parallel--native_custbw",
        f"PyTorch, all steps at once, {OWN_BACKWARD}",
        "normaliser forget_gate parallel_16_bits float16 second_derivative functional vmap",
    ),
    _native(
        "parallel--native_stablef_autograd",
        f"PyTorch, {STABLE}, differentiated by autograd",
        "empty_step float16 parallel_16_bits",
    ),
    _native(
        "parallel--native_stablef_custbw",
        f"PyTorch, {STABLE}, {OWN_BACKWARD}",
        "normaliser float16 parallel_16_bits second_derivative functional vmap",
    ),
    _native(
        "recurrent--sequence_native",
        "PyTorch, a loop over steps, differentiated by autograd",
        "16_bits empty_step",
    ),
    _native(
        "step native", "PyTorch, one step", "16_bits empty_step", target="mlstm_kernels_step:native", op="mlstm_step"
    ),
    _triton(
        "chunkwise--triton_xl_chunk",
        "Triton kernels for chunks of any length, with a backward pass of their own",
        "normaliser states one_head float16 forget_gate",
        "xl_chunk",
    ),
    _triton(
        "chunkwise--triton_limit_chunk",
        "Triton kernels for short chunks, with a backward pass of their own",
        "normaliser states one_head float16 forget_gate",
        "limit_chunk",
    ),
    _triton(
        "parallel--triton_limit_headdim",
        "Triton kernels for all steps at once, with a backward pass of their own",
        "normaliser float16 eps forget_gate",
        "limit_headdim",
    ),
    _triton(
        "step triton",
        "a Triton kernel for one step, without a gradient",
        "step_16_bits step_gate step_empty step_dims",
        target="mlstm_kernels_step:triton",
        op="mlstm_step",
        note="a kernel for inference, without a gradient; its source says that it fails in tests and is not for use; "
        "it has no masks for head dims that are no power of 2 (`mlstm_kernels_triton_step_dims.py` shows it)",
    ),
    _jax(
        "chunkwise--native_autograd",
        "JAX, in chunks, differentiated by JAX",
        "forget_gate chunkwise_16_bits floor",
    ),
    _jax(
        "parallel--native_autograd",
        "JAX, all steps at once, differentiated by JAX",
        "forget_gate parallel_16_bits floor",
    ),
    _jax(
        "parallel--native_custbw",
        f"JAX, all steps at once, {OWN_BACKWARD}",
        "normaliser forget_gate parallel_16_bits",
        dtypes=NARROW,
    ),
    _jax(
        "parallel--native_stablef_autograd",
        f"JAX, {STABLE}, differentiated by JAX",
        "floor parallel_16_bits",
    ),
    _jax(
        "parallel--native_stablef_custbw",
        f"JAX, {STABLE}, {OWN_BACKWARD}",
        "normaliser parallel_16_bits",
        dtypes=NARROW,
    ),
    _jax(
        "recurrent--sequence_native",
        "JAX, a Python loop over steps, differentiated by JAX, judged without initial states",
        "state floor recurrent_16_bits",
        note=f"{JAX_RECURRENT}; XLA unrolls its loop, and compiles long ones for minutes: `--max-steps 16`",
    ),
    _jax(
        "recurrent--scan_native",
        "JAX, a `lax.scan` over steps, differentiated by JAX, judged without initial states",
        "state floor scan_16_bits",
        note=f"{JAX_RECURRENT} and with `state_dtype=float32`",
    ),
    _jax("step native", "JAX, one step", "floor step_16_bits", target="mlstm_kernels_jax_step", op="mlstm_step"),
    _transformers(
        "chunkwise",
        "PyTorch, in chunks, as in its xLSTM model without `xlstm`",
        "chunkwise_16_bits forget_gate empty_step vmap",
    ),
    _transformers(
        "any length",
        "PyTorch, in chunks of 64, 32 and 16 and a loop over the other steps, as in its xLSTM model without `xlstm`",
        "bfloat16 recurrent_16_bits empty_step forget_gate vmap",
        "any_length",
        dtypes=NARROW,
        note="calls of fewer than 16 steps, as most kinds in its table are, take the loop alone",
    ),
    _transformers(
        "recurrent",
        "PyTorch, a loop over steps, as in its xLSTM model without `xlstm`",
        "recurrent_16_bits empty_step",
    ),
    _xlstm(
        "parallel_stabilized_simple",
        "PyTorch, all steps at once, differentiated by autograd",
        "forget_gate parallel_16_bits empty_step",
        "parallel",
    ),
    _xlstm(
        "chunkwise_simple",
        "PyTorch, in chunks, differentiated by autograd",
        "forget_gate empty_chunk chunkwise_16_bits empty_step vmap",
        "chunkwise",
    ),
    _xlstm(
        "recurrent_step_stabilized_simple",
        "PyTorch, one step",
        "step_inputs step_16_bits empty_step",
        "step",
        op="mlstm_step",
        note="it changes the shape of its arguments (`xlstm_step_inputs.py` shows it), so it is given copies",
    ),
    _peer(
        "fla fused_recurrent_simple_gla",
        "a Triton kernel of gated linear attention, which is the mLSTM without normaliser and stabiliser",
        target="fla_simple_gla:fused_recurrent",
        package="fla-core",
        op="mlstm",
        laws=RELATIONS,
        note="no normaliser and no stabiliser: held to the laws that need no mLSTM",
        **INTERPRETED,
    ),
    _linear(
        "gated delta rule in chunks",
        "PyTorch, in chunks, as in Qwen3-Next, Qwen3.5 and OLMo hybrid without kernels",
        "delta_decay",
        attribute="gated_chunk",
        op="gated_delta_rule",
    ),
    _linear(
        "gated delta rule by steps",
        "PyTorch, a loop over steps, as in Qwen3-Next, Qwen3.5 and OLMo hybrid without kernels",
        attribute="gated_recurrent",
        op="gated_delta_rule",
    ),
    _linear(
        "Kimi delta attention in chunks",
        "PyTorch, in chunks, as in Kimi Linear and Bailing hybrid without kernels",
        "kimi_decay",
        attribute="kimi_chunk",
        op="kimi_delta_attention",
    ),
    _linear(
        "Kimi delta attention by steps",
        "PyTorch, a loop over steps, as in Kimi Linear and Bailing hybrid without kernels",
        "kimi_vmap",
        attribute="kimi_recurrent",
        op="kimi_delta_attention",
    ),
    _linear(
        "Mamba-2 scan",
        "PyTorch, in chunks of 64, as in Mamba-2 without kernels",
        "mamba2_decay",
        attribute="mamba2",
        op="simple_gla",
        note="steps have length 1, so that A is the log decay; it returns float32, which is rounded for 16-bit values",
    ),
    _naive(
        "naive_chunk_simple_gla",
        "PyTorch, in chunks of 64, which its kernels are compared with",
        "naive_decay",
        attribute="simple_chunk",
        op="simple_gla",
        note=WIDE_RESULT,
    ),
    _naive(
        "naive_recurrent_simple_gla",
        "PyTorch, a loop over steps, which its kernels are compared with",
        attribute="simple_recurrent",
        op="simple_gla",
    ),
    _naive(
        "naive_recurrent_gla",
        "PyTorch, a loop over steps, which its kernels are compared with",
        attribute="gla_recurrent",
        op="gla",
    ),
    _naive(
        "naive_chunk_gated_delta_rule",
        "PyTorch, in chunks, which its kernels are compared with",
        "naive_decay",
        attribute="gated_chunk",
        op="gated_delta_rule",
        note=WIDE_RESULT,
    ),
    _naive(
        "naive_recurrent_gated_delta_rule",
        "PyTorch, a loop over steps, which its kernels are compared with",
        "naive_vmap",
        attribute="gated_recurrent",
        op="gated_delta_rule",
        note=WIDE_RESULT,
    ),
    _naive(
        "naive_chunk_kda",
        "PyTorch, in chunks, which its kernels are compared with",
        "naive_kda_gradient naive_decay naive_vmap",
        attribute="kda_chunk",
        op="kimi_delta_attention",
        note="chunks have the largest size up to 64 that divides the number of steps, because it takes no others",
    ),
    _naive(
        "naive_recurrent_kda",
        "PyTorch, a loop over steps, which its kernels are compared with",
        attribute="kda_recurrent",
        op="kimi_delta_attention",
    ),
    _peer(
        "xlstm sLSTM",
        "the sLSTM of the xlstm package without its CUDA kernels, a loop in PyTorch",
        "xlstm_slstm_batch",
        target="xlstm_slstm",
        package="xlstm",
        op="slstm",
    ),
    _peer(
        "flashrnn vanilla sLSTM",
        "the sLSTM of flashrnn without its CUDA kernels, in PyTorch",
        "flashrnn_slstm_batch",
        target="flashrnn_slstm",
        package="flashrnn",
        op="slstm",
    ),
    _peer(
        "torch.nn.GRU",
        "PyTorch's GRU layer",
        "torch_gru_16_bits torch_gru_vmap",
        target="torch_gru",
        package="torch",
        **RESET_AFTER,
    ),
    _peer(
        "flashrnn vanilla GRU",
        "the GRU of flashrnn without its CUDA kernels, in PyTorch",
        "flashrnn_gru_16_bits flashrnn_vmap",
        target="flashrnn_gru",
        package="flashrnn",
        **RESET_AFTER,
    ),
    _peer(
        "flax.linen.GRUCell",
        "Flax's GRU cell, scanned over steps",
        "flax_gru_16_bits",
        "jax",
        target="flax_gru",
        package="flax",
        **RESET_AFTER,
    ),
    _peer(
        "keras.layers.GRU",
        "Keras' GRU layer, run by JAX",
        "keras_float64 keras_gru_16_bits",
        "jax",
        target="keras_gru",
        package="keras",
        note="on Keras' JAX backend",
    ),
    _peer(
        "ONNX Runtime GRU",
        "the GRU operator of ONNX Runtime on a CPU, without a gradient",
        framework="numpy",
        target="onnxruntime_gru",
        package="onnxruntime",
        dtypes=("float32",),
        note="`linear_before_reset` 0 and 1; no gradient",
    ),
)
