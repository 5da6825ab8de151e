"""Batch and heads sharded by placing the arrays: what XLA makes of it sends no tokens, and nothing at all of heads."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.test_sequence_parallel import collectives

B, S, N, K, H = 8, 32, 8, 5, 6


def mlstm(*x):
    h, state = jax_impl.mlstm(*x[:5], initial_state=jax_impl.MLSTMState(*x[5:]), return_state=True)
    return h, *state


def slstm(*x):
    h, state = jax_impl.slstm(*x[:8], initial_state=jax_impl.SLSTMState(*x[8:]), return_state=True)
    return h, *state


def gru(*x):
    return jax_impl.gru(*x)


def gated_delta_rule(*x):
    return jax_impl.gated_delta_rule(*x[:5], initial_state=x[5])


TOKENS, STATES = ("B", "S", "N"), ("B", "N")
CALLS = {
    "mlstm": (mlstm, [(*TOKENS, K)] * 3 + [TOKENS] * 2 + [(*STATES, K, K), (*STATES, K), STATES]),
    "slstm": (slstm, [(*TOKENS, H)] * 4 + [("N", H, H)] * 4 + [(*STATES, H)] * 4),
    "gated_delta_rule": (gated_delta_rule, [(*TOKENS, K)] * 2 + [(*TOKENS, H)] + [TOKENS] * 2 + [(*STATES, K, H)]),
    "gru": (gru, [(*TOKENS, H), ("N", H, H)] * 3 + [(*STATES, H)]),
}
"""Functions, and the axes of their arrays."""


@pytest.mark.grid
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("letter", ["B", "N"])
def test_no_tokens_are_sent(name, letter):
    """In both passes; over the batch only the gradients of weights are added up, each of them once."""
    function, axes = CALLS[name]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sizes = {"B": B, "S": S, "N": N}
    arrays = []
    for letters in axes:
        spec = P(*("data" if each == letter else None for each in letters))
        shape = tuple(sizes.get(each, each) for each in letters)
        arrays.append(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec)))

    def both(arrays, cotangents):
        results, pull_back = jax.vjp(function, *arrays)
        return results, pull_back(cotangents)

    # Results and gradients are placed as the arguments are.
    heads = P(None, None, "data"), P(None, "data")
    specs = [P("data") if letter == "B" else heads[at > 0] for at in range(len(jax.eval_shape(function, *arrays)))]
    placed = [NamedSharding(mesh, spec) for spec in specs]
    cotangents = tuple(
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
        for x, s in zip(jax.eval_shape(function, *arrays), placed, strict=True)
    )
    out = tuple(placed), tuple(x.sharding for x in arrays)
    program = jax.jit(both, out_shardings=out).lower(arrays, cotangents).compile().as_text()
    found = collectives(program)
    weights = [math.prod(sizes.get(each, each) for each in letters) for letters in axes if letters[0] == "N"]
    summed = found.pop("all-reduce", [])
    # The mLSTM corrects its weights where the rounding of m adds up to something; that it does so anywhere is a flag.
    flags = [size for size in summed if size == 1]
    assert found == {} and len(flags) <= (4 if name == "mlstm" else 0)
    assert sorted(summed)[len(flags) :] == (weights if letter == "B" else [])
