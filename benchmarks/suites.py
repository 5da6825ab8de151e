"""Named runs: their shapes, peers and rounds. One command measures every figure that the goals need."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One group of cases of a suite.

    Attributes:
        shapes: a group of `benchmarks.cases.SHAPES`.
        peers: names of peers and yardsticks (`benchmarks.contenders`).
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
            ("mlstm_kernels", "torch_gru", "flax_gru", "keras_gru", "flashrnn", "loops", "products", "fla"),
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
