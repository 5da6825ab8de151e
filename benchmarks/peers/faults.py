"""The faults of public implementations that scripts have confirmed, and which failed checks each script confirms."""

from dataclasses import dataclass
from enum import StrEnum


class Calls(StrEnum):
    """The calls in which a fault shows: the groups of the table of faults, in their order."""

    ORDINARY = "With ordinary arguments"
    EXTREME = "With large or infinite gates"
    TRANSFORMED = "Under transformations"
    NARROW = "In 16 bits alone"


@dataclass(frozen=True)
class Confirmed:
    """A script that shows a fault of a peer without gatespec.

    Attributes:
        script: of `benchmarks.peers.confirm`.
        calls: in which it shows.
        short: what it shows, as a clause of the sentence that sums up a peer.
        checks: a regular expression for the failed checks that it confirms, searched in `check_text`.
        cells: one for the wrong cells of the table of features that it confirms, searched in `cell_text`.
        always: whether it is stated of each of its peers even where no case met it: the script calls every one of them,
            and the adapter or the number of cases may keep the suite away from it.
    """

    script: str
    calls: Calls
    short: str
    checks: str
    cells: str
    always: bool


def check_text(law: str, dtype: str, where: str) -> str:
    """The key of a failed check: law, dtype, and the first array or exception in which it failed."""
    return f"{law} {dtype} {where}"


def cell_text(part: str, dtype: str, feature: str) -> str:
    """The key of a wrong cell: ``value`` or ``gradient``, dtype, and the feature of the calls that were tried."""
    return f"{part} {dtype} {feature}"


def _shown(
    scripts: str, calls: Calls, short: str, checks: str = r"(?!)", cells: str = r"(?!)", always: bool = False
) -> list[Confirmed]:
    """The same fault, shown by each of ``scripts``; without an expression, it confirms no check or no cell."""
    return [Confirmed(script, calls, short, checks, cells, always) for script in scripts.split()]


ORDINARY, EXTREME, TRANSFORMED, NARROW = Calls
SHUT = r" forget gates of -(inf|1e30)$"
SHUT_GRADIENT = r"^gradient \w+ (forget|input) gates of -(inf|1e30)$"
ABOVE = r"^gradient \w+ normaliser above its floor$"
CELLS_16_BITS = r"^\w+ b?float16"
FLOAT16_CELLS = r"^\w+ float16 large (forget|input) gates$"
NO_FINITE = r"^(?!finite).* b?float16"

CONSTANT = "the gradient treats the normaliser as a constant"
STATE_GRADIENT = "n and m of the state have no gradient"
LATER_GATES = "after a very negative forget gate, later steps lose precision, and −∞ gives NaN"
LATER_DECAYS = "after a very negative log decay, later steps lose precision, and −∞ gives NaN"
STATE_16_BITS = "in 16 bits the state is rounded after each chunk"
SUMS_16_BITS = "in 16 bits weights and sums are rounded to 16 bits"
GATES_16_BITS = "in 16 bits the log of the forget gate is rounded to 16 bits"
FLOAT16 = "in float16 h or its gradient is wrong where the denominator of h is small"

