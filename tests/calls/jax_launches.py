"""The kernels that a traced JAX function launches."""

from collections.abc import Iterator
from typing import Any

KERNEL_PRIMITIVES = ("pallas_call", "core_map", "mpmd_map", "mosaic", "triton_kernel_call", "ffi_call")
"""Parts of the names of primitives that stand for a handwritten kernel."""


def kernels(jaxpr: Any) -> tuple[str, ...]:
    """The names of the kernels in a jaxpr, including those in the jaxprs that it calls."""
    return tuple(_kernels(jaxpr))


def _kernels(jaxpr: Any) -> Iterator[str]:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        primitive = equation.primitive.name
        if any(part in primitive for part in KERNEL_PRIMITIVES):
            yield str(equation.params.get("name") or primitive)
            continue
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _kernels(inner)
