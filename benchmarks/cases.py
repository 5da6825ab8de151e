"""The measured cases as data: operation, shape, dtype and direction; and the least work and traffic that each needs."""

import math
from dataclasses import dataclass

import numpy as np

from conformance.operations import OPERATIONS, Argument, Output

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
DIRECTIONS = ("forward", "both")
OPS = ("mlstm", "mlstm_step", "gru")
_STATES = tuple(OPERATIONS["mlstm"].states)
CHUNK = 64
"""The chunk length for which the operations of the floor are counted."""


@dataclass(frozen=True)
class Case:
    """One case to time.

    Attributes:
        op: ``mlstm``, ``mlstm_step``, or ``gru``: the recurrence after its input projection, which together are the
            work of a framework's own GRU layer.
        B, S, N: sequences, steps, heads (S is 1 for a step).
        K, V: head dims of the mLSTM; for a GRU, both are H, and its inputs have H features per head.
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
        sizes = f"B{self.B} S{self.S} N{self.N} " + (f"H{self.K}" if self.op == "gru" else f"K{self.K} V{self.V}")
        return f"{self.op} {sizes} {self.dtype} {self.direction}"

    @property
    def tokens(self) -> int:
        return self.B * self.S

    @property
    def flop(self) -> float:
        """Operations of a chunkwise mLSTM with chunks of `CHUNK`, or of a GRU's products, with nothing recomputed.

        Forward, per token and head: the write to and the read from the K × V state (2KV each), and within the chunk the
        causal half of the scores and of their product with v (L(K + V)). Backward: the gradients of state, q, k and v
        (2KV each), the states again (2KV), and five products within the chunk (L(3K + 2V)). A GRU has three H × H
        products and three projections (6H² each), the same products transposed, and the gradients of their weights.
        """
        lanes = self.tokens * self.N
        K, V = self.K, self.V
        if self.op == "gru":
            return lanes * 12 * K * K * (1 if self.direction == "forward" else 3)
        L = min(CHUNK, self.S) if self.op == "mlstm" else 0
        forward = 4 * K * V + L * (K + V)
        backward = 10 * K * V + L * (3 * K + 2 * V)
        return lanes * (forward if self.direction == "forward" else forward + backward)

    @property
    def bytes(self) -> float:
        """Every input read once and every output written once in the forward pass, and again in the backward pass."""
        size, lanes, K = BYTES[self.dtype], self.tokens * self.N, self.K
        if self.op == "gru":
            weights = 6 * self.N * K * K * size
            forward = lanes * 2 * K * size + weights
            return forward if self.direction == "forward" else 2 * forward + lanes * 2 * K * size + weights
        record = OPERATIONS[self.op]
        inputs = size * sum(math.prod(shape) for name, shape in self._shapes().items() if name not in _STATES)
        outputs = size * sum(math.prod(self._shape(output)) for output in record.outputs if output.role == "value")
        states = 2 * 4 * sum(math.prod(shape) for name, shape in self._shapes().items() if name in _STATES)
        forward = inputs + outputs + states
        return forward if self.direction == "forward" else forward + 2 * inputs + outputs

    def arrays(self) -> dict[str, np.ndarray]:
        """Random inputs in float32 (`mlstm`: sequence-major), with the gates of a trained model, which remembers."""
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        B, S, N, K = self.B, self.S, self.N, self.K
        if self.op == "gru":
            scale = 1 / np.sqrt(K)
            names = ("weight", "forget_weight", "reset_weight")
            projections = {f"{name}_projection": scale * normal(N, K, K) for name in ("input", "forget", "reset")}
            return {"x": normal(B, S, N, K), **projections, **{name: scale * normal(N, K, K) for name in names}}
        arrays = {name: normal(*shape) for name, shape in self._shapes().items()}
        return {**arrays, "f": 3 + arrays["f"]}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the required arrays, each by the name of the state that it continues, else by its own."""
        needed = (argument for argument in OPERATIONS[self.op].arguments if not argument.optional)
        return {argument.continues or argument.name: self._shape(argument) for argument in needed}

    def _shape(self, array: Argument | Output) -> tuple[int, ...]:
        return tuple(getattr(self, letter) for letter in array.shape.split())


