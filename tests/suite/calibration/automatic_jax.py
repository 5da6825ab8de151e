"""Definitions in JAX, differentiated by JAX and compiled by XLA, as variants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.base.dtypes import accumulation
from conformance.operations import OPERATIONS, Operation
from tests.suite.calibration.automatic import Automatic, Values, called
from tests.suite.definitions import gru_jax, mlstm_jax, slstm_jax, sums_jax


@dataclass(frozen=True)
class JaxForm(Automatic):
    """A definition in JAX."""

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        @partial(jax.jit, static_argnames=("op", "options"))
        def both(op: str, options: tuple, arrays: dict, cotangents: dict) -> tuple:
            outputs, pull = jax.vjp(lambda x: called(OPERATIONS[op], self.function, x, dict(options)), arrays)
            return outputs, pull({name: cotangents[name] for name in outputs})[0]

        return both

    def differentiated(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Switches JAX to 64 bits for the whole process."""
        jax.config.update("jax_enable_x64", True)
        kind = accumulation(dtype)
        given = ({name: jnp.asarray(x.astype(kind)) for name, x in of.items()} for of in (arrays, cotangents))
        found = self._compiled(record.name, tuple(sorted({**self.options, **options}.items())), *given)
        outputs, gradients = ({name: np.asarray(x) for name, x in of.items()} for of in found)
        return outputs, gradients


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
