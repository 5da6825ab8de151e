"""The faults of public implementations that scripts have confirmed, and which failed checks each script confirms."""

from dataclasses import dataclass
from enum import StrEnum


class Calls(StrEnum):
    """The calls in which a fault shows: the groups of the table of faults, in their order."""

    ORDINARY = "With ordinary arguments"
    EXTREME = "With large or infinite gates"
    TRANSFORMED = "Under transformations"
    NARROW = "In 16 bits alone"


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A script that shows a fault of a peer without gatespec.

    Attributes:
        script: of `benchmarks.peers.confirm`.
        calls: in which it shows.
        short: what it shows, as a clause of the sentence that sums up a peer.
        checks: a regular expression for the failed checks that it confirms, searched in `check_text`.
        cells: one for the wrong cells of the table of features that it confirms, searched in `cell_text`; None if it
            confirms none.
        always: whether it is stated of each of its peers even where no case met it: the script calls every one of them,
            and the adapter, the promises or the number of cases may keep the suite away from it.
    """

    script: str
    calls: Calls
    short: str
    checks: str
    cells: str | None = None
    always: bool = False


def check_text(law: str, dtype: str, where: str) -> str:
    """The key of a failed check: law, dtype, and the first array or exception in which it failed."""
    return f"{law} {dtype} {where}"


def cell_text(part: str, dtype: str, feature: str) -> str:
    """The key of a wrong cell: ``value`` or ``gradient``, dtype, and the feature of the calls that were tried."""
    return f"{part} {dtype} {feature}"


SHUT = r" forget gates of -(inf|1e30)$"
SHUT_GRADIENT = r"^gradient \w+ (forget|input) gates of -(inf|1e30)$"
ABOVE = r"^gradient \w+ normaliser above its floor$"
NARROW_CELLS = r"^\w+ b?float16"

CONSTANT = "the gradient treats the normaliser as a constant"
LATER_GATES = "after a very negative forget gate, later steps lose precision, and −∞ gives NaN"
EMPTY_STEP = "the gradient is NaN where the floor exp(−m) overflows, and h too where m is −∞"
STATE_16_BITS = "in 16 bits the state is rounded after each chunk"
SUMS_16_BITS = "in 16 bits weights and sums are rounded to 16 bits"
GATES_16_BITS = "in 16 bits the log of the forget gate is rounded to 16 bits"
GRU_16_BITS = "in 16 bits gates and state are rounded at each step"
FLOAT16 = "in float16 h or its gradient is wrong where the denominator of h is small"
VMAP = "`torch.vmap` raises"

MLSTM_KERNELS_TRITON_NORMALISER = Confirmed(
    script="mlstm_kernels_triton_normaliser", calls=Calls.ORDINARY, short=CONSTANT, checks=r"^gradient", cells=ABOVE
)
MLSTM_KERNELS_TRITON_FORGET_GATE = Confirmed(
    script="mlstm_kernels_triton_forget_gate", calls=Calls.EXTREME, short=LATER_GATES, checks=r"^finite", cells=SHUT
)
MLSTM_KERNELS_TRITON_STATES = Confirmed(
    script="mlstm_kernels_triton_states",
    calls=Calls.ORDINARY,
    short="n and m of the state have no gradient",
    checks=r"^(split_and_carry|floor) float32",
    cells=r"^gradient \w+ (initial state|state cotangents)$",
)
MLSTM_KERNELS_TRITON_ONE_HEAD = Confirmed(
    script="mlstm_kernels_triton_one_head",
    calls=Calls.ORDINARY,
    short="several sequences with one head are wrong where the inputs are transposed views",
    checks=r"(?!)",
    cells=r" several sequences$",
)
MLSTM_KERNELS_TRITON_EPS = Confirmed(
    script="mlstm_kernels_triton_eps",
    calls=Calls.ORDINARY,
    short="the backward pass uses eps = 1e-6, whatever eps the call gives",
    checks=r"(?!)",
    cells=r"^gradient \w+ (?!normaliser above|forget gates of -)",
)
MLSTM_KERNELS_TRITON_FLOAT16 = Confirmed(
    script="mlstm_kernels_triton_float16",
    calls=Calls.NARROW,
    short=FLOAT16,
    checks=r"(?!)",
    cells=r"^\w+ float16 large (forget|input) gates$",
)
MLSTM_KERNELS_TRITON_STEP_16_BITS = Confirmed(
    script="mlstm_kernels_triton_step_16_bits",
    calls=Calls.NARROW,
    short="in 16 bits the decay of the float32 state is rounded to 16 bits",
    checks=r"^(?!finite).* b?float16 [hCnm]$",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_TRITON_STEP_GATE = Confirmed(
    script="mlstm_kernels_triton_step_gate",
    calls=Calls.EXTREME,
    short="a forget gate below about −88 counts as −∞",
    checks=r"^(sequence|finite|shifted_gates) \w+ [Cnm]$",
    cells=SHUT,
    always=True,
)
MLSTM_KERNELS_TRITON_STEP_EMPTY = Confirmed(
    script="mlstm_kernels_triton_step_empty",
    calls=Calls.EXTREME,
    short="a forget and an input gate of −∞ together give NaN",
    checks=r"^finite \w+ h$",
    cells=r" input gates of -inf$",
    always=True,
)
MLSTM_KERNELS_TRITON_STEP_DIMS = Confirmed(
    script="mlstm_kernels_triton_step_dims",
    calls=Calls.ORDINARY,
    short="a head dim that is no power of 2 is read and written beyond its end",
    checks=r"(?!)",
    always=True,
)
MLSTM_KERNELS_FORGET_GATE = Confirmed(
    script="mlstm_kernels_forget_gate", calls=Calls.EXTREME, short=LATER_GATES, checks=r"^finite", cells=SHUT
)
MLSTM_KERNELS_NORMALISER = Confirmed(
    script="mlstm_kernels_normaliser",
    calls=Calls.ORDINARY,
    short=CONSTANT,
    checks=r"^gradient float(32|64)",
    cells=ABOVE,
)
MLSTM_KERNELS_STATES = Confirmed(
    script="mlstm_kernels_states",
    calls=Calls.ORDINARY,
    short="n and m of the state have no gradient",
    checks=r"^(split_and_carry|floor) float(32|64)",
    cells=r"^gradient float(32|64) (initial state|state cotangents)$",
)
MLSTM_KERNELS_CHUNKWISE_16_BITS = Confirmed(
    script="mlstm_kernels_chunkwise_16_bits",
    calls=Calls.NARROW,
    short=STATE_16_BITS,
    checks=r"^(?!finite).* b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_PARALLEL_16_BITS = Confirmed(
    script="mlstm_kernels_parallel_16_bits",
    calls=Calls.NARROW,
    short=SUMS_16_BITS,
    checks=r"^(value|gradient|finite) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_FLOAT16 = Confirmed(
    script="mlstm_kernels_float16",
    calls=Calls.NARROW,
    short=FLOAT16,
    checks=r"^finite float16",
    cells=r"^\w+ float16 large (forget|input) gates$",
    always=True,
)
MLSTM_KERNELS_EMPTY_STEP = Confirmed(
    script="mlstm_kernels_empty_step",
    calls=Calls.EXTREME,
    short=EMPTY_STEP,
    checks=r"^finite \w+ (gradient of [if]|h)$",
    cells=SHUT_GRADIENT,
    always=True,
)
MLSTM_KERNELS_SECOND_DERIVATIVE = Confirmed(
    script="mlstm_kernels_second_derivative",
    calls=Calls.TRANSFORMED,
    short="second derivatives are returned, but are not the derivatives of the gradient",
    checks=r"^second_derivative",
    always=True,
)
MLSTM_KERNELS_FUNCTIONAL = Confirmed(
    script="mlstm_kernels_functional",
    calls=Calls.TRANSFORMED,
    short="`torch.func.grad` raises",
    checks=r"^functional \w+ RuntimeError$",
)
MLSTM_KERNELS_VMAP = Confirmed(script="mlstm_kernels_vmap", calls=Calls.TRANSFORMED, short=VMAP, checks=r"^vmap")
MLSTM_KERNELS_16_BITS = Confirmed(
    script="mlstm_kernels_16_bits",
    calls=Calls.NARROW,
    short=GATES_16_BITS,
    checks=r"^(value|gradient|accumulation|sequence) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_FORGET_GATE = Confirmed(
    script="mlstm_kernels_jax_forget_gate", calls=Calls.EXTREME, short=LATER_GATES, checks=r"^finite", cells=SHUT
)
MLSTM_KERNELS_JAX_NORMALISER = Confirmed(
    script="mlstm_kernels_jax_normaliser",
    calls=Calls.ORDINARY,
    short=CONSTANT,
    checks=r"^gradient float32",
    cells=ABOVE,
)
MLSTM_KERNELS_JAX_STATE = Confirmed(
    script="mlstm_kernels_jax_state",
    calls=Calls.ORDINARY,
    short="an initial state raises",
    checks=r"AttributeError",
    always=True,
)
MLSTM_KERNELS_JAX_CHUNKWISE_16_BITS = Confirmed(
    script="mlstm_kernels_jax_chunkwise_16_bits",
    calls=Calls.NARROW,
    short="in 16 bits sums of log gates are rounded to 16 bits, and h has the dtype of the state",
    checks=r"^(value|gradient|split_and_carry|accumulation|dtypes) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_PARALLEL_16_BITS = Confirmed(
    script="mlstm_kernels_jax_parallel_16_bits",
    calls=Calls.NARROW,
    short=SUMS_16_BITS,
    checks=r"^(value|gradient|finite) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_RECURRENT_16_BITS = Confirmed(
    script="mlstm_kernels_jax_recurrent_16_bits",
    calls=Calls.NARROW,
    short="in 16 bits the state is kept in 16 bits",
    checks=r"^(?!finite).* b?float16 [hCnm]$",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_STEP_16_BITS = Confirmed(
    script="mlstm_kernels_jax_step_16_bits",
    calls=Calls.NARROW,
    short="in 16 bits the log of the forget gate is rounded to 16 bits, and h is returned in float32",
    checks=r"^((sequence|value|gradient|accumulation|split_and_carry) b?float16|dtypes b?float16 h$)",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_SCAN_16_BITS = Confirmed(
    script="mlstm_kernels_jax_scan_16_bits",
    calls=Calls.NARROW,
    short=GATES_16_BITS,
    checks=r"^(value|gradient) b?float16",
    cells=NARROW_CELLS,
)
MLSTM_KERNELS_JAX_FLOOR = Confirmed(
    script="mlstm_kernels_jax_floor",
    calls=Calls.EXTREME,
    short="the gradient is NaN where the denominator exp(−m) overflows or, squared, underflows",
    checks=r"^finite \w+ gradient of [qkvif]$",
    cells=r"^gradient \w+ large input gates$|" + SHUT_GRADIENT,
    always=True,
)
TRANSFORMERS_FORGET_GATE = Confirmed(
    script="transformers_forget_gate", calls=Calls.EXTREME, short=LATER_GATES, checks=r"^finite", cells=SHUT
)
TRANSFORMERS_CHUNKWISE_16_BITS = Confirmed(
    script="transformers_chunkwise_16_bits",
    calls=Calls.NARROW,
    short=STATE_16_BITS,
    checks=r"^(?!finite).* b?float16",
    cells=NARROW_CELLS,
)
TRANSFORMERS_BFLOAT16 = Confirmed(
    script="transformers_bfloat16",
    calls=Calls.NARROW,
    short="in 16 bits sequences of 64 steps or more raise",
    checks=r" b?float16 RuntimeError",
    cells=NARROW_CELLS,
)
TRANSFORMERS_RECURRENT_16_BITS = Confirmed(
    script="transformers_recurrent_16_bits",
    calls=Calls.NARROW,
    short=GATES_16_BITS,
    checks=r"^(?!finite).* b?float16 [Cnm]$",
    cells=NARROW_CELLS,
)
TRANSFORMERS_EMPTY_STEP = Confirmed(
    script="transformers_empty_step",
    calls=Calls.EXTREME,
    short=EMPTY_STEP,
    checks=r"^finite \w+ (gradient of [if]|h)$",
    cells=SHUT_GRADIENT,
    always=True,
)
TRANSFORMERS_VMAP = Confirmed(script="transformers_vmap", calls=Calls.TRANSFORMED, short=VMAP, checks=r"^vmap")
XLSTM_FORGET_GATE = Confirmed(
    script="xlstm_forget_gate", calls=Calls.EXTREME, short=LATER_GATES, checks=r"^(finite|causality)", cells=SHUT
)
XLSTM_EMPTY_CHUNK = Confirmed(
    script="xlstm_empty_chunk",
    calls=Calls.EXTREME,
    short="a chunk whose input gates are all −∞ makes the final state NaN",
    checks=r"^floor float(32|64)",
    cells=r" input gates of -inf$",
)
XLSTM_EMPTY_STEP = Confirmed(
    script="xlstm_empty_step",
    calls=Calls.EXTREME,
    short=EMPTY_STEP,
    checks=r"^finite \w+ (gradient of [if]|h)$",
    cells=SHUT_GRADIENT,
    always=True,
)
XLSTM_CHUNKWISE_16_BITS = Confirmed(
    script="xlstm_chunkwise_16_bits",
    calls=Calls.NARROW,
    short=STATE_16_BITS,
    checks=r"^(?!finite).* b?float16 [Cnm]$",
    cells=NARROW_CELLS,
)
XLSTM_PARALLEL_16_BITS = Confirmed(
    script="xlstm_parallel_16_bits",
    calls=Calls.NARROW,
    short=SUMS_16_BITS,
    checks=r"^(value|gradient) b?float16",
    cells=NARROW_CELLS,
)
XLSTM_VMAP = Confirmed(script="xlstm_vmap", calls=Calls.TRANSFORMED, short=VMAP, checks=r"^vmap")
XLSTM_STEP_INPUTS = Confirmed(
    script="xlstm_step_inputs",
    calls=Calls.ORDINARY,
    short="it changes the shape of its arguments",
    checks=r"^memory float(32|64)",
    always=True,
)
XLSTM_STEP_16_BITS = Confirmed(
    script="xlstm_step_16_bits",
    calls=Calls.NARROW,
    short="16-bit inputs with a float32 state raise",
    checks=r" b?float16 RuntimeError",
    cells=NARROW_CELLS,
)
FLASHRNN_VMAP = Confirmed(script="flashrnn_vmap", calls=Calls.TRANSFORMED, short=VMAP, checks=r"^vmap")
KERAS_FLOAT64 = Confirmed(
    script="keras_float64",
    calls=Calls.ORDINARY,
    short="in float64 tanh is computed in float32",
    checks=r"float64",
    cells=r"float64",
)
TORCH_GRU_16_BITS = Confirmed(
    script="torch_gru_16_bits", calls=Calls.NARROW, short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS
)
FLAX_GRU_16_BITS = Confirmed(
    script="flax_gru_16_bits", calls=Calls.NARROW, short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS
)
KERAS_GRU_16_BITS = Confirmed(
    script="keras_gru_16_bits", calls=Calls.NARROW, short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS
)
FLASHRNN_GRU_16_BITS = Confirmed(
    script="flashrnn_gru_16_bits", calls=Calls.NARROW, short=GRU_16_BITS, checks=r"b?float16", cells=NARROW_CELLS
)
TORCH_GRU_VMAP = Confirmed(script="torch_gru_vmap", calls=Calls.TRANSFORMED, short=VMAP, checks=r"^vmap")
