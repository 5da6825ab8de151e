"""Calls of the mLSTM close to the largest and the smallest float32, with gradients that are representable.

Every product that ``docs/spec.md`` names is representable; a cotangent times a score or a memory is not in all calls.
"""

import numpy as np

import reference

CASES = {
    "large scores": (1e17, 1.0, 0.0, 1e7),
    "large cotangents": (1e16, 1e-3, 0.0, 1e36),
    "large values": (1.0, 1e36, 0.0, 1e-30),
    "small scores below the floor": (1e-18, 1e8, 80.0, 1.0),
}
"""The size of q and k, that of v, the input gates, and the size of the cotangent of h."""


def call(name: str) -> tuple[list[np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    """q, k, v, i, f; the cotangent of h; and the reference's gradients by name."""
    rng = np.random.default_rng(0)
    scores, values, gate, upstream = CASES[name]
    q, k = ((0.5 + rng.random((1, 40, 1, 4))) * scores for _ in range(2))
    v, dh = rng.normal(size=(1, 40, 1, 4)) * values, rng.normal(size=(1, 40, 1, 4)) * upstream
    i, f = np.full((1, 40, 1), gate), 3 + rng.normal(size=(1, 40, 1))
    *arrays, dh = (x.astype(np.float32) for x in (q, k, v, i, f, dh))
    wide = [x.astype(np.float64) for x in arrays]
    return arrays, dh, reference.mlstm_backward(*wide, dh=dh.astype(np.float64))


def worst(gradients: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest error of a gradient by its largest element; NaN where one is."""
    found = {name: np.asarray(x, np.float64) for name, x in gradients.items()}
    return float(np.max([np.abs(found[name] - x).max() / np.abs(x).max() for name, x in expected.items()]))
