"""The mLSTM chunk by chunk: the array functions that `mlstm`, `mlstm_step` and the fwbw interface are made of.

Source: Beck et al., arXiv:2503.14376 (TFLA), with the normaliser differentiated. Layout ``(c, *lanes, L, ·)``: the
chunk axis first, then whatever runs in parallel, then the steps of a chunk; all in the accumulation dtype, q̂ = q/√K. In
a chunk that starts from the memory (C, n, m)::

    b_t = Σ_{s≤t} a_s        D[t,j] = Σ_{j<s≤t} a_s + i_j                        (a = log σ(f))
    m_t = max(b_t + m, max_{j≤t} D[t,j])
    E[t,j] = exp(D[t,j] − m_t)        e_t = exp(b_t + m − m_t)        G = (q̂kᵀ) ⊙ E
    h_t = (Σ_j G[t,j] v_j + e_t Cᵀq̂_t) / Y_t        ν_t = Σ_j G[t,j] + e_t n·q̂_t        Y_t = max(|ν_t|, floor_t) + eps

Everything inside the chunks is computed for all of them at once; only m, then (C, n), then on the way back their
gradients, go from chunk to chunk. m is a constant on the way back but for the final state's own (`mlstm`, contract).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._framework import vary_like
from jax_impl._gates import across, exp_difference, forget_matrix, log_sigmoid, sigmoid, sum_before, sum_from
from reference.arguments import MLSTMState

LARGEST_M = 64.0
"""The stabiliser at which the normaliser's floor exp(−m) stops falling: exp(−64) is still a float32."""


class Options(NamedTuple):
    """What a call fixes beside its arrays.

    Attributes:
        L: steps a chunk.
        eps: added to the normaliser.
        unit_floor: whether 1 stands in place of the floor exp(−min(m, 64)).
        precision: of the products.
        return_state: whether the final state is wanted.
        interpret: None where XLA computes; else Pallas kernels do, and this says whether under their interpreter.
        block: steps, counted over sequences and heads, that are computed at once.
    """

    L: int
    eps: float
    unit_floor: bool
    precision: str
    return_state: bool
    interpret: bool | None = None
    block: int = 32768


