"""The sLSTM as a differentiable function: its forward and its backward pass, connected by residuals."""

from functools import partial
from typing import Any

import jax
import jax.export
from jax.sharding import PartitionSpec as P

from jax_impl._handwritten_gradient import Passes, differentiable_operation
from jax_impl._mesh_axes import partition, vary_alike, with_auto_axes
from jax_impl._slstm import composed
from jax_impl._slstm.arguments import Arguments, Options, Result
from reference.arguments import SLSTMState

# This allows an exported function that takes or returns a state to be serialised.
jax.export.register_namedtuple_serialization(SLSTMState, serialized_name="gatespec.SLSTMState")

_slstm = differentiable_operation(
    "slstm", Arguments, {"xla": Passes(forward=composed.forward, backward=composed.backward)}
)


@partial(jax.jit, static_argnums=0)
def run_slstm(options: Options, arguments: Arguments) -> Result:
    """The sLSTM over whole sequences, compiled; `cu_seqlens` is int32."""
    arguments = vary_alike(arguments)
    return with_auto_axes(partial(_slstm, options), arguments, partial(_partitions, arguments))


def _partitions(arguments: Arguments) -> Any:
    """h is sharded as z is, and states over batch, heads and units as z is."""
    output = partition(arguments.inputs.z)
    B = output[0] if arguments.cu_seqlens is None else None
    state = P(B, *output[-2:])
    return Result._make((P(*output), SLSTMState(state, state, state, state)))
