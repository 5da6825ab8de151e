"""The gated delta rule as array code that XLA compiles and differentiates, chunk by chunk.

Source: Yang et al., arXiv:2412.06464, the WY representation of section 3.3. In a chunk of L steps that starts from the
state S, with row vectors and q̂ = scale · q::

    D[t,j] = exp(Σ_{j<s≤t} g_s)  (j ≤ t)        e_t = exp(Σ_{s≤t} g_s)        y_j = D[L,j]
    M[t,j] = D[t,j] k_t·k_j  (j < t)        G[t,j] = D[t,j] q̂_t·k_j  (j ≤ t)
    (1 + M diag(β)) r = v − e ⊙ (k S)        u = β r        o = e ⊙ (q̂ S) + G u        S' = e_L S + (y ⊙ k)ᵀ u

Decays are exponentials of sums over the steps that they cross, never of differences of sums: they lose no digits where
gates are strong, and a hard reset, g = −∞, is 0, with a gradient of 0, in all that cross it. Of a chunk only the state
at its start is saved for the gradient; the rest is computed again (`jax.checkpoint`).
"""

from functools import partial

import jax
import jax.numpy as jnp

from jax_impl._arrays import accumulation, einsum
from jax_impl._chunk_layout import chunk_table, from_chunks, gather_chunks, gather_tokens, to_chunks
from jax_impl._gated_delta_rule.arguments import Arguments, Options, Result, Tokens
from jax_impl._gates import forget_matrix

LONGEST = 32
"""Maximum number of steps per chunk. A longer one is not faster, and where keys are alike and nothing decays, its error
grows with the square of its length."""

PADDING = (1.0, 1.0, 0.0, 0.0, 0.0)
"""q, k, v, g and β of a step that leaves the state as it is, and whose q and k can be divided by their length."""


def whole(options: Options, x: Arguments) -> Result:
    """The gated delta rule over whole sequences."""
    if x.cu_seqlens is None:
        chunks = Tokens(*(to_chunks(part, 1, options.L, pad) for part, pad in zip(x.tokens, PADDING, strict=True)))
        state, o = jax.lax.scan(partial(_saving_little, options), x.state, chunks)
        return Result(o=from_chunks(o, 1, x.tokens.v.shape[1]), state=state)
    table = chunk_table(x.cu_seqlens, x.tokens.v.shape[0], options.L)
    bounds = table.bounds
    chunks = Tokens(*(gather_chunks(part, table, pad) for part, pad in zip(x.tokens, PADDING, strict=True)))

    def advance(state: jax.Array, x: tuple[Tokens, jax.Array, jax.Array]) -> tuple[jax.Array, tuple]:
        tokens, first, initial = x
        state = jnp.where(first, initial, state)[None]
        state, o = _saving_little(options, state, jax.tree.map(lambda part: part[None], tokens))
        return state[0], (o[0], state[0])

    by_chunk = (chunks, bounds.first, x.state[bounds.sequence])
    _, (o, ends) = jax.lax.scan(advance, jnp.zeros_like(x.state[0]), by_chunk)
    last = jnp.where(bounds.empty[:, None, None, None], x.state, ends[bounds.last_chunk])
    return Result(o=gather_tokens(o, table), state=last)


def _chunk(options: Options, S: jax.Array, tokens: Tokens) -> tuple[jax.Array, jax.Array]:
    """The state after a chunk, and o, ``(B, L, N, V)``.

    Args:
        S: the state before it, ``(B, N, K, V)``.
        tokens: ``(B, L, N′, ·)``.
    """
    q, k, v, g, beta = _of_all_heads(options, tokens, S)
    product = partial(einsum, precision=options.precision)
    D = jnp.exp(forget_matrix(g))
    e, y = jnp.exp(jnp.cumsum(g, -1))[..., None], D[..., -1, :, None]
    beta = beta[..., None]

    M = jnp.tril(D * product("bntk,bnjk->bntj", k, k), -1)
    missed = v - e * product("bntk,bnkv->bntv", k, S)
    u = beta * _solved(M * jnp.swapaxes(beta, -1, -2), missed, options.precision)
    G = D * product("bntk,bnjk->bntj", q, k)
    o = e * product("bntk,bnkv->bntv", q, S) + product("bntj,bnjv->bntv", G, u)
    S = e[..., -1:, :] * S + product("bntk,bntv->bnkv", k, y * u)
    return S, jnp.moveaxis(o, 1, 2).astype(tokens.v.dtype)


