"""mLSTM: a matrix memory with exponential input gates, chunkwise: linear in S in time and in memory.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 19 to 27; the chunkwise form as in Beck et al., arXiv:2503.14376
(`_chunkwise`). Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

    m_t = max(a_t + m_{t−1}, i_t)
    C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
    h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl import _chunkwise, _mlstm_pallas
from jax_impl._backends import KernelBackend, choose, interpret, request, request_builder
from jax_impl._chunkwise import Kept, Options, Steps, attained, choose_chunk, unattained
from jax_impl._framework import (
    JAX,
    first_order,
    matmul_precision,
    own_gradient,
    planned_once,
    vary_alike,
    zeros_like_states,
)
from jax_impl._packing import BLANK, Table, chunk_table, from_chunks, gather_chunks, gather_tokens, to_chunks
from jax_impl.kernels import mlstm_decode
from jax_impl.kernels.mlstm_chunk import Setting
from reference.arguments import MLSTMState, check_mlstm, check_mlstm_step
from reference.backends import Request

BLOCK, BLOCK_ON_CPU = 32768, 1024
"""Steps, counted over sequences and heads, that are computed at once: enough to fill a GPU, or what a CPU's cache
holds. The memory between them is kept for the gradient; what lies inside is computed again, so that this bounds what is
held beside inputs and results."""


def mlstm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    initial_state: MLSTMState | None = None,
    return_state: bool = False,
    cu_seqlens: jax.Array | None = None,
    max_seqlen: int | None = None,
    chunk_size: int | None = None,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
) -> jax.Array | tuple[jax.Array, MLSTMState]:
    """The mLSTM over whole sequences, dense or packed (the equations stand at the head of this module).

    Differentiable once, in reverse mode, with respect to every floating argument; the gradient is exact and computed
    from the inputs again, not stored. Gates, states and sums are in the accumulation dtype: float64 beside float64
    values, else float32.

    Args:
        q: queries, ``(B, S, N, K)``, or ``(T, N, K)`` with `cu_seqlens`.
        k: keys, like `q`.
        v: values, ``(B, S, N, V)`` or ``(T, N, V)``.
        i: input gate preactivations, ``(B, S, N)`` or ``(T, N)``, below +∞; −∞ writes nothing. In the dtype of `v`, or
            float32 beside 16-bit values.
        f: forget gate preactivations, like `i`; −∞ empties the memory, +∞ keeps it whole.
        initial_state: ``(C, n, m)`` before the first step, in the accumulation dtype; None is ``C = n = m = 0``.
        return_state: also return the state after the last step.
        cu_seqlens: ``(B+1,)``, where each packed sequence starts and ends; may be traced.
        max_seqlen: a length that no sequence exceeds; checked where `cu_seqlens` can be read, never needed.
        chunk_size: steps a chunk, None for one that suits S. Changes no value.
        eps: added to the normaliser, for parity with kernels that do so; m is a constant in its gradient.
        kernel_backend: None, or the backend to take.

    Returns:
        h, shaped and typed like `v`; with `return_state` ``(h, MLSTMState)``, the state in the accumulation dtype.

    Raises:
        TypeError: an argument is no array of a floating dtype, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, `cu_seqlens` is no packing, or `kernel_backend` cannot
            serve the call.
        NotImplementedError: it is differentiated in forward mode, or twice.
    """
    plan = _plan if cu_seqlens is None else _plan_by_values
    options = plan(
        *(q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps),
        *(kernel_backend, matmul_precision(), bool(return_state)),
    )
    h, last = _run(options, Steps(q, k, v, i, f), _as_state(initial_state), _as_int32(cu_seqlens))
    return (h, last) if return_state else h


def mlstm_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    state: MLSTMState,
    *,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[jax.Array, MLSTMState]:
    """One step of the mLSTM, the form in which text is generated: the shapes of `mlstm` without ``S``.

    Args:
        q, k: ``(B, N, K)``.
        v: ``(B, N, V)``.
        i, f: ``(B, N)``.
        state: the memory before the step, in the accumulation dtype.
        eps, kernel_backend: as in `mlstm`.

    Returns:
        ``(h, state)``: h ``(B, N, V)`` in the dtype of `v` and the memory after the step.

    Raises:
        TypeError, ValueError, NotImplementedError: as in `mlstm`.
    """
    options = _plan_step(q, k, v, i, f, state, eps, kernel_backend, matmul_precision())
    return _run_step(options, Steps(q, k, v, i, f), _as_state(state))


def _plan_by_values(q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps, backend, precision, state):
    """The options of a legal call; raises where it is not."""
    call = check_mlstm(JAX, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps)
    asked = request(call, v, cu_seqlens is not None)
    interpreted = interpret(asked, choose(asked, backend))
    steps = call["S"] if cu_seqlens is None else call["T"]
    block = BLOCK_ON_CPU if asked.device == "cpu" else BLOCK
    return Options(choose_chunk(steps, chunk_size), float(eps), False, precision, state, interpreted, block)


_plan = planned_once(_plan_by_values)


@planned_once
def _plan_step(q, k, v, i, f, state, eps, backend, precision):
    call = check_mlstm_step(JAX, q, k, v, i, f, state, eps)
    asked = request(call, v)
    return Options(1, float(eps), False, precision, True, interpret(asked, choose(asked, backend)))


@request_builder("mlstm")
def _request(
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    *,
    initial_state: Any = None,
    return_state: bool = False,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
    chunk_size: Any = None,
    eps: Any = 0.0,
) -> Request:
    call = check_mlstm(JAX, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps)
    return request(call, v, cu_seqlens is not None)


@request_builder("mlstm_step")
def _request_step(q: Any, k: Any, v: Any, i: Any, f: Any, state: Any, *, eps: Any = 0.0) -> Request:
    return request(check_mlstm_step(JAX, q, k, v, i, f, state, eps), v)


def _as_state(state: Any) -> MLSTMState | None:
    return None if state is None else MLSTMState(*state)


def _as_int32(cu_seqlens: Any) -> Any:
    return None if cu_seqlens is None else cu_seqlens.astype("int32")


@partial(jax.jit, static_argnums=0)
def _run(
    options: Options, x: Steps, initial: MLSTMState | None, cu_seqlens: jax.Array | None
) -> tuple[jax.Array, MLSTMState | None]:
    x, initial, cu_seqlens = vary_alike((x, initial, cu_seqlens))
    if cu_seqlens is not None and (cu_seqlens.shape[0] == 1 or x.q.shape[0] == 0):
        # No sequence, or none with a step: there is no chunk to compute.
        last = jax.tree.map(jnp.copy, _or_zeros(initial, x, cu_seqlens.shape[0] - 1))
        return jnp.zeros_like(x.v), last if options.return_state else None
    return _mlstm(options, x, initial, cu_seqlens)


@partial(jax.jit, static_argnums=0)
def _run_step(options: Options, x: Steps, state: MLSTMState) -> tuple[jax.Array, MLSTMState]:
    return _step(options, *vary_alike((x, state)))


@own_gradient("mlstm")
def _mlstm(
    options: Options, x: Steps, initial: MLSTMState | None, cu_seqlens: jax.Array | None
) -> tuple[jax.Array, MLSTMState | None]:
    return _forward(options, x, initial, cu_seqlens)[0]


def _forward(options: Options, x: Steps, initial: MLSTMState | None, cu_seqlens: jax.Array | None) -> tuple[Any, Any]:
    """The result, and what the gradient needs of it: the memory at the start of every block, and the last."""
    if options.interpret is not None:
        state = _or_zeros(initial, x, x.q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1)
        h, last, kept = _mlstm_pallas.forward(_setting(options), x, state, cu_seqlens)
        return (h, last if options.return_state else None), (x, initial, cu_seqlens, kept, last)
    if cu_seqlens is None:
        h, starts, last = _dense(options, x, _or_zeros(initial, x, x.q.shape[0]))
    else:
        h, starts, last = _packed(options, x, _or_zeros(initial, x, cu_seqlens.shape[0] - 1), cu_seqlens)
    return (h, last if options.return_state else None), (x, initial, cu_seqlens, starts, last)


@first_order("mlstm")
def _gradient(options: Options, saved: tuple, cotangents: tuple) -> tuple[Steps, MLSTMState | None]:
    x, initial, cu_seqlens, starts, last = saved
    dh, dlast = cotangents
    if options.interpret is not None:
        dlast = jax.tree.map(jnp.zeros_like, last) if dlast is None else dlast
        state = _or_zeros(initial, x, last.m.shape[0])
        dx, dinitial = _mlstm_pallas.backward(_setting(options), x, state, cu_seqlens, starts, dh, dlast)
        return dx, None if initial is None else dinitial
    dlast = unattained(last, jax.tree.map(jnp.zeros_like, last) if dlast is None else dlast)
    if cu_seqlens is None:
        dx, dinitial = _dense_gradient(options, x, starts, dh, dlast)
    else:
        dx, dinitial = _packed_gradient(options, x, starts, cu_seqlens, dh, dlast)
    return dx, None if initial is None else attained(initial, dinitial)


@own_gradient("mlstm_step")
def _step(options: Options, x: Steps, state: MLSTMState) -> tuple[jax.Array, MLSTMState]:
    return _step_forward(options, x, state)[0]


def _step_forward(options: Options, x: Steps, state: MLSTMState) -> tuple[Any, Any]:
    if options.interpret is None:
        h, _, last = _dense(options, _with_steps(x), state)
        h = h[:, 0]
    else:
        h, last = _step_by_kernel(options, x, state)
    return (h, last), (x, state, last)


@first_order("mlstm_step")
def _step_by_kernel(options: Options, x: Steps, state: MLSTMState) -> tuple[jax.Array, MLSTMState]:
    return mlstm_decode.step(_setting(options), *x, state)


@first_order("mlstm_step")
def _step_backward(options: Options, saved: tuple, cotangents: tuple) -> tuple[Steps, MLSTMState]:
    """As the gradient of a sequence of one step; the kernels of whole chunks have it on Pallas."""
    x, state, last = saved
    dh, dlast = cotangents
    if options.interpret is not None:
        setting, sequence = _setting(options), _with_steps(x)
        *_, kept = _mlstm_pallas.forward(setting, sequence, state, None)
        dx, dstate = _mlstm_pallas.backward(setting, sequence, state, None, kept, dh[:, None], dlast)
        return jax.tree.map(lambda part: part[:, 0], dx), dstate
    starts = jax.tree.map(lambda part: part[None], state)
    dx, dstate = _dense_gradient(options, _with_steps(x), starts, dh[:, None], unattained(last, dlast))
    return jax.tree.map(lambda part: part[:, 0], dx), attained(state, dstate)


_step.defvjp(_step_forward, _step_backward)


def _with_steps(x: Steps) -> Steps:
    """One step as a sequence, ``(B, N, …)`` → ``(B, 1, N, …)``."""
    return jax.tree.map(lambda part: part[:, None], x)


def _setting(options: Options) -> Setting:
    assert options.interpret is not None
    return Setting(options.eps, options.interpret)


def _backward(options: Options, saved: tuple, cotangents: tuple) -> tuple[Any, Any, None]:
    return *_gradient(options, saved, cotangents), None


_mlstm.defvjp(_forward, _backward)


def _dense(options: Options, x: Steps, initial: MLSTMState) -> tuple[jax.Array, MLSTMState, MLSTMState]:
    """h, the memory at the start of every block, and the last; one block of chunks after the other."""

    def block(state: MLSTMState, x: Steps) -> tuple[MLSTMState, tuple[jax.Array, MLSTMState]]:
        chunks = _cut(options, x, state.C.dtype)
        p = _chunkwise.forward(options, chunks, state, None, Kept())
        h = _join(_chunkwise.output(options, chunks, p), x.v)
        return p.last, (h, state)

    last, (h, starts) = jax.lax.scan(block, initial, _blocks(options, x))
    return from_chunks(h, 1, x.v.shape[1]), starts, last


def _dense_gradient(
    options: Options, x: Steps, starts: MLSTMState, dh: jax.Array, dlast: MLSTMState
) -> tuple[Steps, MLSTMState]:
    def block(dstate: MLSTMState, at: tuple[Steps, jax.Array, MLSTMState]) -> tuple[MLSTMState, Steps]:
        x, dh, start = at
        dtype = start.C.dtype
        chunks = _cut(options, x, dtype)
        p = _chunkwise.forward(options, chunks, start, None, Kept())
        dx, dstate = _chunkwise.backward(options, chunks, p, None, _cut_values(options, dh, dtype), dstate)
        return dstate, Steps(*map(_join, _unscaled(dx), x))

    blocks, size = _blocks(options, x), _block_size(options, x)
    dinitial, dx = jax.lax.scan(block, dlast, (blocks, to_chunks(dh, 1, size), starts), reverse=True)
    return Steps(*(from_chunks(part, 1, x.q.shape[1]) for part in dx)), dinitial


def _packed(
    options: Options, x: Steps, initial: MLSTMState, cu_seqlens: jax.Array
) -> tuple[jax.Array, MLSTMState, MLSTMState]:
    """h, the initial state of every sequence, and the last."""
    table = chunk_table(cu_seqlens, x.q.shape[0], options.L)
    chunks = _cut(options, x, initial.C.dtype, table)
    p = _chunkwise.forward(options, chunks, initial, table.restarts, Kept())
    return _join(_chunkwise.output(options, chunks, p), x.v, table), initial, p.last


def _packed_gradient(
    options: Options, x: Steps, initial: MLSTMState, cu_seqlens: jax.Array, dh: jax.Array, dlast: MLSTMState
) -> tuple[Steps, MLSTMState]:
    table = chunk_table(cu_seqlens, x.q.shape[0], options.L)
    dtype = initial.C.dtype
    chunks = _cut(options, x, dtype, table)
    p = _chunkwise.forward(options, chunks, initial, table.restarts, Kept())
    dh = _cut_values(options, dh, dtype, table)
    dx, dinitial = _chunkwise.backward(options, chunks, p, table.restarts, dh, dlast)
    return Steps(*(_join(part, of, table) for part, of in zip(_unscaled(dx), x, strict=True))), dinitial


def _block_size(options: Options, x: Steps) -> int:
    """Steps a block: a whole number of chunks, blocks of equal length."""
    B, S, N = x.i.shape
    blocks = max(1, -(-B * S * N // options.block))
    return options.L * max(1, -(-S // (blocks * options.L)))


def _blocks(options: Options, x: Steps) -> Steps:
    """``(B, S, N, …)`` → ``(blocks, B, steps a block, N, …)``."""
    size = _block_size(options, x)
    return Steps(**{name: to_chunks(part, 1, size, BLANK.get(name, 0)) for name, part in x._asdict().items()})


def _cut(options: Options, x: Steps, dtype: Any, table: Table | None = None) -> Steps:
    """The inputs in chunks, in the accumulation dtype, q divided by √K."""
    cut = {name: _cut_values(options, part, dtype, table, BLANK.get(name, 0)) for name, part in x._asdict().items()}
    return Steps(**{**cut, "q": cut["q"] * x.q.shape[-1] ** -0.5})


def _unscaled(dx: Steps) -> Steps:
    """The gradient of q from that of q̂ = q/√K."""
    return dx._replace(q=dx.q * dx.q.shape[-1] ** -0.5)


def _cut_values(
    options: Options, x: jax.Array, dtype: Any, table: Table | None = None, blank: float = 0.0
) -> jax.Array:
    """``(B, S, N, …)`` or ``(T, N, …)`` in chunks, ``(c, B, N, L, …)`` or ``(c, N, L, …)``."""
    x = x.astype(dtype)
    if table is None:
        return jnp.moveaxis(to_chunks(x, 1, options.L, blank), 3, 2)
    return jnp.moveaxis(gather_chunks(x, table, blank), 2, 1)


def _join(x: jax.Array, like: jax.Array, table: Table | None = None) -> jax.Array:
    """Inverse of `_cut_values`, in the dtype and the number of steps of ``like``."""
    if table is None:
        return from_chunks(jnp.moveaxis(x, 2, 3), 1, like.shape[1]).astype(like.dtype)
    return gather_tokens(jnp.moveaxis(x, 1, 2), table).astype(like.dtype)


def _or_zeros(initial: MLSTMState | None, x: Steps, B: int) -> MLSTMState:
    if initial is not None:
        return initial
    N, K, V = x.q.shape[-2], x.q.shape[-1], x.v.shape[-1]
    return MLSTMState(*zeros_like_states(x.v, (B, N, K, V), (B, N, K), (B, N)))