def _both(op: str, *sizes: tuple[int, ...], dtype: str = "float32") -> tuple[Case, ...]:
    return tuple(Case(op, *size, dtype=dtype, direction=direction) for size in sizes for direction in DIRECTIONS)


def _gru(*sizes: tuple[int, int, int, int], dtype: str = "float32") -> tuple[Case, ...]:
    return _both("gru", *((B, S, N, H, H) for B, S, N, H in sizes), dtype=dtype)


SHAPES: dict[str, tuple[Case, ...]] = {
    "laptop": (
        *_both("mlstm", (1, 2048, 4, 128, 128), (4, 1024, 4, 64, 64)),
        Case("mlstm_step", 1, 1, 4, 64, 64, direction="forward"),
        *_gru((8, 256, 4, 64), (16, 256, 1, 256), (4, 1024, 8, 64)),
    ),
    "length": tuple(Case("mlstm", 1, S, 4, 128, 128) for S in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536))
    + tuple(Case("gru", 1, S, 2, 32, 32) for S in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    "batch": tuple(Case("mlstm", B, 512, 2, 64, 64) for B in (1, 2, 4, 8, 16))
    + tuple(Case("gru", B, 256, 2, 64, 64) for B in (1, 2, 4, 8, 16, 32)),
    "head": tuple(Case("mlstm", 1, 1024, 2, K, K) for K in (16, 32, 64, 128, 256))
    + tuple(Case("gru", 8, 256, 1, H, H) for H in (16, 32, 64, 128, 256, 512)),
    "oracle": _both("mlstm", (1, 1024, 4, 64, 64), dtype="float64"),
    "gpu": (
        *_both("mlstm", *((65536 // S, S, 16, 128, 256) for S in (512, 2048, 8192, 65536)), dtype="bfloat16"),
        *(Case("mlstm_step", B, 1, 16, 128, 256, "bfloat16", "forward") for B in (1, 1024)),
        *_gru((8, 4096, 85, 16), (128, 128, 1, 256), (16, 1024, 12, 64), dtype="bfloat16"),
    ),
    "smoke": (
        *_both("mlstm", (1, 64, 2, 16, 16)),
        Case("mlstm_step", 1, 1, 2, 16, 16, direction="forward"),
        *_gru((2, 16, 2, 8)),
    ),
    "oracle_smoke": _both("mlstm", (1, 64, 2, 16, 16), dtype="float64"),
}
"""Groups of cases by name, for ``--shapes``: those of the goals on a laptop and on a GPU, and those of growing cost."""


def parse(text: str) -> list[Case]:
    """The cases of a group, or of one shape in words: ``mlstm:1x2048x4x128x128:float32:both``.

    Raises:
        ValueError: the text is neither.
    """
    if text in SHAPES:
        return list(SHAPES[text])
    op, _, rest = text.partition(":")
    size, _, rest = rest.partition(":")
    dtype, _, direction = rest.partition(":")
    try:
        sizes = [int(word) for word in size.split("x")]
    except ValueError:
        sizes = []
    expected = {"mlstm": 5, "mlstm_step": 4, "gru": 4}
    right = op in expected and len(sizes) == expected[op] and min(sizes, default=0) > 0
    dtype, direction = dtype or "float32", direction or ("forward" if op == "mlstm_step" else "both")
    if not right or dtype not in BYTES or direction not in DIRECTIONS:
        raise ValueError(
            f"{text!r} is not a shape; name a group ({', '.join(SHAPES)}) or say mlstm:BxSxNxKxV, mlstm_step:BxNxKxV "
            f"or gru:BxSxNxH, then :dtype and :forward or :both if need be, as in mlstm:1x2048x4x128x128:float32:both"
        )
    if op == "mlstm_step":
        B, N, K, V = sizes
        return [Case(op, B, 1, N, K, V, dtype, "forward")]
    if op == "gru":
        B, S, N, H = sizes
        return [Case(op, B, S, N, H, H, dtype, direction)]
    B, S, N, K, V = sizes
    return [Case(op, B, S, N, K, V, dtype, direction)]
