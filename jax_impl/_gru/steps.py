"""The equations of one step of the GRU, forward and backward, for many sequences and heads at once, and their options.

`heads` describes the layouts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._gru.arguments import Arguments, Inputs, Weights
from jax_impl._gru.heads import by_step
from jax_impl._packing import indices, sequence_of_tokens


class Options(NamedTuple):
    """The static part of a call: everything except its arrays.

    Attributes:
        bound: the bound of gradient clipping; None disables it.
        reset_after: whether the reset gate is applied after the recurrent product; the weights then have a bias.
        precision: the precision of the products.
        backend: the name of the backend that computes the call.
        interpret: whether Pallas kernels run under their interpreter.
        together: the number of packed sequences that array code advances at once.
        merged: the most multiplications that the product of one gate's weights with the states of a step may have, if
            array code computes it as one product with the other gate's.
    """

    bound: float | None
    reset_after: bool
    precision: str
    backend: str
    interpret: bool
    together: int
    merged: float


class Gates(NamedTuple):
    """Reset gate r, forget gate f and candidate z of a step, or of many, and p = h W + b if the weights have a bias."""

    r: jax.Array
    f: jax.Array
    z: jax.Array
    p: jax.Array | None = None


class StepValues(NamedTuple):
    """Values of one or many steps for the backward pass: the state before, the gates, the output's cotangent."""

    h: jax.Array
    gates: Gates
    dy: jax.Array


class GateWeights(NamedTuple):
    """W, ``(groups, H, H)``, and W_f next to W_r, ``(groups, H, 2H)``, so that one product serves both gates.

    With a bias b, ``(groups, H)``, W stands next to them too: one product serves the whole step.
    """

    W: jax.Array
    Wfr: jax.Array
    b: jax.Array | None


def gate_weights(weights: Weights) -> GateWeights:
    W, Wf, Wr, b = weights
    return GateWeights(W=W, Wfr=jnp.concatenate([Wf, Wr] if b is None else [Wf, Wr, W], axis=-1), b=b)


def transposed(weights: Weights) -> Weights:
    W, Wf, Wr, b = weights
    return Weights(*(jnp.swapaxes(weight, -1, -2) for weight in (W, Wf, Wr)), b=b)


def gates(options: Options, h: jax.Array, inputs: Inputs, weights: GateWeights | Weights) -> Gates:
    """The gates, ``(groups, …, H)``, from the states before each step and the inputs."""

    def times(h: jax.Array, weight: jax.Array) -> jax.Array:
        return einsum("w...h,whk->w...k", h, weight, precision=options.precision)

    H, p = h.shape[-1], None
    if isinstance(weights, GateWeights):
        products = times(h, weights.Wfr)
        f, r, p = products[..., :H], products[..., H : 2 * H], products[..., 2 * H :]
    else:
        f, r = times(h, weights.Wf), times(h, weights.Wr)
    f, r = jax.nn.sigmoid(f + inputs.xf), jax.nn.sigmoid(r + inputs.xr)
    if weights.b is None:
        return Gates(r=r, f=f, z=jnp.tanh(times(r * h, weights.W) + inputs.x))
    p = times(h, weights.W) if p is None else p
    p = p + jnp.expand_dims(weights.b, range(1, h.ndim - 1))
    return Gates(r=r, f=f, z=jnp.tanh(r * p + inputs.x), p=p)


def step(options: Options, h: jax.Array, inputs: Inputs, weights: GateWeights | Weights) -> jax.Array:
    """The state after a step."""
    found = gates(options, h, inputs, weights)
    return found.f * h + (1 - found.f) * found.z


def step_back(options: Options, transposed: Weights, dh: jax.Array, values: StepValues) -> tuple[jax.Array, Inputs]:
    """Compute the gradient that reaches h_{t−1} from the one that reaches h_t, and the gradients of the inputs.

    Args:
        transposed: the weights, transposed once for all steps.
        dh: ``(groups, B, heads, H)``.
    """

    def times(d: jax.Array, weight: jax.Array) -> jax.Array:
        return einsum("wbgk,wkh->wbgh", d, weight, precision=options.precision)

    (h, (r, f, z, p), dy), bound = values, options.bound
    dh = dy + (dh if bound is None else jnp.clip(dh, -bound, bound))
    dx = dh * (1 - f) * (1 - z * z)
    dxf = dh * (h - z) * f * (1 - f)
    if p is None:
        drh = times(dx, transposed.W)
        dxr, of_candidate = drh * h * r * (1 - r), drh * r
    else:
        dxr, of_candidate = dx * p * r * (1 - r), times(dx * r, transposed.W)
    through = times(dxf, transposed.Wf) + times(dxr, transposed.Wr)
    return dh * f + of_candidate + through, Inputs(x=dx, xf=dxf, xr=dxr)


def weight_gradients(options: Options, letters: str, values: StepValues, dinputs: Inputs) -> Weights:
    """The gradients of the weights, as products over all given steps.

    Args:
        letters: the einsum of states and input gradients.
    """

    def times(h: jax.Array, d: jax.Array) -> jax.Array:
        return einsum(letters, h, d, precision=options.precision)

    h, r = values.h, values.gates.r
    Wf, Wr = times(h, dinputs.xf), times(h, dinputs.xr)
    if values.gates.p is None:
        return Weights(W=times(r * h, dinputs.x), Wf=Wf, Wr=Wr)
    dp = r * dinputs.x
    return Weights(W=times(h, dp), Wf=Wf, Wr=Wr, b=jnp.sum(dp, axis=range(1, dp.ndim - 1)))


def values_of_all_steps(
    options: Options,
    arguments: Arguments,
    inputs: Inputs,
    weights: Weights,
    *,
    y: jax.Array,
    h0: jax.Array,
    dy: jax.Array,
) -> StepValues:
    """The values of all steps that the backward pass reads, by step; the gates are computed for all steps at once.

    Args:
        inputs: by step.
        weights: by group.
        y, dy: the output and its cotangent, by token.
        h0: the initial state, by group.
    """
    h = _before(by_step(y, arguments), h0, arguments.cu_seqlens)
    side_by_side = gate_weights(weights)
    if arguments.cu_seqlens is None:
        h_first, *inputs_first = (jnp.moveaxis(part, 0, 1) for part in (h, *inputs))
        found = gates(options, h_first, Inputs(*inputs_first), side_by_side)
        found = jax.tree.map(lambda part: jnp.moveaxis(part, 1, 0), found)
    else:
        found = gates(options, h, inputs, side_by_side)
    return StepValues(h=h, gates=found, dy=by_step(dy, arguments))


def _before(y: jax.Array, h0: jax.Array, cu_seqlens: jax.Array | None) -> jax.Array:
    """The state before each step, given the state after each step."""
    if cu_seqlens is None:
        return jnp.concatenate([h0[None], y])[:-1]
    T = y.shape[1]
    owner = sequence_of_tokens(cu_seqlens, T)
    begins = indices(T) == cu_seqlens[owner]
    return jnp.where(begins[:, None, None], h0[:, owner], jnp.roll(y, 1, axis=1))