class Steps(NamedTuple):
    """Inputs in chunks: q̂, k ``(c, *lanes, L, K)``, v ``(c, *lanes, L, V)``, i, f ``(c, *lanes, L)``."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array


class Gates(NamedTuple):
    """Log forget gates and their sums from the start of each chunk, ``(c, *lanes, L)``."""

    a: jax.Array
    b: jax.Array


class Restarts(NamedTuple):
    """Where sequences begin and end among the chunks, if there are several one after the other.

    A state that goes in or comes out then has the shape ``(B, *lanes, ·)``.

    Attributes:
        first, last: whether a chunk is its sequence's first, its last, ``(c,)``.
        sequence: the sequence of a chunk, ``(c,)``.
        first_chunk, last_chunk: a sequence's first and last chunk, ``(B,)``.
        empty: whether a sequence has no step, ``(B,)``.
    """

    first: jax.Array
    last: jax.Array
    sequence: jax.Array
    first_chunk: jax.Array
    last_chunk: jax.Array
    empty: jax.Array


class Kept(NamedTuple):
    """Results that a backward pass may be given, so that it does not compute them again; None where it does.

    Attributes:
        gates: as `Gates`.
        m: stabilisers, ``(c, *lanes, L)``.
        G: decayed scores, ``(c, *lanes, L, L)``.
        start: memory at the start of each chunk, ``(c, *lanes, K, V)``, ``(c, *lanes, K)``, ``(c, *lanes)``.
    """

    gates: Gates | None = None
    m: jax.Array | None = None
    G: jax.Array | None = None
    start: MLSTMState | None = None


class Forward(NamedTuple):
    """What the forward pass computes, names as at the head of this module; `last` is the final state."""

    gates: Gates
    m: jax.Array
    start: MLSTMState
    E: jax.Array
    e: jax.Array
    G: jax.Array
    last: MLSTMState


def choose_chunk(S: int, chunk_size: int | None) -> int:
    """Steps a chunk: what the caller says, else as many as make equal chunks of at most 64."""
    if chunk_size is None:
        return max(1, -(-S // max(1, -(-S // 64))))
    return max(1, min(chunk_size, S))


def log_gates(f: jax.Array) -> Gates:
    a = log_sigmoid(f)
    return Gates(a, jnp.cumsum(a, axis=-1, dtype=a.dtype))


def forward(options: Options, x: Steps, initial: MLSTMState, restarts: Restarts | None, kept: Kept) -> Forward:
    """The forward pass up to the numerator; takes from ``kept`` what is there."""
    gates = log_gates(x.f) if kept.gates is None else kept.gates
    D = forget_matrix(gates.a) + x.i[..., None, :]
    m, m_start = _stabilisers(D, gates.b, initial.m, restarts, kept)
    E = exp_difference(D, m[..., None])
    e = exp_difference(gates.b + m_start[..., None], m)
    G = _dot(options, "tk,jk->tj", x.q, x.k) * E if kept.G is None else kept.G

    written = E[..., -1, :, None] * x.k
    dC, dn = _dot(options, "jk,jv->kv", written, x.v), jnp.sum(written, axis=-2)
    decay = e[..., -1]
    if kept.start is None:
        (C, n), (C_last, n_last) = _pass_on(decay, (dC, dn), (initial.C, initial.n), restarts)
    else:
        C, n, _ = kept.start
        C_last, n_last = _ends(decay, (dC, dn), (C, n), (initial.C, initial.n), restarts)
    m_last = _of_last(m[..., -1], initial.m, restarts)
    return Forward(gates, m, MLSTMState(C, n, m_start), E, e, G, MLSTMState(C_last, n_last, m_last))


def output(options: Options, x: Steps, p: Forward) -> jax.Array:
    """h of every step, ``(c, *lanes, L, V)``."""
    numerator = _dot(options, "tj,jv->tv", p.G, x.v)
    numerator += p.e[..., None] * _dot(options, "tk,kv->tv", x.q, p.start.C)
    nu, floor = _normaliser(options, x, p)
    return numerator / (jnp.maximum(jnp.abs(nu), floor) + options.eps)[..., None]


def backward(
    options: Options, x: Steps, p: Forward, restarts: Restarts | None, dh: jax.Array, dlast: MLSTMState
) -> tuple[Steps, MLSTMState]:
    """Gradients of the inputs (of q̂, not q) and of the initial state.

    In `dlast` and in what is returned, g stands in the place of dm (`unattained`, `attained`).

    With δ = dh/Y, the gradient of a read is ``dν = −(dh·h)/Y`` where |ν| is above its floor, else 0, and
    ``dG[t,j] = δ_t·v_j + dν_t``. The gradient of a decay gate is what flows across its step: from a write to a read
    inside the chunk (W = G ⊙ dG), from the incoming memory to a read (r), from a write to the outgoing memory (w), and
    through from the one memory to the other. No path that a reset cuts contributes, so behind it the gradient is
    exactly 0.
    """
    decay, C, n = p.e[..., -1], p.start.C, p.start.n
    nu, floor = _normaliser(options, x, p)
    Y = jnp.maximum(jnp.abs(nu), floor) + options.eps
    dh_v = _dot(options, "tv,jv->tj", dh, x.v)
    C_dh = _dot(options, "tv,kv->tk", dh, C)
    dh_h = (jnp.sum(p.G * dh_v, axis=-1) + p.e * jnp.sum(x.q * C_dh, axis=-1)) / Y
    dnu = jnp.where(jnp.abs(nu) > floor, -dh_h / Y * jnp.sign(nu), 0)
    delta = dh / Y[..., None]
    dG = dh_v / Y[..., None] + dnu[..., None]
    W, dscores = p.G * dG, p.E * dG
    from_start = p.e[..., None] * (C_dh / Y[..., None] + dnu[..., None] * n[..., None, :])

    read = p.e[..., None] * x.q
    dC_read, dn_read = _dot(options, "tk,tv->kv", read, delta), jnp.sum(read * dnu[..., None], axis=-2)
    attained = x.i > p.gates.a + jnp.concatenate([p.start.m[..., None], p.m[..., :-1]], axis=-1)
    attains = jnp.any(attained, axis=-1)
    (dC, dn, g), dinitial = _pass_back(decay, (dC_read, dn_read), attains, dlast, restarts)

    written = p.E[..., -1, :, None]
    to_end = written * (_dot(options, "jv,kv->jk", x.v, dC) + dn[..., None, :])
    dq = _dot(options, "tj,jk->tk", dscores, x.k) + from_start
    dk = _dot(options, "tj,tk->jk", dscores, x.q) + to_end
    dv = _dot(options, "tj,tv->jv", p.G, delta) + written * _dot(options, "jk,kv->jv", x.k, dC)

    r = jnp.sum(x.q * from_start, axis=-1)
    w = jnp.sum(x.k * to_end, axis=-1)
    through = decay * (jnp.sum(C * dC, axis=(-2, -1)) + jnp.sum(n * dn, axis=-1))
    da = across(W) + sum_from(r) + sum_before(w) + through[..., None]
    di = jnp.sum(W, axis=-2) + w

    step = jnp.arange(attained.shape[-1])
    at = jnp.max(jnp.where(attained, step, -1), axis=-1, keepdims=True)
    di += jnp.where(step == at, g[..., None], 0)
    da += jnp.where(step > at, g[..., None], 0)
    return Steps(dq, dk, dv, di, da * sigmoid(-x.f)), dinitial


def unattained(last: MLSTMState, dlast: MLSTMState) -> MLSTMState:
    """``g = dm − ⟨C, dC⟩ − ⟨n, dn⟩`` of a final state in the place of dm: what m's own gradient has on its way back.

    It goes to the gates that attain m; the memory's gradient goes its own way, with m a constant.
    """
    return dlast._replace(m=dlast.m - _inner(last, dlast))


def attained(initial: MLSTMState, dinitial: MLSTMState) -> MLSTMState:
    """Inverse of `unattained`, at the initial state: ``dm = g + ⟨C, dC⟩ + ⟨n, dn⟩``."""
    return dinitial._replace(m=dinitial.m + _inner(initial, dinitial))


def _normaliser(options: Options, x: Steps, p: Forward) -> tuple[jax.Array, jax.Array]:
    """ν and its floor, ``(c, *lanes, L)``."""
    nu = jnp.sum(p.G, axis=-1) + p.e * jnp.sum(x.q * p.start.n[..., None, :], axis=-1)
    return nu, jnp.ones_like(p.m) if options.unit_floor else jnp.exp(-jnp.minimum(p.m, LARGEST_M))


def _stabilisers(
    D: jax.Array, b: jax.Array, initial: jax.Array, restarts: Restarts | None, kept: Kept
) -> tuple[jax.Array, jax.Array]:
    """m of every step, and at the start of every chunk."""
    start = None if kept.start is None else kept.start.m
    if kept.m is not None:
        if start is None:
            assert restarts is None, "what is kept is kept of one sequence a lane"
            start = jnp.concatenate([initial[None], kept.m[..., -1]])[:-1]
        return kept.m, start

    def chunk(m: jax.Array, gates: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, largest = gates
        return jnp.maximum(total + m, largest), m

    largest = jnp.max(D, axis=-1)
    if start is None:
        _, start = _scan(chunk, initial, (b[..., -1], largest[..., -1]), restarts)
    return jnp.maximum(b + start[..., None], largest), start


def _pass_on(decay: jax.Array, added: Any, initial: Any, restarts: Restarts | None) -> tuple[Any, Any]:
    """The memory at the start of every chunk, and the final one: ``C ← decay·C + what the chunk adds``."""

    def chunk(memory: Any, x: tuple) -> tuple[Any, Any]:
        return _decayed(x[0], memory, x[1]), memory

    last, starts = _scan(chunk, initial, (decay, added), restarts)
    return starts, last if restarts is None else _ends(decay, added, starts, initial, restarts)


def _pass_back(
    decay: jax.Array, added: Any, attains: jax.Array, dlast: MLSTMState, restarts: Restarts | None
) -> tuple[MLSTMState, MLSTMState]:
    """Gradients of the memory, and g, at the end of every chunk and at the start of the first.

    g goes back until it meets a chunk with a step that attains m.
    """

    def chunk(dmemory: MLSTMState, x: tuple) -> tuple[MLSTMState, MLSTMState]:
        decay, added, attains = x
        dC, dn = _decayed(decay, (dmemory.C, dmemory.n), added)
        return MLSTMState(dC, dn, jnp.where(attains, 0, dmemory.m)), dmemory

    first, ends = _scan(chunk, dlast, (decay, added, attains), restarts, reverse=True)
    if restarts is not None:
        at_first = jax.tree.map(lambda x: x[restarts.first_chunk], (ends, (decay, added, attains)))
        reached, _ = chunk(*at_first)
        first = jax.tree.map(lambda x, empty: _where(restarts.empty, empty, x), reached, dlast)
    return ends, first


def _ends(decay: jax.Array, added: Any, starts: Any, initial: Any, restarts: Restarts | None) -> Any:
    """The final memory, given that at the start of every chunk."""
    if restarts is None:
        if decay.shape[0] == 0:
            return initial
        return _decayed(decay[-1], *jax.tree.map(lambda x: x[-1], (starts, added)))
    at = restarts.last_chunk
    last = _decayed(decay[at], *jax.tree.map(lambda x: x[at], (starts, added)))
    return jax.tree.map(lambda x, empty: _where(restarts.empty, empty, x), last, initial)


def _of_last(x: jax.Array, initial: jax.Array, restarts: Restarts | None) -> jax.Array:
    """Of a value for each chunk, that of each sequence's last; the initial one where there is none."""
    if restarts is None:
        return x[-1] if x.shape[0] else initial
    return _where(restarts.empty, initial, x[restarts.last_chunk])


