"""The mLSTM as differentiable functions: each backend's forward and backward pass, tied together by their residuals."""

from functools import partial

import jax
import jax.numpy as jnp

from jax_impl._handwritten_gradient import Passes, differentiable_operation
from jax_impl._mesh_axes import vary_alike
from jax_impl._mlstm import composed
from jax_impl._mlstm.arguments import Arguments, Options, Result
from jax_impl._mlstm.pallas import launch
from jax_impl._mlstm.state import given_or_zeros

SEQUENCE = {
    "xla": Passes(forward=composed.forward, backward=composed.backward),
    "pallas": Passes(forward=launch.forward, backward=launch.backward),
}
"""The passes of `mlstm`, by the name of the backend."""
STEP = {
    "xla": Passes(forward=composed.step, backward=composed.step_backward),
    "pallas": Passes(forward=launch.step, backward=launch.step_backward),
}
"""The passes of `mlstm_step`."""

_sequence = differentiable_operation("mlstm", Arguments, SEQUENCE)
_step = differentiable_operation("mlstm_step", Arguments, STEP)


@partial(jax.jit, static_argnums=0)
def run_mlstm(options: Options, arguments: Arguments) -> Result:
    """The mLSTM over whole sequences, compiled; `cu_seqlens` in int32."""
    arguments = vary_alike(arguments)
    tokens, packed = arguments.tokens, arguments.cu_seqlens is not None
    if packed and (arguments.B == 0 or tokens.q.shape[0] == 0):
        # No sequence, or none with a step: there is no chunk to compute.
        last = jax.tree.map(jnp.copy, given_or_zeros(arguments.initial_state, tokens.q, tokens.v, arguments.B))
        return Result(h=jnp.zeros_like(tokens.v), state=last if options.return_state else None)
    return _sequence(options, arguments)


@partial(jax.jit, static_argnums=0)
def run_mlstm_step(options: Options, arguments: Arguments) -> Result:
    """One step of the mLSTM, compiled."""
    return _step(options, vary_alike(arguments))
