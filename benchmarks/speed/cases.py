"""The measured cases as data, the suites that they form, and the shapes that a command line names."""

from dataclasses import dataclass

from benchmarks.speed.operations import BYTES, DIRECTIONS, TIMED, Case


def _both(op: str, *sizes: tuple[int, ...], dtype: str = "float32") -> tuple[Case, ...]:
    return tuple(Case(op, *size, dtype=dtype, direction=direction) for size in sizes for direction in DIRECTIONS)


def _gru(*sizes: tuple[int, int, int, int], dtype: str = "float32") -> tuple[Case, ...]:
    return _both("gru", *((B, S, N, H, H) for B, S, N, H in sizes), dtype=dtype)


SHAPES: dict[str, tuple[Case, ...]] = {
    "laptop": (
        *_both("mlstm", (1, 2048, 4, 128, 128), (4, 1024, 4, 64, 64)),
        Case("mlstm_step", 1, 1, 4, 64, 64, direction="forward"),
        *_gru((8, 256, 4, 64), (16, 256, 1, 256), (4, 1024, 8, 64)),
        *_both("slstm", (8, 256, 4, 64, 64), (4, 1024, 4, 128, 128)),
        *_both("gru_reset_after", (16, 256, 1, 256, 256)),
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
    "busy": (
        *(Case("gru", 1, 1000, N, H, H) for N, H in ((2, 16), (4, 64))),
        *(Case("mlstm", 1, S, 2, K, K) for S, K in ((640, 16), (4096, 32))),
        Case("mlstm", 1, 2048, 4, 128, 128),
        Case("gru", 16, 256, 1, 256, 256),
    ),
    "smoke": (
        *_both("mlstm", (1, 64, 2, 16, 16)),
        Case("mlstm_step", 1, 1, 2, 16, 16, direction="forward"),
        *_gru((2, 16, 2, 8)),
        *_both("slstm", (2, 16, 2, 8, 8)),
        *_both("gru_reset_after", (2, 16, 1, 8, 8)),
    ),
    "oracle_smoke": _both("mlstm", (1, 64, 2, 16, 16), dtype="float64"),
}
"""Groups of cases by name, for ``--shapes``: those of the goals on a laptop and on a GPU, and those of growing cost."""


@dataclass(frozen=True)
class Part:
    """One group of cases of a suite.

    Attributes:
        shapes: a group of `SHAPES`.
        peers: names of peers and yardsticks (`benchmarks.speed.rows`).
        rounds: number of rounds of interleaved timing.
        memory: whether the peak memory is measured as well.
        backends: our own backends to measure; none if only the peers are wanted.
    """

    shapes: str
    peers: tuple[str, ...]
    rounds: int
    memory: bool = False
    backends: tuple[str, ...] = ("torch", "xla")


SUITES: dict[str, tuple[Part, ...]] = {
    "cpu": (
        Part(
            "laptop",
            ("mlstm_kernels", "torch_gru", "flax_gru", "keras_gru", "flashrnn", "xlstm", "loops", "products", "fla"),
            15,
        ),
        Part("oracle", ("reference",), 3, backends=("none",)),
        Part("length", (), 3, memory=True),
        Part("batch", ("torch_gru", "flax_gru"), 5, memory=True),
        Part("head", ("torch_gru", "flax_gru"), 5, memory=True),
    ),
    "smoke": (
        Part("smoke", ("torch_gru", "loops", "products"), 3),
        Part("oracle_smoke", ("reference",), 3, backends=("none",)),
    ),
}
"""``cpu`` is the run behind the README's table; ``smoke`` runs all its parts within a minute."""


def parse(text: str) -> list[Case]:
    """The cases of a group, or of one shape in words: ``mlstm:1x2048x4x128x128:float32:both``.

    Raises:
        ValueError: the text is neither.
    """
    if text in SHAPES:
        return list(SHAPES[text])
    op, size, dtype, direction = (*text.split(":", 3), "", "", "")[:4]
    numbers = [int(word) for word in size.split("x") if word.isdecimal()]
    timed = TIMED.get(op)
    if timed is not None:
        dtype, direction = dtype or "float32", direction or timed.directions[-1]
        right = len(numbers) == len(size.split("x")) == len(timed.letters) and min(numbers) > 0
        if right and dtype in BYTES and direction in timed.directions:
            sizes = timed.sizes(dict(zip(timed.letters, numbers, strict=True)))
            return [Case(op, **sizes, dtype=dtype, direction=direction)]
    shapes = [f"{name}:{'x'.join(each.letters)}" for name, each in TIMED.items()]
    raise ValueError(
        f"{text!r} is not a shape; name a group ({', '.join(SHAPES)}) or say {', '.join(shapes[:-1])} or {shapes[-1]}, "
        f"then :dtype and :forward or :both if need be, as in mlstm:1x2048x4x128x128:float32:both"
    )
