"""Gradient accumulation. Its functions take functions and trees; the laws define how they are called."""

from conformance.operations._record import Public

RECORDS = tuple(
    Public(name=name, about="accumulate_gradients")
    for name in ("accumulate_gradients", "accumulate_gradients_loop", "accumulate_gradients_scan")
)
