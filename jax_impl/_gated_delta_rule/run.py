"""The gated delta rule compiled, on any mesh.

A backend is a pair of functions ``(options, arguments) → result`` that JAX can differentiate; one with a gradient of
its own is made of two passes by `jax_impl._handwritten_gradient.differentiable_operation`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jax_impl._gated_delta_rule import composed
from jax_impl._gated_delta_rule.arguments import Arguments, Options, Result, Tokens
from jax_impl._mesh_axes import partition, vary_alike, with_auto_axes

WHOLE = {"xla": composed.whole}
"""The code of `gated_delta_rule` by the name of the backend."""
STEP = {"xla": composed.step}
"""The code of `gated_delta_step`."""


@partial(jax.jit, static_argnums=0)
def run_gated_delta_rule(
    options: Options,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array | None,
    state: jax.Array | None,
    cu_seqlens: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """The gated delta rule over whole sequences: o and the final state; `cu_seqlens` is int32.

    Arrays and results cross the boundary of `jax.jit` one by one. A record at that boundary would be built, flattened
    and rebuilt at every call; inside, this happens only while the call is traced.
    """
    x = _arguments(q, k, v, g, beta, state, cu_seqlens)
    v, N = x.tokens.v, x.state.shape[1]
    if cu_seqlens is not None and (x.state.shape[0] == 0 or v.shape[0] == 0):
        # There is no sequence, or none has a step.
        return jnp.zeros((v.shape[0], N, v.shape[-1]), v.dtype), jnp.copy(x.state)
    result = with_auto_axes(partial(WHOLE[options.backend], options), x, partial(_partitions, x))
    return result.o, result.state


@partial(jax.jit, static_argnums=0)
def run_gated_delta_step(
    options: Options,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array | None,
    state: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One step of the gated delta rule; arrays and results are passed as in `run_gated_delta_rule`."""
    x = _arguments(q, k, v, g, beta, state, None)
    result = with_auto_axes(partial(STEP[options.backend], options), x, partial(_partitions, x))
    return result.o, result.state


def _arguments(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array | None,
    state: jax.Array | None,
    cu_seqlens: jax.Array | None,
) -> Arguments:
    heads = -1 if beta is None else beta.shape[-1]
    N = max(q.shape[-2], k.shape[-2], v.shape[-2], g.shape[-1], heads)
    if beta is None:
        beta = jnp.ones_like(g)
    if state is None:
        B = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        state = composed.zero_state(v, B, N, q.shape[-1])
    return vary_alike(Arguments(Tokens(q=q, k=k, v=v, g=g, beta=beta), state, cu_seqlens))


def _partitions(x: Arguments) -> Result:
    """o is sharded as v is, and the state over batch and heads as v is."""
    o = partition(x.tokens.v)
    B = o[0] if x.cu_seqlens is None else None
    return Result(P(*o), P(B, o[-2], None, None))  # pyright: ignore[reportArgumentType]
