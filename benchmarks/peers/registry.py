"""Every public implementation that is judged: where its adapter is, what it is held to, what was confirmed of it.

``make peers`` judges them; ``docs/peers.md`` shows what was found.
"""

from dataclasses import dataclass

NARROW = ("float32", "bfloat16", "float16")
# Triton's interpreter has no bfloat16 constants, and its products of bfloat16 blocks are wrong.
INTERPRETED = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A script that shows a fault of a peer without gatespec.

    Attributes:
        script: of `benchmarks.peers.confirm`.
        short: what it shows, as a clause of the sentence that sums up a peer.
        checks: a regular expression for the failed checks that it confirms, searched in `check_text`.
        cells: one for the wrong cells of the table of features that it confirms, searched in `cell_text`; None if it
            confirms none.
    """

    script: str
    short: str
    checks: str
    cells: str | None = None


def check_text(law: str, dtype: str, where: str) -> str:
    """The key of a failed check: law, dtype, and the first array or exception in which it failed."""
    return f"{law} {dtype} {where}"


def cell_text(part: str, dtype: str, feature: str) -> str:
    """The key of a wrong cell: ``value`` or ``gradient``, dtype, and the feature of the calls that were tried."""
    return f"{part} {dtype} {feature}"


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
    confirmed: tuple[Confirmed, ...] = ()


def _native(function: str, about: str, *confirmed: Confirmed, **fields) -> Peer:
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


def _jax(function: str, about: str, *confirmed: Confirmed, **fields) -> Peer:
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


def _triton(function: str, about: str, attribute: str, *confirmed: Confirmed, **fields) -> Peer:
    return Peer(
        name=f"mlstm_kernels {function}",
        about=about,
        target=f"mlstm_kernels_triton:{attribute}",
        package="mlstm-kernels",
        op="mlstm",
        framework="torch",
        dtypes=INTERPRETED,
        interpreted=True,
        confirmed=(MLSTM_KERNELS_TRITON_NORMALISER, *confirmed, MLSTM_KERNELS_TRITON_FORGET_GATE),
        **fields,
    )


def _torch(name: str, about: str, target: str, package: str, op: str = "mlstm", **fields) -> Peer:
    return Peer(name=name, about=about, target=target, package=package, op=op, framework="torch", **fields)


SHUT = r" forget gates of -(inf|1e30)$"
SHUT_GRADIENT = r"^gradient \w+ (forget|input) gates of -(inf|1e30)$"
ABOVE = r"^gradient \w+ normaliser above its floor$"
NARROW_CELLS = r"^\w+ b?float16"

CONSTANT = "the gradient treats the normaliser as a constant"
LATER_GATES = "a very negative forget gate takes digits from later gates, and −∞ gives NaN"
EMPTY_STEP = "the gradient is NaN where a step forgets all and writes next to nothing"
STATE_16_BITS = "in 16 bits the state is rounded after each chunk"
SUMS_16_BITS = "in 16 bits weights and sums are rounded to 16 bits too"
GATES_16_BITS = "in 16 bits the log of the forget gate is rounded to 16 bits"
GRU_16_BITS = "in 16 bits gates and state are rounded at each step"
FLOAT16 = "in float16 h or its gradient is wrong where the denominator of h is small"
VMAP = "`torch.vmap` raises"

MLSTM_KERNELS_TRITON_NORMALISER = Confirmed(
    script="mlstm_kernels_triton_normaliser", short=CONSTANT, checks=r"^gradient", cells=ABOVE
)
MLSTM_KERNELS_TRITON_FORGET_GATE = Confirmed(
    script="mlstm_kernels_triton_forget_gate", short=LATER_GATES, checks=r"^finite", cells=SHUT
)
MLSTM_KERNELS_TRITON_STATES = Confirmed(
    script="mlstm_kernels_triton_states",
    short="n and m of the state have no gradient",
    checks=r"^(split_and_carry|floor) float32",
    cells=r"^gradient \w+ (initial state|state cotangents)$",
)
MLSTM_KERNELS_TRITON_ONE_HEAD = Confirmed(
    script="mlstm_kernels_triton_one_head",
    short="several sequences with one head are wrong where the inputs are transposed views",
    checks=r"(?!)",
    cells=r" several sequences$",
)
MLSTM_KERNELS_TRITON_EPS = Confirmed(
    script="mlstm_kernels_triton_eps",
    short="the backward pass takes eps = 1e-6, whatever eps is given",
    checks=r"(?!)",
    cells=r"^gradient \w+ (?!normaliser above|forget gates of -)",
)
MLSTM_KERNELS_TRITON_FLOAT16 = Confirmed(
    script="mlstm_kernels_triton_float16",
    short=FLOAT16,
    checks=r"(?!)",
    cells=r"^\w+ float16 large (forget|input) gates$",
)
MLSTM_KERNELS_TRITON_STEP_16_BITS = Confirmed(
    script="mlstm_kernels_triton_step_16_bits",
    short="in 16 bits the decay of the float32 state is rounded to 16 bits",
    checks=r"^(?!finite).* b?float16 [hCnm]$",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_TRITON_STEP_GATE = Confirmed(
    script="mlstm_kernels_triton_step_gate",
    short="a forget gate below about −88 counts as −∞",
    checks=r"^(sequence|finite|shifted_gates) \w+ [Cnm]$",
    cells=SHUT,
)
MLSTM_KERNELS_TRITON_STEP_EMPTY = Confirmed(
    script="mlstm_kernels_triton_step_empty",
    short="a forget and an input gate of −∞ together give NaN",
    checks=r"^finite \w+ h$",
    cells=r" input gates of -inf$",
)
# What it shows is outside the promises: no check fails of it.
MLSTM_KERNELS_TRITON_STEP_DIMS = Confirmed(
    script="mlstm_kernels_triton_step_dims",
    short="a head dim that is no power of 2 is read and written beyond its end",
    checks=r"(?!)",
)
MLSTM_KERNELS_FORGET_GATE = Confirmed(
    script="mlstm_kernels_forget_gate", short=LATER_GATES, checks=r"^finite", cells=SHUT
)
MLSTM_KERNELS_NORMALISER = Confirmed(
    script="mlstm_kernels_normaliser", short=CONSTANT, checks=r"^gradient float(32|64)", cells=ABOVE
)
MLSTM_KERNELS_STATES = Confirmed(
    script="mlstm_kernels_states",
    short="n and m of the state have no gradient",
    checks=r"^(split_and_carry|floor) float(32|64)",
    cells=r"^gradient float(32|64) (initial state|state cotangents)$",
)
MLSTM_KERNELS_CHUNKWISE_16_BITS = Confirmed(
    script="mlstm_kernels_chunkwise_16_bits", short=STATE_16_BITS, checks=r"^(?!finite).* b?float16", cells=NARROW_CELLS
)
MLSTM_KERNELS_PARALLEL_16_BITS = Confirmed(
    script="mlstm_kernels_parallel_16_bits",
    short=SUMS_16_BITS,
    checks=r"^(value|gradient|finite) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_FLOAT16 = Confirmed(
    script="mlstm_kernels_float16",
    short=FLOAT16,
    checks=r"^finite float16",
    cells=r"^\w+ float16 large (forget|input) gates$",
)
MLSTM_KERNELS_EMPTY_STEP = Confirmed(
    script="mlstm_kernels_empty_step", short=EMPTY_STEP, checks=r"^finite \w+ gradient of i", cells=SHUT_GRADIENT
)
MLSTM_KERNELS_SECOND_DERIVATIVE = Confirmed(
    script="mlstm_kernels_second_derivative",
    short="second derivatives are returned, but not those of the gradient",
    checks=r"^second_derivative",
)
MLSTM_KERNELS_FUNCTIONAL = Confirmed(
    script="mlstm_kernels_functional", short="`torch.func.grad` raises", checks=r"^functional \w+ RuntimeError$"
)
MLSTM_KERNELS_VMAP = Confirmed(script="mlstm_kernels_vmap", short=VMAP, checks=r"^vmap")
MLSTM_KERNELS_16_BITS = Confirmed(
    script="mlstm_kernels_16_bits",
    short=GATES_16_BITS,
    checks=r"^(value|gradient|accumulation|sequence) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_FORGET_GATE = Confirmed(
    script="mlstm_kernels_jax_forget_gate", short=LATER_GATES, checks=r"^finite", cells=SHUT
)
MLSTM_KERNELS_JAX_NORMALISER = Confirmed(
    script="mlstm_kernels_jax_normaliser", short=CONSTANT, checks=r"^gradient float32", cells=ABOVE
)
MLSTM_KERNELS_JAX_STATE = Confirmed(
    script="mlstm_kernels_jax_state", short="an initial state raises", checks=r"AttributeError"
)
MLSTM_KERNELS_JAX_PARALLEL_16_BITS = Confirmed(
    script="mlstm_kernels_jax_parallel_16_bits",
    short=SUMS_16_BITS,
    checks=r"^(value|gradient|finite) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_RECURRENT_16_BITS = Confirmed(
    script="mlstm_kernels_jax_recurrent_16_bits",
    short="in 16 bits the state is kept in 16 bits",
    checks=r"^(?!finite).* b?float16 [hCnm]$",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_STEP_16_BITS = Confirmed(
    script="mlstm_kernels_jax_step_16_bits",
    short="in 16 bits the log of the forget gate is rounded to 16 bits, and h is returned in float32",
    checks=r"^((sequence|value|gradient|accumulation|split_and_carry) b?float16|dtypes b?float16 h$)",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_SCAN_16_BITS = Confirmed(
    script="mlstm_kernels_jax_scan_16_bits",
    short=GATES_16_BITS,
    checks=r"^(value|gradient) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_FLOOR = Confirmed(
    script="mlstm_kernels_jax_floor",
    short="the gradient is NaN where the denominator exp(−m) overflows or, squared, underflows",
    checks=r"^finite \w+ gradient of [qkvif]$",
    cells=r"^gradient \w+ large input gates$|" + SHUT_GRADIENT,
)
TRANSFORMERS_FORGET_GATE = Confirmed(
    script="transformers_forget_gate", short=LATER_GATES, checks=r"^finite", cells=SHUT
)
TRANSFORMERS_CHUNKWISE_16_BITS = Confirmed(
    script="transformers_chunkwise_16_bits", short=STATE_16_BITS, checks=r"^(?!finite).* b?float16", cells=NARROW_CELLS
)
TRANSFORMERS_BFLOAT16 = Confirmed(
    script="transformers_bfloat16",
    short="in 16 bits sequences of 64 steps or more raise",
    checks=r" b?float16 RuntimeError",
    cells=NARROW_CELLS,
)
TRANSFORMERS_RECURRENT_16_BITS = Confirmed(
    script="transformers_recurrent_16_bits",
    short=GATES_16_BITS,
    checks=r"^(?!finite).* b?float16 [Cnm]$",
    cells=NARROW_CELLS,
)
TRANSFORMERS_EMPTY_STEP = Confirmed(
    script="transformers_empty_step", short=EMPTY_STEP, checks=r"^finite \w+ gradient of i", cells=SHUT_GRADIENT
)
TRANSFORMERS_VMAP = Confirmed(script="transformers_vmap", short=VMAP, checks=r"^vmap")
XLSTM_FORGET_GATE = Confirmed(script="xlstm_forget_gate", short=LATER_GATES, checks=r"^(finite|causality)", cells=SHUT)
XLSTM_EMPTY_CHUNK = Confirmed(
    script="xlstm_empty_chunk",
    short="a chunk whose input gates are all −∞ makes the final state NaN",
    checks=r"^floor float(32|64)",
    cells=r" input gates of -inf$",
)
XLSTM_CHUNKWISE_16_BITS = Confirmed(
    script="xlstm_chunkwise_16_bits", short=STATE_16_BITS, checks=r"^(?!finite).* b?float16 [Cnm]$", cells=NARROW_CELLS
)
XLSTM_PARALLEL_16_BITS = Confirmed(
    script="xlstm_parallel_16_bits", short=SUMS_16_BITS, checks=r"^(value|gradient) b?float16", cells=NARROW_CELLS
)
XLSTM_VMAP = Confirmed(script="xlstm_vmap", short=VMAP, checks=r"^vmap")
XLSTM_STEP_INPUTS = Confirmed(
    script="xlstm_step_inputs", short="it changes the shape of its arguments", checks=r"^memory float(32|64)"
)
XLSTM_STEP_16_BITS = Confirmed(
    script="xlstm_step_16_bits",
    short="16-bit inputs with a float32 state raise",
    checks=r" b?float16 RuntimeError",
    cells=NARROW_CELLS,
)
FLASHRNN_VMAP = Confirmed(script="flashrnn_vmap", short=VMAP, checks=r"^vmap")
KERAS_FLOAT64 = Confirmed(
    script="keras_float64", short="in float64 tanh is computed in float32", checks=r"float64", cells=r"float64"
)
TORCH_GRU_16_BITS = Confirmed(script="torch_gru_16_bits", short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS)
FLAX_GRU_16_BITS = Confirmed(script="flax_gru_16_bits", short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS)
KERAS_GRU_16_BITS = Confirmed(script="keras_gru_16_bits", short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS)
FLASHRNN_GRU_16_BITS = Confirmed(
    script="flashrnn_gru_16_bits", short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS
)
TORCH_GRU_VMAP = Confirmed(script="torch_gru_vmap", short=VMAP, checks=r"^vmap")

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
        MLSTM_KERNELS_CHUNKWISE_16_BITS,
        MLSTM_KERNELS_FORGET_GATE,
        MLSTM_KERNELS_VMAP,
        promises=CHUNKS,
    ),
    _native(
        "chunkwise--native_custbw",
        "PyTorch, in chunks, with a backward pass of its own",
        MLSTM_KERNELS_NORMALISER,
        MLSTM_KERNELS_STATES,
        MLSTM_KERNELS_CHUNKWISE_16_BITS,
        MLSTM_KERNELS_FORGET_GATE,
        MLSTM_KERNELS_SECOND_DERIVATIVE,
        MLSTM_KERNELS_FUNCTIONAL,
        MLSTM_KERNELS_VMAP,
        promises=CHUNKS,
    ),
    _native(
        "parallel--native_autograd",
        "PyTorch, all steps at once, differentiated by autograd",
        MLSTM_KERNELS_FORGET_GATE,
        MLSTM_KERNELS_PARALLEL_16_BITS,
        promises=WITHOUT_STATES,
    ),
    _native(
        "parallel--native_custbw",
        "PyTorch, all steps at once, with a backward pass of its own",
        MLSTM_KERNELS_NORMALISER,
        MLSTM_KERNELS_FORGET_GATE,
        MLSTM_KERNELS_PARALLEL_16_BITS,
        MLSTM_KERNELS_SECOND_DERIVATIVE,
        MLSTM_KERNELS_FUNCTIONAL,
        MLSTM_KERNELS_VMAP,
        promises=WITHOUT_STATES,
    ),
    _native(
        "parallel--native_stablef_autograd",
        "PyTorch, all steps at once, decays summed for each pair of steps, differentiated by autograd",
        MLSTM_KERNELS_EMPTY_STEP,
        MLSTM_KERNELS_FLOAT16,
        MLSTM_KERNELS_PARALLEL_16_BITS,
        promises=WITHOUT_STATES,
    ),
    _native(
        "parallel--native_stablef_custbw",
        "PyTorch, all steps at once, decays summed for each pair of steps, with a backward pass of its own",
        MLSTM_KERNELS_NORMALISER,
        MLSTM_KERNELS_FLOAT16,
        MLSTM_KERNELS_PARALLEL_16_BITS,
        MLSTM_KERNELS_SECOND_DERIVATIVE,
        MLSTM_KERNELS_FUNCTIONAL,
        MLSTM_KERNELS_VMAP,
        promises=WITHOUT_STATES,
    ),
    _native(
        "recurrent--sequence_native",
        "PyTorch, a loop over steps, differentiated by autograd",
        MLSTM_KERNELS_16_BITS,
        MLSTM_KERNELS_EMPTY_STEP,
        promises=WITHOUT_CHUNKS,
    ),
    _torch(
        "mlstm_kernels step native",
        "PyTorch, one step",
        "mlstm_kernels_step:native",
        "mlstm-kernels",
        "mlstm_step",
        confirmed=(MLSTM_KERNELS_16_BITS,),
    ),
    _triton(
        "chunkwise--triton_xl_chunk",
        "Triton kernels for chunks of any length, with a backward pass of their own",
        "xl_chunk",
        MLSTM_KERNELS_TRITON_STATES,
        MLSTM_KERNELS_TRITON_ONE_HEAD,
        MLSTM_KERNELS_TRITON_FLOAT16,
        promises=BLOCKS,
    ),
    _triton(
        "chunkwise--triton_limit_chunk",
        "Triton kernels for short chunks, with a backward pass of their own",
        "limit_chunk",
        MLSTM_KERNELS_TRITON_STATES,
        MLSTM_KERNELS_TRITON_ONE_HEAD,
        MLSTM_KERNELS_TRITON_FLOAT16,
        promises=BLOCKS,
    ),
    _triton(
        "parallel--triton_limit_headdim",
        "Triton kernels for all steps at once, with a backward pass of their own",
        "limit_headdim",
        MLSTM_KERNELS_TRITON_FLOAT16,
        MLSTM_KERNELS_TRITON_EPS,
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
            MLSTM_KERNELS_TRITON_STEP_16_BITS,
            MLSTM_KERNELS_TRITON_STEP_GATE,
            MLSTM_KERNELS_TRITON_STEP_EMPTY,
            MLSTM_KERNELS_TRITON_STEP_DIMS,
        ),
        note="a kernel for inference, without a gradient; its source says that it fails in tests and is not for use; "
        "it has no masks for head dims that are no power of 2 (`mlstm_kernels_triton_step_dims.py` shows it)",
    ),
    _jax(
        "chunkwise--native_autograd",
        "JAX, in chunks, differentiated by JAX",
        MLSTM_KERNELS_JAX_FLOOR,
        MLSTM_KERNELS_JAX_FORGET_GATE,
        promises=CHUNKS,
    ),
    _jax(
        "parallel--native_autograd",
        "JAX, all steps at once, differentiated by JAX",
        MLSTM_KERNELS_JAX_FLOOR,
        MLSTM_KERNELS_JAX_FORGET_GATE,
        MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "parallel--native_custbw",
        "JAX, all steps at once, with a backward pass of its own",
        MLSTM_KERNELS_JAX_NORMALISER,
        MLSTM_KERNELS_JAX_FORGET_GATE,
        MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        dtypes=NARROW,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "parallel--native_stablef_autograd",
        "JAX, all steps at once, decays summed for each pair of steps, differentiated by JAX",
        MLSTM_KERNELS_JAX_FLOOR,
        MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "parallel--native_stablef_custbw",
        "JAX, all steps at once, decays summed for each pair of steps, with a backward pass of its own",
        MLSTM_KERNELS_JAX_NORMALISER,
        MLSTM_KERNELS_JAX_PARALLEL_16_BITS,
        dtypes=NARROW,
        promises=WITHOUT_STATES,
    ),
    _jax(
        "recurrent--sequence_native",
        "JAX, a Python loop over steps, differentiated by JAX, judged without initial states",
        MLSTM_KERNELS_JAX_STATE,
        MLSTM_KERNELS_JAX_FLOOR,
        MLSTM_KERNELS_JAX_RECURRENT_16_BITS,
        promises=(*WITHOUT_STATES, "S <= 16"),
        note=JAX_RECURRENT + "; XLA unrolls its loop, and compiles long ones for minutes",
    ),
    _jax(
        "recurrent--scan_native",
        "JAX, a `lax.scan` over steps, differentiated by JAX, judged without initial states",
        MLSTM_KERNELS_JAX_STATE,
        MLSTM_KERNELS_JAX_FLOOR,
        MLSTM_KERNELS_JAX_SCAN_16_BITS,
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
        confirmed=(MLSTM_KERNELS_JAX_STEP_16_BITS,),
    ),
    _torch(
        "transformers xLSTM chunkwise",
        "PyTorch, in chunks, as in its xLSTM model without `xlstm`",
        "transformers_xlstm:chunkwise",
        "transformers",
        promises=CHUNKS,
        confirmed=(TRANSFORMERS_CHUNKWISE_16_BITS, TRANSFORMERS_FORGET_GATE, TRANSFORMERS_VMAP),
    ),
    _torch(
        "transformers xLSTM any length",
        "PyTorch, in chunks of 64, 32 and 16 and a loop over the other steps, as in its xLSTM model without `xlstm`",
        "transformers_xlstm:any_length",
        "transformers",
        dtypes=NARROW,
        note="calls of fewer than 16 steps, as most kinds in its table are, take the loop alone",
        confirmed=(
            TRANSFORMERS_BFLOAT16,
            TRANSFORMERS_RECURRENT_16_BITS,
            TRANSFORMERS_EMPTY_STEP,
            TRANSFORMERS_FORGET_GATE,
            TRANSFORMERS_VMAP,
        ),
    ),
    _torch(
        "transformers xLSTM recurrent",
        "PyTorch, a loop over steps, as in its xLSTM model without `xlstm`",
        "transformers_xlstm:recurrent",
        "transformers",
        promises=WITHOUT_CHUNKS,
        confirmed=(TRANSFORMERS_RECURRENT_16_BITS, TRANSFORMERS_EMPTY_STEP),
    ),
    _torch(
        "xlstm parallel_stabilized_simple",
        "PyTorch, all steps at once, differentiated by autograd",
        "xlstm_backends:parallel",
        "xlstm",
        promises=WITHOUT_STATES,
        confirmed=(XLSTM_FORGET_GATE, XLSTM_PARALLEL_16_BITS),
    ),
    _torch(
        "xlstm chunkwise_simple",
        "PyTorch, in chunks, differentiated by autograd",
        "xlstm_backends:chunkwise",
        "xlstm",
        promises=("V == K", *CHUNKS),
        confirmed=(XLSTM_FORGET_GATE, XLSTM_EMPTY_CHUNK, XLSTM_CHUNKWISE_16_BITS, XLSTM_VMAP),
    ),
    _torch(
        "xlstm recurrent_step_stabilized_simple",
        "PyTorch, one step",
        "xlstm_backends:step",
        "xlstm",
        "mlstm_step",
        promises=("V == K",),
        confirmed=(XLSTM_STEP_INPUTS, XLSTM_STEP_16_BITS),
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
        "PyTorch's GRU layer, judged at H = 1",
        "torch_gru",
        "torch",
        "gru",
        confirmed=(TORCH_GRU_16_BITS, TORCH_GRU_VMAP),
        promises=("H == 1",),
        note=RESET_AFTER,
    ),
    _torch(
        "flashrnn vanilla GRU",
        "the GRU of flashrnn without its CUDA kernels, in PyTorch, judged at H = 1",
        "flashrnn_gru",
        "flashrnn",
        "gru",
        promises=("H == 1",),
        confirmed=(FLASHRNN_GRU_16_BITS, FLASHRNN_VMAP),
        note=RESET_AFTER,
    ),
    Peer(
        name="flax.linen.GRUCell",
        about="Flax's GRU cell, scanned over steps, judged at H = 1",
        target="flax_gru",
        package="flax",
        confirmed=(FLAX_GRU_16_BITS,),
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
        confirmed=(KERAS_FLOAT64, KERAS_GRU_16_BITS),
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
