"""Definitions in JAX, differentiated by JAX and compiled by XLA, as variants."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.base.dtypes import accumulation
from conformance.operations.slstm import SLSTM as RECORD
from tests.suite.definitions import gru_jax, mlstm_jax, slstm_jax, sums_jax

Values = dict[str, np.ndarray]
QUADRATIC = 1 << 23
"""Elements of a matrix of weights (S, S) that the parallel form takes at a time."""


@dataclass(frozen=True)
class JaxForm:
    """A definition and how it is run.

    Attributes:
        function: of `tests.suite.definitions`.
        options: that change no value, but may leave a gradient out.
        quadratic: whether it holds a matrix (S, S) for each head.
    """

    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    quadratic: bool = False

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        @partial(jax.jit, static_argnames=("call", "options"))
        def both(call: Callable[..., Any], options: tuple, arrays: dict, cotangents: dict) -> tuple:
            outputs, pull = jax.vjp(lambda x: call(self.function, x, **dict(options)), arrays)
            return outputs, pull({name: cotangents[name] for name in outputs})[0]

        return both

    def _differentiated(
        self, call: Callable[..., Any], arrays: Values, cotangents: Values, dtype: str, **options: Any
    ) -> tuple[Values, Values]:
        """Outputs and the gradients of all arrays, computed in the accumulation dtype.

        Switches JAX to 64 bits for the whole process.
        """
        jax.config.update("jax_enable_x64", True)
        kind = accumulation(dtype)
        given = ({name: jnp.asarray(x.astype(kind)) for name, x in of.items()} for of in (arrays, cotangents))
        found = self._compiled(call, tuple(sorted({**self.options, **options}.items())), *given)
        outputs, gradients = ({name: np.asarray(x) for name, x in of.items()} for of in found)
        return outputs, gradients

    def mlstm(
        self, arrays: Values, cotangents: Values, dtype: str, eps: float, floor_is_one: bool
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call with its state."""
        B, S, N = arrays["i"].shape
        few = max(1, QUADRATIC // max(1, S * S * N)) if self.quadratic else max(B, 1)
        few = next(count for count in range(min(few, max(B, 1)), 0, -1) if max(B, 1) % count == 0)
        parts = []
        for b in range(0, max(B, 1), few):
            given, dgiven = ({name: x[b : b + few] for name, x in of.items()} for of in (arrays, cotangents))
            parts.append(self._differentiated(_mlstm, given, dgiven, dtype, eps=eps, floor_is_one=floor_is_one))
        outputs, gradients = (
            {name: np.concatenate([part[at][name] for part in parts]) for name in parts[0][at]} for at in (0, 1)
        )
        return outputs, gradients

    def gru(
        self, arrays: Values, cu_seqlens: np.ndarray | None, clip: float | None, cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call."""
        assert cu_seqlens is None
        return self._differentiated(_gru, arrays, cotangents, dtype, gradient_clipping=clip)

    def slstm(
        self,
        arrays: Values,
        cu_seqlens: np.ndarray | None,
        forget_gate: str,
        clip: float | None,
        cotangents: Values,
        dtype: str,
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call."""
        assert cu_seqlens is None
        options = {"forget_gate": forget_gate, "gradient_clipping": clip}
        return self._differentiated(_slstm, arrays, cotangents, dtype, **options)

    def sums(self, arrays: Values, cotangents: Values, dtype: str) -> tuple[Values, Values]:
        """Output and gradients of a scan or a decay matrix."""
        return self._differentiated(_sums, arrays, cotangents, dtype)


def _mlstm(function: Callable[..., Any], x: dict[str, jax.Array], **options: Any) -> dict[str, jax.Array]:
    state = (x["C0"], x["n0"], x["m0"])
    h, last = function(*(x[name] for name in "qkvif"), initial_state=state, return_state=True, **options)
    return {"h": h, **dict(zip("Cnm", last, strict=True))}


def _gru(function: Callable[..., Any], x: dict[str, jax.Array], **options: Any) -> dict[str, jax.Array]:
    y, state = function(**x, **options)
    return {"y": y, "state": state}


def _slstm(function: Callable[..., Any], x: dict[str, jax.Array], **options: Any) -> dict[str, jax.Array]:
    state = tuple(x[name] for name in RECORD.state_arguments)
    h, last = function(*(x[name] for name in (*"zifo", *RECORD.weights)), initial_state=state, **options)
    return {"h": h, **dict(zip(RECORD.states, last, strict=True))}


def _sums(function: Callable[..., Any], x: dict[str, jax.Array]) -> dict[str, jax.Array]:
    by_name = [x[name] for name in ("x", "forget_gates", "igate", "fgate") if name in x]
    return {"y": function(*by_name)}


MLSTM = {
    "JAX scan, XLA": JaxForm(mlstm_jax.mlstm),
    "JAX associative scan, XLA": JaxForm(mlstm_jax.mlstm_associative),
    "JAX, all steps at once, XLA": JaxForm(mlstm_jax.mlstm_parallel, quadratic=True),
}
MLSTM_DETACHED = {"JAX scan, m detached, XLA": JaxForm(mlstm_jax.mlstm, {"detach_m": True})}
GRU = {"JAX scan, XLA": JaxForm(gru_jax.gru)}
SLSTM = {"JAX scan, XLA": JaxForm(slstm_jax.slstm)}


def sums(operation: str) -> dict[str, JaxForm]:
    forms = {"JAX, XLA": JaxForm(getattr(sums_jax, operation))}
    associative = getattr(sums_jax, f"{operation}_associative", None)
    return forms if associative is None else {**forms, "JAX associative scan, XLA": JaxForm(associative)}