def _scan(step: Callable, initial: Any, xs: Any, restarts: Restarts | None, reverse: bool = False) -> tuple[Any, Any]:
    """``lax.scan`` over chunks that takes its carry anew from ``initial`` where a sequence begins (reversed: ends)."""
    if restarts is None:
        return jax.lax.scan(step, initial, xs, reverse=reverse)

    def restarting(carry: Any, x: tuple) -> tuple[Any, Any]:
        anew, sequence, x = x
        return step(jax.tree.map(lambda start, c: jnp.where(anew, start[sequence], c), initial, carry), x)

    blank = jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape[1:], x.dtype), x), initial)
    anew = restarts.last if reverse else restarts.first
    return jax.lax.scan(restarting, blank, (anew, restarts.sequence, xs), reverse=reverse)


def _decayed(decay: jax.Array, memory: Any, added: Any) -> Any:
    return jax.tree.map(lambda x, y: _expand(decay, x) * x + y, memory, added)


def _inner(state: MLSTMState, dstate: MLSTMState) -> jax.Array:
    """⟨C, dC⟩ + ⟨n, dn⟩."""
    return jnp.sum(state.C * dstate.C, axis=(-2, -1)) + jnp.sum(state.n * dstate.n, axis=-1)


def _where(condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(_expand(condition, x), x, y)


def _expand(x: jax.Array, like: jax.Array) -> jax.Array:
    """Trailing axes of size 1, as many as ``like`` has more."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def _dot(options: Options, letters: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """A product chunk by chunk and lane by lane."""
    inputs, result = letters.split("->")
    return jnp.einsum(
        f"...{inputs.replace(',', ',...')}->...{result}",
        x,
        y,
        precision=options.precision,
        preferred_element_type=x.dtype,
    )
