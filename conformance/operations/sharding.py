"""Sharding over a mesh. Its functions run once on every device; the laws define how they are called."""

from conformance.operations._record import Public

RECORDS = (
    Public(name="fold_rng_over_axis", about="fold_rng_over_axis"),
    Public(name="split_array_over_mesh", about="split_array_over_mesh"),
    Public(name="stack_params", about="stack_params", helpers=("Partitioned",)),
    Public(name="unstack_params", about="unstack_params", helpers=("Partitioned",)),
)