def _solved(M: jax.Array, y: jax.Array, precision: str) -> jax.Array:
    """``(1 + M)⁻¹ y`` for M below its diagonal.

    With XLA's own solution of triangular systems, a program may wait for ever on a CPU of few threads (jaxlib 0.10.2).
    """
    product = partial(einsum, "bntj,bnjv->bntv", precision=precision)
    inverse = _inverse(jax.lax.stop_gradient(M), precision)
    return jax.lax.custom_linear_solve(
        lambda x: x + product(M, x),
        y,
        lambda _, y: product(inverse, y),
        lambda _, y: product(jnp.swapaxes(inverse, -1, -2), y),
    )


def _inverse(M: jax.Array, precision: str) -> jax.Array:
    """``(1 + M)⁻¹`` for M below its diagonal, from the inverses of diagonal blocks of 1, 2, 4, … steps::

    ⎛ A  0 ⎞⁻¹   ⎛     A⁻¹       0  ⎞
    ⎝ C  B ⎠   = ⎝ −B⁻¹ C A⁻¹   B⁻¹ ⎠
    """
    L, product = M.shape[-1], partial(einsum, "bnctj,bncjk->bnctk", precision=precision)
    steps = 1 << (L - 1).bit_length()
    M = jnp.pad(M, [(0, 0), (0, 0), *[(0, steps - L)] * 2])
    found, size = jnp.ones((*M.shape[:-1], 1, 1), M.dtype), 1
    while size < steps:
        count = steps // (2 * size)
        blocks = M.reshape(*M.shape[:2], count, 2, size, count, 2, size)
        C = jnp.moveaxis(jnp.diagonal(blocks[:, :, :, 1, :, :, 0], axis1=2, axis2=4), -1, 2)
        A, B = found[:, :, 0::2], found[:, :, 1::2]
        above = jnp.concatenate([A, jnp.zeros_like(A)], -1)
        found, size = jnp.concatenate([above, jnp.concatenate([-product(product(B, C), A), B], -1)], -2), 2 * size
    return found[:, :, 0, :L, :L]


_saving_little = jax.checkpoint(_chunk, static_argnums=0, prevent_cse=False)


def _of_all_heads(options: Options, tokens: Tokens, S: jax.Array) -> Tokens:
    """q̂, k, v, g and β of a chunk by head, ``(B, N, L, ·)``, in the accumulation dtype."""
    N = S.shape[1]
    q, k, v, g, beta = (part.astype(S.dtype) for part in tokens)
    if options.qk_norm_eps is not None:
        # Before heads are repeated: through a normalisation, the gradients of several may cancel.
        q, k = (part / jnp.sqrt((part * part).sum(-1, keepdims=True) + options.qk_norm_eps) for part in (q, k))
    repeated = (jnp.repeat(part, N // part.shape[2], axis=2) for part in (q, k, v, g, beta))
    q, k, v, g, beta = (jnp.moveaxis(part, 2, 1) for part in repeated)
    return Tokens(q * options.scale, k, v, g, beta)


def step(options: Options, x: Arguments) -> Result:
    """One step: what the state before it holds for q and k is read in one product."""
    q, k, v, g, beta = _of_all_heads(options, jax.tree.map(lambda part: part[:, None], x.tokens), x.state)
    read = einsum("bntk,bnkv->bntv", jnp.concatenate([q, k], 2), x.state, options.precision)
    decay = jnp.exp(g)[..., None]
    q_read, k_read = jnp.split(decay * read, 2, 2)
    u = beta[..., None] * (v - k_read)
    o = q_read + (q * k).sum(-1, keepdims=True) * u
    state = decay * x.state + jnp.swapaxes(k, -1, -2) * u
    return Result(o=o[:, :, 0].astype(x.tokens.v.dtype), state=state)


def zero_state(v: jax.Array, B: int, N: int, K: int) -> jax.Array:
    """The state that a call starts from if it is given none."""
    return jnp.zeros((B, N, K, v.shape[-1]), accumulation(v))
