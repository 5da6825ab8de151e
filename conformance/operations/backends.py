"""The choice of a kernel backend. The laws of the operations that take one ask `explain_backend` about it."""

from conformance.operations._record import Public

RECORDS = (Public(name="explain_backend", about="", helpers=("KernelBackend",)),)
