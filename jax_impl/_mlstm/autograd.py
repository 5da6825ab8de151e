"""The mLSTM as differentiable functions: the forward and backward passes of each backend, connected by residuals."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jax_impl._handwritten_gradient import Passes, differentiable_operation
from jax_impl._mesh_axes import partition, vary_alike, with_auto_axes
from jax_impl._mlstm import composed, sequence_parallel
from jax_impl._mlstm.arguments import Arguments, Options, Result, Tokens
from jax_impl._mlstm.pallas import launch
from jax_impl._mlstm.state import given_or_zeros
from reference.arguments import MLSTMState

SEQUENCE = {
    "xla": Passes(forward=composed.forward, backward=composed.backward),
    "pallas": Passes(forward=launch.forward, backward=launch.backward),
}
"""The passes of `mlstm` by the name of the backend."""
STEP = {
    "xla": Passes(forward=composed.step, backward=composed.step_backward),
    "pallas": Passes(forward=launch.step, backward=launch.step_backward),
}
"""The passes of `mlstm_step`."""

_sequence = differentiable_operation("mlstm", Arguments, SEQUENCE)
_step = differentiable_operation("mlstm_step", Arguments, STEP)


@partial(jax.jit, static_argnums=0)
def run_mlstm(
    options: Options,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    initial_state: MLSTMState | None,
    cu_seqlens: jax.Array | None,
) -> tuple[jax.Array, MLSTMState | None]:
    """The mLSTM over whole sequences, compiled; `cu_seqlens` is int32.

    Arrays and results cross the boundary of `jax.jit` one by one. A record at that boundary would be built, flattened
    and rebuilt at every call; inside, this happens only while the call is traced.
    """
    tokens = Tokens(q=q, k=k, v=v, i=i, f=f)
    arguments = vary_alike(Arguments(tokens=tokens, initial_state=initial_state, cu_seqlens=cu_seqlens))
    tokens = arguments.tokens
    empty = cu_seqlens is not None and (arguments.B == 0 or tokens.q.shape[0] == 0)
    if empty or (options.sequence_axis is not None and tokens.i.size == 0):
        # There is no sequence, or none has a step, so there is no chunk to compute.
        last = jax.tree.map(jnp.copy, given_or_zeros(arguments.initial_state, tokens.q, tokens.v, arguments.B))
        if options.sequence_axis is not None:
            last = sequence_parallel.from_first_device(options, last)
        return jnp.zeros_like(tokens.v), last if options.return_state else None
    compute = partial(_sequence, options)
    if options.sequence_axis is not None:
        compute = partial(sequence_parallel.sharded, options, local=compute)
    result = with_auto_axes(compute, arguments, partial(_partitions, options, arguments))
    return result.h, result.state


@partial(jax.jit, static_argnums=0)
def run_mlstm_step(
    options: Options, q: jax.Array, k: jax.Array, v: jax.Array, i: jax.Array, f: jax.Array, state: MLSTMState
) -> tuple[jax.Array, MLSTMState]:
    """One step of the mLSTM, compiled; arrays and results are passed as in `run_mlstm`."""
    arguments = vary_alike(Arguments(tokens=Tokens(q=q, k=k, v=v, i=i, f=f), initial_state=state))
    result = with_auto_axes(partial(_step, options), arguments, partial(_partitions, options, arguments))
    return result.h, result.state


def _partitions(options: Options, arguments: Arguments) -> Any:
    """h is sharded as v is, and the state over batch and heads as v is."""
    h = partition(arguments.tokens.v)
    B, N = (h[0] if arguments.cu_seqlens is None else None), h[-2]
    state = MLSTMState(C=P(B, N, None, None), n=P(B, N, None), m=P(B, N))
    return Result._make((P(*h), state if options.return_state else None))
