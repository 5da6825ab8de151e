"""Calls in the layout of mlstm_kernels, ``(B, N, S, ·)``, and the specification in that layout."""

import numpy as np

import reference

ARGUMENTS = ("q", "k", "v", "i", "f")
STATES = ("c_initial", "n_initial", "m_initial")


def case(B: int, N: int, S: int, K: int, V: int, *, state: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """A call in the peer's layout, float32 values in float64 arrays; gates on both sides of the floor."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (B, N, S, K), "k": (B, N, S, K), "v": (B, N, S, V), "i": (B, N, S), "f": (B, N, S)}
    shapes |= dict(zip(STATES, ((B, N, K, V), (B, N, K), (B, N, 1)), strict=True)) if state else {}
    arrays = {name: rng.normal(size=shape).astype(np.float32).astype(np.float64) for name, shape in shapes.items()}
    return arrays | {"i": 3 * arrays["i"], "f": 3 * arrays["f"] + 2}


def specified(arrays: dict[str, np.ndarray], eps: float) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The specification in the peer's layout: h, and the state with ``m (B, N, 1)``."""
    state = None
    if "c_initial" in arrays:
        state = (arrays["c_initial"], arrays["n_initial"], arrays["m_initial"][..., 0])
    sequence_major = [arrays[name].swapaxes(1, 2) for name in ARGUMENTS]
    h, (C, n, m) = reference.mlstm(*sequence_major, initial_state=state, return_state=True, eps=eps)
    return h.swapaxes(1, 2), (C, n, m[..., None])
