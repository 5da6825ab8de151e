"""Calls in the layout of the fwbw interface."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from conformance.base.dtypes import Array
from conformance.cases._case import USUAL, Limits, register
from conformance.cases._mlstm import MLSTMCase, mlstm


@register()
@dataclass(frozen=True)
class FwbwCase:
    """A call in the layout of the fwbw interface: an `MLSTMCase` of one head, and the configuration."""

    inner: MLSTMCase
    chunk_size: int | None = 512
    return_state: bool = False
    use_initial_state: bool = False
    stabilize_correctly: bool = False
    keep: tuple[str, ...] = ("keep_gates",)
    flat_gates: bool = True

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def seed(self) -> int:
        return self.inner.seed

    @property
    def steps(self) -> int:
        return self.inner.S

    def describe(self) -> str:
        return f"{self.inner.describe()}; config {self.config()}{'' if self.flat_gates else '; gates (B, T, 1)'}"

    def config(self) -> dict[str, Any]:
        names = ("chunk_size", "return_state", "use_initial_state", "stabilize_correctly")
        config = {name: getattr(self, name) for name in names}
        return {**config, **{name: name in self.keep for name in ("keep_G", "keep_gates", "keep_M", "keep_c")}}

    def options(self) -> dict[str, Any]:
        return {"config": self.config()}

    def arrays(self, dtype: str) -> dict[str, Array]:
        arrays = self.inner.arrays(dtype)
        if not self.use_initial_state:
            arrays = {name: x for name, x in arrays.items() if name not in ("C0", "n0", "m0")}
        return {name: self._headless(name, x) for name, x in arrays.items()}

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        cotangents = self.inner.cotangent_arrays(dtype)
        names = "hCnm" if self.return_state else "h"
        return {name: self._headless(name, cotangents[name]) for name in names}

    def _headless(self, name: str, x: Array) -> Array:
        if name in "if":
            return replace(x, values=x.values[:, :, 0] if self.flat_gates else x.values)
        return replace(x, values=x.values[:, :, 0] if name in (*"qkv", "h") else x.values[:, 0])


@st.composite
def fwbw(draw: Any, limits: Limits, **fixed: Any) -> FwbwCase:
    inner = draw(mlstm(limits, N=1, eps=0.0))
    states = inner.state != "none"
    if limits.stratum == USUAL:
        options: dict[str, Any] = {
            "chunk_size": inner.chunk_size,
            "return_state": True,
            "use_initial_state": True,
            "stabilize_correctly": bool((limits.row or 0) % 2),
        }
        inner = replace(inner, chunk_size=None)
    elif limits.eager:
        # A final state is of most interest after several chunks, and most sequences are short.
        chunks = (512, None, 1, 2, 3, 7, 16, 64)
        if limits.stratum == "long":
            chunks = (64, 100)
        keep = tuple(name for name in ("keep_gates", "keep_G", "keep_M", "keep_c") if draw(st.booleans()))
        options = {
            "chunk_size": draw(st.sampled_from(chunks)),
            "return_state": draw(st.sampled_from((False, True, True, True))),
            "use_initial_state": states,
            "stabilize_correctly": draw(st.booleans()),
            "keep": keep,
            "flat_gates": draw(st.booleans()),
        }
    else:
        correct = limits.stratum != "small"
        keep = ("keep_G", "keep_M") if limits.stratum == "small" else ("keep_gates", "keep_c")
        options = {
            "chunk_size": 7 if correct else 2,
            "return_state": True,
            "use_initial_state": states,
            "stabilize_correctly": correct,
            "keep": keep,
            "flat_gates": not correct,
        }
    return replace(FwbwCase(inner, **options), **fixed)