FAULTS = (
    # mLSTM, several packages
    *_shown("mlstm_kernels_triton_normaliser", ORDINARY, CONSTANT, r"^gradient", ABOVE),
    *_shown(
        "mlstm_kernels_normaliser mlstm_kernels_jax_normaliser", ORDINARY, CONSTANT, r"^gradient float(32|64)", ABOVE
    ),
    *_shown(
        "mlstm_kernels_forget_gate mlstm_kernels_triton_forget_gate mlstm_kernels_jax_forget_gate "
        "transformers_forget_gate",
        *(EXTREME, LATER_GATES, r"^finite", SHUT),
    ),
    *_shown("xlstm_forget_gate", EXTREME, LATER_GATES, r"^(finite|causality)", SHUT),
    *_shown(
        "mlstm_kernels_empty_step transformers_empty_step xlstm_empty_step",
        *(EXTREME, "the gradient is NaN where the floor exp(−m) overflows, and h too where m is −∞"),
        *(r"^finite \w+ (gradient of [if]|h)$", SHUT_GRADIENT, True),
    ),
    *_shown(
        "mlstm_kernels_chunkwise_16_bits transformers_chunkwise_16_bits",
        NARROW,
        STATE_16_BITS,
        NO_FINITE,
        CELLS_16_BITS,
    ),
    *_shown("xlstm_chunkwise_16_bits", NARROW, STATE_16_BITS, NO_FINITE + r" [Cnm]$", CELLS_16_BITS),
    *_shown(
        "mlstm_kernels_parallel_16_bits mlstm_kernels_jax_parallel_16_bits",
        *(NARROW, SUMS_16_BITS, r"^(value|gradient|finite) b?float16", CELLS_16_BITS),
    ),
    *_shown("xlstm_parallel_16_bits", NARROW, SUMS_16_BITS, r"^(value|gradient) b?float16", CELLS_16_BITS),
    *_shown("mlstm_kernels_jax_scan_16_bits", NARROW, GATES_16_BITS, r"^(value|gradient) b?float16", CELLS_16_BITS),
    *_shown(
        "mlstm_kernels_16_bits",
        *(NARROW, GATES_16_BITS, r"^(value|gradient|accumulation|sequence) b?float16", CELLS_16_BITS),
    ),
    *_shown("transformers_recurrent_16_bits", NARROW, GATES_16_BITS, NO_FINITE + r" [Cnm]$", CELLS_16_BITS),
    *_shown(
        "mlstm_kernels_vmap transformers_vmap transformers_kimi_vmap fla_naive_vmap xlstm_vmap flashrnn_vmap "
        "torch_gru_vmap",
        *(TRANSFORMED, "`torch.vmap` raises", r"^vmap"),
    ),
    # mlstm_kernels in PyTorch
    *_shown(
        "mlstm_kernels_states",
        *(ORDINARY, STATE_GRADIENT, r"^(split_and_carry|floor) float(32|64)"),
        r"^gradient float(32|64) (initial state|state cotangents)$",
    ),
    *_shown("mlstm_kernels_float16", NARROW, FLOAT16, r"^finite float16", FLOAT16_CELLS, always=True),
    *_shown(
        "mlstm_kernels_second_derivative",
        *(TRANSFORMED, "second derivatives are returned, but are not the derivatives of the gradient"),
        *(r"^second_derivative", r"(?!)", True),
    ),
    *_shown("mlstm_kernels_functional", TRANSFORMED, "`torch.func.grad` raises", r"^functional \w+ RuntimeError$"),
    # mlstm_kernels' Triton kernels
    *_shown(
        "mlstm_kernels_triton_states",
        *(ORDINARY, STATE_GRADIENT, r"^(split_and_carry|floor) float32"),
        r"^gradient \w+ (initial state|state cotangents)$",
    ),
    *_shown(
        "mlstm_kernels_triton_one_head",
        *(ORDINARY, "several sequences with one head are wrong where the inputs are transposed views"),
        cells=r" several sequences$",
    ),
    *_shown(
        "mlstm_kernels_triton_eps",
        *(ORDINARY, "the backward pass uses eps = 1e-6, whatever eps the call gives"),
        cells=r"^gradient \w+ (?!normaliser above|forget gates of -)",
    ),
    *_shown("mlstm_kernels_triton_float16", NARROW, FLOAT16, cells=FLOAT16_CELLS),
    *_shown(
        "mlstm_kernels_triton_step_16_bits",
        *(NARROW, "in 16 bits the decay of the float32 state is rounded to 16 bits", NO_FINITE + r" [hCnm]$"),
        CELLS_16_BITS,
    ),
    *_shown(
        "mlstm_kernels_triton_step_gate",
        *(EXTREME, "a forget gate below about −88 counts as −∞"),
        *(r"^(sequence|finite|shifted_gates) \w+ [Cnm]$", SHUT, True),
    ),
    *_shown(
        "mlstm_kernels_triton_step_empty",
        *(EXTREME, "a forget and an input gate of −∞ together give NaN"),
        *(r"^finite \w+ h$", r" input gates of -inf$", True),
    ),
    *_shown(
        "mlstm_kernels_triton_step_dims",
        *(ORDINARY, "a head dim that is no power of 2 is read and written beyond its end"),
        always=True,
    ),
    # mlstm_kernels in JAX
    *_shown("mlstm_kernels_jax_state", ORDINARY, "an initial state raises", r"AttributeError", always=True),
    *_shown(
        "mlstm_kernels_jax_chunkwise_16_bits",
        *(NARROW, "in 16 bits sums of log gates are rounded to 16 bits, and h has the dtype of the state"),
        *(r"^(value|gradient|split_and_carry|accumulation|dtypes) b?float16", CELLS_16_BITS),
    ),
    *_shown(
        "mlstm_kernels_jax_recurrent_16_bits",
        *(NARROW, "in 16 bits the state is kept in 16 bits", NO_FINITE + r" [hCnm]$", CELLS_16_BITS),
    ),
    *_shown(
        "mlstm_kernels_jax_step_16_bits",
        *(NARROW, "in 16 bits the log of the forget gate is rounded to 16 bits, and h is returned in float32"),
        r"^((sequence|value|gradient|accumulation|split_and_carry) b?float16|dtypes b?float16 h$)",
        CELLS_16_BITS,
    ),
    *_shown(
        "mlstm_kernels_jax_floor",
        *(EXTREME, "the gradient is NaN where the denominator exp(−m) overflows or, squared, underflows"),
        *(r"^finite \w+ gradient of [qkvif]$", r"^gradient \w+ large input gates$|" + SHUT_GRADIENT, True),
    ),
    # transformers, xlstm
    *_shown(
        "transformers_bfloat16",
        *(NARROW, "in 16 bits sequences of 64 steps or more raise", r" b?float16 RuntimeError", CELLS_16_BITS),
    ),
    *_shown(
        "xlstm_empty_chunk",
        *(EXTREME, "a chunk whose input gates are all −∞ makes the final state NaN"),
        *(r"^floor float(32|64)", r" input gates of -inf$"),
    ),
    *_shown(
        "xlstm_step_inputs",
        *(ORDINARY, "it changes the shape of its arguments", r"^memory float(32|64)", r"(?!)", True),
    ),
    *_shown(
        "xlstm_step_16_bits",
        *(NARROW, "16-bit inputs with a float32 state raise", r" b?float16 RuntimeError", CELLS_16_BITS),
    ),
    # linear attention and the delta rule
    *_shown(
        "transformers_delta_decay transformers_kimi_decay transformers_mamba2_decay fla_naive_decay",
        *(EXTREME, LATER_DECAYS, r"^(finite|causality)", r" (infinite|large) gates$", True),
    ),
    *_shown(
        "fla_naive_kda_gradient",
        *(EXTREME, "the gradient is NaN where the log decays of a chunk add up to less than −88"),
        *(r"^finite \w+ gradient of", r"^gradient \w+ (infinite|large) gates$", True),
    ),
    # sLSTMs
    *_shown(
        "xlstm_slstm_batch",
        *(EXTREME, "an empty memory with a small input gate gives NaN in a batch where another memory is not empty"),
        *(r"^first_write", r"(?!)", True),
    ),
    *_shown(
        "flashrnn_slstm_batch",
        *(ORDINARY, "h of an empty memory is wrong in a batch where another memory is not empty"),
        *(r"^first_write", r"(?!)", True),
    ),
    # GRUs
    *_shown("keras_float64", ORDINARY, "in float64 tanh is computed in float32", r"float64", r"float64"),
    *_shown(
        "torch_gru_16_bits flax_gru_16_bits keras_gru_16_bits flashrnn_gru_16_bits",
        *(NARROW, "in 16 bits gates and state are rounded at each step", r"b?float16", CELLS_16_BITS),
    ),
)
BY_SCRIPT = {each.script: each for each in FAULTS}
