"""Decay matrices and their gradients, in the orders in which kernels add.

A column of F is a running sum of the gates below the diagonal. Gates of −∞ need care in one order only: a product with
0 or 1 cannot hold them, so the matrix form counts them apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.base.dtypes import accumulation
from conformance.operations import Operation
from tests.suite.calibration import variants_scan as scans
from tests.suite.calibration.arithmetic import log_sigmoid, sigmoid
from tests.suite.calibration.variants_scan import Scan, Values


def _below(S: int, offset: int = -1) -> np.ndarray:
    return np.tri(S, S, offset, dtype=bool)


def columns(scan: Scan, a: np.ndarray) -> np.ndarray:
    """``a_t`` below the diagonal of an (S, S) matrix, summed down its columns."""
    S = a.shape[-1]
    masked = np.where(_below(S), a[..., :, None], a.dtype.type(0))
    F = np.moveaxis(scan(np.moveaxis(masked, -2, -1)), -1, -2)
    return np.where(_below(S, 0), F, -np.inf).astype(a.dtype)


def rows(scan: Scan, a: np.ndarray) -> np.ndarray:
    """The same sums taken along the rows, from t back to j."""
    S = a.shape[-1]
    shifted = np.concatenate([a[..., 1:], np.zeros_like(a[..., :1])], axis=-1)
    masked = np.where(_below(S), shifted[..., None, :], a.dtype.type(0))
    F = scans.reversed_(scan, masked)
    return np.where(_below(S, 0), F, -np.inf).astype(a.dtype)


def product(scan: Scan, a: np.ndarray) -> np.ndarray:
    """A triangle of ones times the masked gates; −∞ among them are counted in a product of their own."""
    S = a.shape[-1]
    closed = np.isneginf(a)
    triangle = np.tri(S, S, 0, dtype=a.dtype)
    masked = np.where(_below(S), np.where(closed, a.dtype.type(0), a)[..., :, None], a.dtype.type(0))
    resets = np.where(_below(S), closed[..., :, None], False).astype(a.dtype)
    F, shut = triangle @ masked, triangle @ resets
    return np.where(_below(S, 0) & (shut == 0), F, -np.inf).astype(a.dtype)


def corner(scan: Scan, dF: np.ndarray) -> np.ndarray:
    """``Σ_{t≥s} Σ_{j<s} dF[t,j]``: along the rows first, then what is left of each column."""
    S = dF.shape[-1]
    along = scan(np.where(_below(S), dF, dF.dtype.type(0)))
    before = np.concatenate([np.zeros_like(along[..., :1]), along[..., :-1]], axis=-1)
    kept = np.where(_below(S, 0), before, dF.dtype.type(0))
    return scan(np.moveaxis(kept, -2, -1))[..., -1] if S else dF.sum(axis=-1)


def corner_by_rows(scan: Scan, dF: np.ndarray) -> np.ndarray:
    """The same, up the columns first."""
    S = dF.shape[-1]
    masked = np.where(_below(S), dF, dF.dtype.type(0))
    up = np.moveaxis(scans.reversed_(scan, np.moveaxis(masked, -2, -1)), -1, -2)
    kept = np.where(_below(S), up, dF.dtype.type(0))
    return scan(kept)[..., -1] if S else dF.sum(axis=-1)


def corner_blocks(scan: Scan, dF: np.ndarray) -> np.ndarray:
    """Each corner summed whole, with NumPy's pairwise sum."""
    S = dF.shape[-1]
    da = np.zeros(dF.shape[:-1], dF.dtype)
    for s in range(1, S):
        block = np.ascontiguousarray(dF[..., s:, :s]).reshape(*dF.shape[:-2], (S - s) * s)
        da[..., s] = block.sum(axis=-1)
    return da


@dataclass(frozen=True)
class Form:
    """How F is summed, how its gradient is, and in which order each sum adds."""

    matrix: Callable[[Scan, np.ndarray], np.ndarray]
    corner: Callable[[Scan, np.ndarray], np.ndarray]
    scan: Scan

    def answers(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        kind = accumulation(dtype)
        gates, dF = {name: x.astype(kind) for name, x in arrays.items()}, cotangents["y"].astype(kind)
        of_a = self.corner(self.scan, dF)
        if record.name == "causal_forget_matrix":
            return {"y": self.matrix(self.scan, gates["forget_gates"])}, {"forget_gates": of_a}
        F = self.matrix(self.scan, log_sigmoid(gates["fgate"][..., 0]))
        of_i = self.scan(np.moveaxis(dF, -2, -1))[..., -1] if dF.shape[-1] else dF.sum(axis=-2)
        gradients = {"igate": of_i[..., None], "fgate": sigmoid(-gates["fgate"]) * of_a[..., None]}
        return {"y": F + gates["igate"][..., 0][..., None, :]}, gradients


FORMS: Mapping[str, Form] = {
    "sequential columns": Form(columns, corner, scans.sequential),
    "sequential rows": Form(rows, corner_by_rows, scans.sequential),
    "compensated columns": Form(columns, corner, scans.compensated),
    "pairwise tree": Form(columns, corner_by_rows, scans.tree),
    "doubling rows": Form(rows, corner, scans.doubling),
    "chunkwise columns, L = 16": Form(columns, corner, scans.chunkwise(16)),
    "chunkwise rows, L = 64": Form(rows, corner_by_rows, scans.chunkwise(64)),
    "parallel, a triangle of ones": Form(product, corner_blocks, scans.sequential),
}
