"""The operations that are timed: of each, the sizes in a shape, the work, the inputs, and how it is compared.

Everything else that names an argument, an output or an option of an operation is derived from these records and from
those in `conformance.operations`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.cases import OPTION, MLSTMCase
from conformance.operations import OPERATIONS, Argument, Output
from conformance.operations.gru import gru_case
from conformance.oracle import rescaled
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.designs import AnyDesign

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
DIRECTIONS = ("forward", "both")

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One case to time.

    Attributes:
        op: a name of `TIMED`.
        B, S, N: sequences, steps, heads (S is 1 for a step).
        K, V: head dims of the mLSTM; for an sLSTM and a GRU, both are H, and a GRU's inputs have H features per head.
        dtype: the dtype of the values.
        direction: ``forward`` as in inference, or ``both`` passes as in training.
    """

    op: str
    B: int
    S: int
    N: int
    K: int
    V: int
    dtype: str = "float32"
    direction: str = "both"

    @property
    def id(self) -> str:
        return f"{self.op} {shown_sizes(vars(self))} {self.dtype} {self.direction}"

    @property
    def H(self) -> int:
        return self.K

    @property
    def tokens(self) -> int:
        return self.B * self.S

    @property
    def flop(self) -> float:
        """Operations with nothing recomputed, per token and head, for all of them."""
        forward, backward = TIMED[self.op].flop(self)
        return self.tokens * self.N * (forward if self.direction == "forward" else forward + backward)

    @property
    def bytes(self) -> float:
        """Every input read once and every output written once in the forward pass, and again in the backward pass."""
        forward, backward = TIMED[self.op].bytes(self)
        return forward if self.direction == "forward" else forward + backward

    def arrays(self) -> dict[str, np.ndarray]:
        """Random inputs in float32, sequence-major, with the gates of a trained model, which remembers."""
        return TIMED[self.op].arrays(self)


class Timed:
    """A recurrence that is timed as a target of the suite is called: its arrays by name, its outputs as a tuple.

    Attributes:
        letters: the sizes in a shape: ``BxSxNxKxV``.
        directions: those that can be timed.
        chunk: the chunk length for which operations are counted; 0 for a step.
        returned: the outputs that a timed function returns, by their names in the suite.
        peers_precision: the tolerance of functions that are not ours.
        options: options of the operation in every timed call.
    """

    letters: str = "BSNKV"
    directions: tuple[str, ...] = DIRECTIONS
    chunk: int = 64
    returned: tuple[str, ...] = ("h",)
    peers_precision: type[Precision] = AnyDesign

    def __init__(self, name: str, record: str | None = None, **options: Any):
        self.name, self.options = name, options
        self.record = OPERATIONS[record or name]

    def sizes(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """B, S, N, K and V from the numbers in a shape, by letter."""
        given = {"S": 1, **numbers}
        H = given.pop("H", None)
        return given if H is None else {**given, "K": H, "V": H}

    def flop(self, case: Case) -> tuple[float, float]:
        """Operations per token and head in the forward and in the backward pass of a chunkwise mLSTM.

        Forward: the write to and the read from the K × V state (2KV each), and within a chunk of L steps the
        causal half of the scores and of their product with v (L(K + V)). Backward: the gradients of state, q, k and v
        (2KV each), the states again (2KV), and five products within the chunk (L(3K + 2V)).
        """
        K, V, L = case.K, case.V, min(self.chunk, case.S)
        return 4 * K * V + L * (K + V), 10 * K * V + L * (3 * K + 2 * V)

    def bytes(self, case: Case) -> tuple[float, float]:
        """Bytes read and written in the forward and in the backward pass."""
        shapes, size = self._shapes(case), BYTES[case.dtype]
        inputs = size * sum(math.prod(shape) for name, shape in shapes.items() if name not in STATES)
        values = (output for output in self.record.outputs if output.role == "value")
        outputs = size * sum(math.prod(_shape(output, case)) for output in values)
        states = 2 * 4 * sum(math.prod(shape) for name, shape in shapes.items() if name in STATES)
        return inputs + outputs + states, 2 * inputs + outputs

    def arrays(self, case: Case) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in self._shapes(case).items()}
        return {**arrays, "f": 3 + arrays["f"]}

    def drawn(self, case: Case, options: Mapping[str, Any]) -> Any:
        """The suite's case of these sizes."""
        state = "random" if any(name in STATES for name in self._shapes(case)) else "none"
        return MLSTMCase(case.B, case.S, case.N, case.K, case.V, state=state, **options)

    def prepared(self, arrays: Values) -> dict[str, np.ndarray]:
        """Arrays of the suite, as far as a timed function can take them."""
        return dict(arrays)

    def given(self, arrays: Values) -> dict[str, np.ndarray]:
        """The arrays of the suite by the names of a timed function."""
        return {each.continues or each.name: arrays[each.name] for each in self._needed()}

    def comparable(self, got: Values, expected: Values) -> dict[str, np.ndarray]:
        """The outputs of a timed function; C and n in units of the expected stabiliser m."""
        if "m" not in got:
            return dict(got)
        scaled = {name: rescaled(got[name], got["m"], expected["m"]) for name in ("C", "n")}
        return {**got, **scaled}

    def gradient(self, expected: Expected, case: Case) -> Expected:
        """The gradients of the suite by the names of a timed function."""
        return expected

    def _needed(self) -> list[Argument]:
        return [argument for argument in self.record.arguments if not argument.optional]

    def _shapes(self, case: Case) -> dict[str, tuple[int, ...]]:
        """Shapes of the required arrays, each by the name of the state that it continues, else by its own."""
        return {each.continues or each.name: _shape(each, case) for each in self._needed()}


