"""The GRU as array code that XLA compiles: `dense` in blocks of steps, `packed` in one loop over all sequences."""

import jax

from jax_impl._arrays import accumulation
from jax_impl._gru import dense, packed
from jax_impl._gru.arguments import Arguments, Gradients, Inputs, Residuals, Result
from jax_impl._gru.heads import (
    from_steps,
    gradients_of,
    initial_state,
    inputs_by_step,
    inputs_of_all_heads,
    state_by_group,
    state_from_groups,
    weights_by_group,
)
from jax_impl._gru.steps import Options, values_of_all_steps, weight_gradients


def forward(options: Options, arguments: Arguments) -> tuple[Result, Residuals]:
    """Every state, in the dtype of the inputs, and the final state."""
    y, last = _states(options, arguments)
    result = Result(output=y.astype(arguments.x.dtype), state=last)
    return result, Residuals(arguments=arguments, y=y)


def _states(options: Options, arguments: Arguments) -> tuple[jax.Array, jax.Array]:
    """Every state and the final state, in the accumulation dtype."""
    weights = weights_by_group(arguments, accumulation(arguments.x))
    h0 = state_by_group(initial_state(arguments), arguments)
    if arguments.cu_seqlens is None:
        y, last = dense.forward(options, inputs_of_all_heads(arguments), weights, h0)
        return y, state_from_groups(last)
    y, last = packed.forward(options, inputs_by_step(arguments), weights, h0, arguments.cu_seqlens)
    return from_steps(y, arguments), state_from_groups(last)


def backward(options: Options, residuals: Residuals, cotangents: Result) -> Gradients:
    """Gradients, by the equations of ``gru_backward`` in the reference."""
    arguments, y = residuals.arguments, residuals.y
    dy = cotangents.output.astype(y.dtype)
    weights = weights_by_group(arguments, accumulation(arguments.x))
    dh = state_by_group(cotangents.state, arguments)
    h0 = state_by_group(initial_state(arguments), arguments)
    if arguments.cu_seqlens is None:
        found = dense.backward(
            options,
            inputs_of_all_heads(arguments),
            weights,
            y=y,
            h0=h0,
            dy=dy,
            dlast=dh,
        )
        return gradients_of(arguments, found.inputs, found.weights, found.initial_state)
    values = values_of_all_steps(options, arguments, inputs_by_step(arguments), weights, y=y, h0=h0, dy=dy)
    dinputs, dh0 = packed.backward(options, values, weights, dh, arguments.cu_seqlens)
    dweights = weight_gradients(options, "wtgh,wtgk->whk", values, dinputs)
    return gradients_of(arguments, Inputs(*(from_steps(d, arguments) for d in dinputs)), dweights, dh0)
