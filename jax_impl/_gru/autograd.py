"""The GRU as a differentiable function: the forward and backward passes of each backend, connected by residuals."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jax_impl._gru import composed
from jax_impl._gru.arguments import Arguments, Result
from jax_impl._gru.heads import initial_state
from jax_impl._gru.pallas import launch
from jax_impl._gru.steps import Options
from jax_impl._handwritten_gradient import Passes, differentiable_operation
from jax_impl._mesh_axes import partition, vary_alike, vary_like, with_auto_axes

BACKENDS = {
    "xla": Passes(forward=composed.forward, backward=composed.backward),
    "pallas": Passes(forward=launch.forward, backward=launch.backward),
}
"""The passes by the name of the backend."""

_gru = differentiable_operation("gru", Arguments, BACKENDS)


@partial(jax.jit, static_argnums=0)
def run_gru(
    options: Options,
    x: jax.Array,
    W: jax.Array,
    xf: jax.Array,
    Wf: jax.Array,
    xr: jax.Array,
    Wr: jax.Array,
    b: jax.Array | None,
    h0: jax.Array | None,
    cu_seqlens: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """The GRU over whole sequences, compiled: output and final state; `cu_seqlens` is int32.

    Arrays and results cross the boundary of `jax.jit` one by one. A record at that boundary would be built, flattened
    and rebuilt at every call; inside, this happens only while the call is traced.
    """
    if options.reset_after and b is None:
        b = jnp.zeros((W.shape[0], W.shape[-1]), W.dtype)
    arguments = Arguments(x=x, W=W, xf=xf, Wf=Wf, xr=xr, Wr=Wr, b=b, initial_state=h0, cu_seqlens=cu_seqlens)
    arguments = vary_alike(arguments)
    x = arguments.x
    if arguments.cu_seqlens is not None and (arguments.B == 0 or x.shape[0] == 0):
        # There is no sequence, or none has a step.
        output = vary_like(jnp.zeros((x.shape[0], arguments.N, x.shape[-1]), x.dtype), x)
        return output, jnp.copy(initial_state(arguments))
    result = with_auto_axes(partial(_gru, options), arguments, partial(_partitions, arguments))
    return result.output, result.state


def _partitions(arguments: Arguments) -> Any:
    """The output is sharded as x is, and the state over batch, heads and units as x is."""
    output = partition(arguments.x)
    B = output[0] if arguments.cu_seqlens is None else None
    return Result._make((P(*output), P(B, *output[-2:])))