def _shape(array: Argument | Output, case: Case) -> tuple[int, ...]:
    return tuple(getattr(case, letter) for letter in array.shape.split())


class TimedStep(Timed):
    """One step of the mLSTM, which is timed forward alone."""

    letters = "BNKV"
    directions = ("forward",)
    chunk = 0
    returned = ("h", "C", "n", "m")
    peers_precision = Precision


class TimedSLSTM(Timed):
    """An sLSTM after its input projections, which are no part of the operation."""

    letters = "BSNH"
    peers_precision = Precision

    def flop(self, case: Case) -> tuple[float, float]:
        """Four H × H products (2H² each), transposed, and the gradients of their weights."""
        return 8 * case.H**2, 16 * case.H**2

    def arrays(self, case: Case) -> dict[str, np.ndarray]:
        arrays = super().arrays(case)
        scale = np.float32(case.H**-0.5)
        return {name: scale * x if name.startswith("weight") else x for name, x in arrays.items()}

    def drawn(self, case: Case, options: Mapping[str, Any]) -> Any:
        assert self.record.stated is not None
        given: dict[str, Any] = {f"{OPTION}{name}": option for name, option in options.items()}
        return self.record.stated.kind(**{letter: getattr(case, letter) for letter in self.letters}, **given)


class TimedGRU(Timed):
    """A GRU after its input projections, which together are the work of a framework's own GRU layer.

    A timed function takes ``x``, the projections, and the weights (`grouped`). It is judged with the identity as its
    projections, so that their rounding does not count.
    """

    letters = "BSNH"
    returned = ("y",)
    peers_precision = Precision

    def flop(self, case: Case) -> tuple[float, float]:
        """Three H × H products and three projections (2H² each), transposed, and the gradients of their weights."""
        return 12 * case.K**2, 24 * case.K**2

    def bytes(self, case: Case) -> tuple[float, float]:
        size, x = BYTES[case.dtype], case.tokens * case.N * case.K
        weights = 6 * case.N * case.K**2
        forward = size * (2 * x + weights)
        return forward, forward + size * (2 * x + weights)

    def arrays(self, case: Case) -> dict[str, np.ndarray]:
        rng, N, K = np.random.default_rng(0), case.N, case.K

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        scale = 1 / np.sqrt(K)
        projections = {name: scale * normal(N, K, K) for name in PROJECTIONS}
        return {
            "x": normal(case.B, case.S, N, K),
            **projections,
            **{name: scale * normal(N, K, K) for name in WEIGHTS},
        }

    def drawn(self, case: Case, options: Mapping[str, Any]) -> Any:
        given = {f"{OPTION}{name}": option for name, option in {**self.options, **options}.items()}
        return gru_case(case.B, case.S, case.K, (case.N,) * 6, left_out=("recurrent_bias",), **given)

    def prepared(self, arrays: Values) -> dict[str, np.ndarray]:
        return {**arrays, **dict.fromkeys(INPUTS, arrays["input"])}

    def given(self, arrays: Values) -> dict[str, np.ndarray]:
        weights = {name: arrays[name] for name in WEIGHTS}
        eye = np.broadcast_to(np.eye(weights["weight"].shape[-1]), weights["weight"].shape)
        return {"x": arrays["input"], **dict.fromkeys(PROJECTIONS, eye), **weights}

    def gradient(self, expected: Expected, case: Case) -> Expected:
        """Sum the gradients of the three inputs, which share one array; each is rounded by the projection after it."""
        values, slack = (sum(each[name] for name in INPUTS) for each in (expected.values, expected.slack))
        rounding = Precision(case.dtype).operand * sum(np.abs(expected.values[name]) for name in INPUTS)
        return replace(
            expected,
            values={"x": values, **{name: expected.values[name] for name in WEIGHTS}},
            slack={"x": slack + rounding, **{name: expected.slack[name] for name in WEIGHTS}},
        )


INPUTS = tuple(each.name for each in OPERATIONS["gru"].arguments if each.name.endswith("input"))
WEIGHTS = tuple(each.name for each in OPERATIONS["gru"].arguments if each.name.endswith("weight"))
PROJECTIONS = tuple(f"{name.removesuffix('_input')}_projection" for name in INPUTS)


def grouped(arrays: Mapping[str, Any]) -> tuple[Any, list[Any], list[Any]]:
    """x, the projections and the weights of a GRU; both of the candidate, the forget gate and the reset gate."""
    return arrays["x"], [arrays[name] for name in PROJECTIONS], [arrays[name] for name in WEIGHTS]


_ALL = (
    Timed("mlstm"),
    TimedStep("mlstm_step"),
    TimedSLSTM("slstm"),
    TimedGRU("gru"),
    TimedGRU("gru_reset_after", "gru", reset_after=True),
)
TIMED: dict[str, Timed] = {each.name: each for each in _ALL}
OPS = tuple(TIMED)
STATES = {output.name for each in _ALL for output in each.record.outputs if output.role == "state"}
"""The arrays that stay in float32 if the values have a 16-bit dtype, by name."""


def shown_sizes(row: Mapping[str, Any], but: str = "") -> str:
    """The sizes of a case, or of a row of results, as ``B1 S2048 N4 K128 V128``, without the letter ``but``."""
    own = {**row, "H": row["K"]}
    letters = "BSN" + TIMED[row["op"]].letters.translate({ord(letter): None for letter in "BSN"})
    return " ".join(f"{letter}{own[letter]}" for letter in letters if letter != but)
