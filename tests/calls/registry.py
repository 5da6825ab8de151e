"""The laws that only gatespec's own packages are held to: how they are called, and their helpers around operations.

They have the form of the suite's laws, so that the suite's runner draws and shrinks their cases.
"""

import importlib

from conformance.laws import Law, registering

LAWS: list[Law] = []
law = registering(LAWS)

_MODULES = (
    *("bad_rows", "array_laws", "backend_laws", "accumulate_laws", "sharding_laws", "layer_laws"),
    "sequence_parallel_laws",
)


def all_laws() -> list[Law]:
    """Every law of this folder."""
    for module in _MODULES:
        importlib.import_module(f"tests.calls.{module}")
    return LAWS
