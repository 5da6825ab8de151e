"""Seeds derived from a seed: a keyed hash of the seed, of what the derived one is for, and of its number there."""

import numpy as np

MINIBATCHES, DEVICES = range(2)
"""What seeds are derived for. Seeds of one use are independent of those of the other."""


def derived_seed(seed: int, use: int, index: int) -> int:
    """A seed of 64 bits: the state of ``SeedSequence(seed, spawn_key=(use, index))``."""
    return int(np.random.SeedSequence(seed, spawn_key=(use, index)).generate_state(1, np.uint64)[0])
