"""Seeds derived from a seed by a keyed hash of the seed, the use of the derived seed, and its number in that use."""

import numpy as np

MINIBATCHES, DEVICES = range(2)
"""The uses of derived seeds. Seeds of one use are independent of those of the other."""


def derived_seed(seed: int, use: int, index: int) -> int:
    """A seed of 64 bits: the state of ``SeedSequence(seed, spawn_key=(use, index))``."""
    return int(np.random.SeedSequence(seed, spawn_key=(use, index)).generate_state(1, np.uint64)[0])
