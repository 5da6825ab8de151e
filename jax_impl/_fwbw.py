"""The fwbw interface of xlstm_jax: mLSTM forward and backward as two functions with a context between them.

Layout: ``q, k (B, T, K)``, ``v (B, T, V)``, ``i, f (B, T)`` or ``(B, T, 1)``; a head is an outer axis, mapped over by
the caller with ``jax.vmap``. The equations stand at the head of `_chunkwise`; what it computes on the way forward is
what the configuration can say to keep.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_impl import _chunkwise
from jax_impl._chunkwise import Forward, Gates, Kept, Options, Steps, attained, choose_chunk, unattained
from jax_impl._framework import (
    JAX,
    accumulation,
    first_order,
    matmul_precision,
    own_gradient,
    vary_alike,
    zeros_like_states,
)
from jax_impl._packing import BLANK, from_chunks, to_chunks
from reference.arguments import (
    MLSTMState,
    check_fwbw,
    check_fwbw_cotangents,
    mLSTMBackendFwbwConfig,
    normalise_config,
)


class FwbwContext(NamedTuple):
    """What `fwbw_forward` keeps for `fwbw_backward`: the inputs, and whatever the configuration says to keep.

    Everything but the inputs is in the accumulation dtype; None stands for what the backward pass computes anew. T/L is
    rounded up.

    Attributes:
        q, k, v, i, f: the inputs as they came.
        state: the initial state, None for zeros.
        G: decayed scores inside each chunk, ``(B, T/L, L, L)`` (``keep_G``).
        gates: log forget gates and their sums inside each chunk, ``(B, T/L, L)`` each (``keep_gates``).
        M: the stabiliser of every step, ``(B, T)`` (``keep_M``).
        c: the memory at the start of every chunk, ``(B, T/L, K, V)``, ``(B, T/L, K)``, ``(B, T/L)`` (``keep_c``).
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array
    state: MLSTMState | None
    G: jax.Array | None
    gates: Gates | None
    M: jax.Array | None
    c: MLSTMState | None


class _Settings(NamedTuple):
    """A configuration as static options."""

    options: Options
    keep_G: bool
    keep_gates: bool
    keep_M: bool
    keep_c: bool


def fwbw_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    config: mLSTMBackendFwbwConfig | dict,
    initial_C: jax.Array | None = None,
    initial_n: jax.Array | None = None,
    initial_m: jax.Array | None = None,
) -> tuple[Any, FwbwContext]:
    """Forward pass of the mLSTM (the equations of `mlstm`) that keeps a context for `fwbw_backward`.

    Args:
        q, k: ``(B, T, K)``.
        v: ``(B, T, V)``.
        i, f: gate preactivations, ``(B, T)`` or ``(B, T, 1)``; in the dtype of `v`, or float32 beside 16-bit values.
        config: the configuration or its dict.
        initial_C, initial_n, initial_m: ``(B, K, V)``, ``(B, K)``, ``(B,)``, in the accumulation dtype; legal with
            ``use_initial_state`` alone, which without them means zeros.

    Returns:
        ``(h, context)``, or ``((h, (C, n, m)), context)`` with ``return_state``; h is ``(B, T, V)`` in the dtype of
        `v`, the state in the accumulation dtype. h and the state can be differentiated (once, in reverse mode); the
        context is a record of the call and carries no gradient.

    Raises:
        TypeError, ValueError: as in `mlstm`; also for a configuration that is none, and for a state with
            ``use_initial_state=False`` or without its partners.
    """
    config = normalise_config(config, "fwbw_forward")
    # The context outlives the call: what the caller may write to later is copied.
    arrays = (
        jnp.array(x) if isinstance(x, np.ndarray) and JAX.refuses(x) is None else x
        for x in (q, k, v, i, f, initial_C, initial_n, initial_m)
    )
    result, context = _call(config, *arrays, context=True)
    assert context is not None
    return result, jax.lax.stop_gradient(context)


def fwbw_backward(
    ctx: FwbwContext,
    dh: jax.Array,
    config: mLSTMBackendFwbwConfig | dict,
    dc_last: jax.Array | None = None,
    dn_last: jax.Array | None = None,
    dm_last: jax.Array | None = None,
) -> tuple[jax.Array | None, ...]:
    """Gradient of `fwbw_forward`; cannot itself be differentiated.

    Args:
        ctx: the context that `fwbw_forward` returned.
        dh: cotangent of h, ``(B, T, V)``.
        config: the configuration of the forward pass.
        dc_last, dn_last, dm_last: cotangents of the final state, None for zeros.

    Returns:
        Gradients of ``q, k, v, i, f, initial_C, initial_n, initial_m``, each in the dtype and shape of what came; the
        last three are None without ``use_initial_state``.

    Raises:
        TypeError, ValueError: as in `fwbw_forward`.
        NotImplementedError: it is differentiated.
    """
    config = normalise_config(config, "fwbw_backward")
    call = check_fwbw(JAX, ctx.q, ctx.k, ctx.v, ctx.i, ctx.f, config, None, None, None, "fwbw_backward")
    check_fwbw_cotangents(call, ctx.v, dh, dc_last, dn_last, dm_last)
    dx, dinitial = _run_gradient(_settings(config, call["T"]), ctx, dh, (dc_last, dn_last, dm_last))
    return (*dx, *(dinitial if config.use_initial_state else (None, None, None)))


def mlstm_fwbw_custom_grad(config: mLSTMBackendFwbwConfig | dict) -> Callable:
    """The forward pass as a function whose gradient is `fwbw_backward`; may be jitted, mapped and differentiated once.

    Args:
        config: the configuration or its dict; read now, so that a later change of it has no effect.

    Returns:
        ``function(q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None)`` → ``h``, or ``(h, (C, n, m))`` with
        ``return_state``; shapes, dtypes and errors as in `fwbw_forward`.

    Raises:
        TypeError, ValueError: `config` is no configuration.
    """
    config = normalise_config({**vars(normalise_config(config, "mlstm_fwbw_custom_grad"))}, "mlstm_fwbw_custom_grad")

    def mlstm_fwbw(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        i: jax.Array,
        f: jax.Array,
        initial_C: jax.Array | None = None,
        initial_n: jax.Array | None = None,
        initial_m: jax.Array | None = None,
    ) -> Any:
        return _call(config, q, k, v, i, f, initial_C, initial_n, initial_m, context=False)[0]

    return mlstm_fwbw


def _call(
    config: mLSTMBackendFwbwConfig, q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any, *, context: bool
) -> tuple[Any, FwbwContext | None]:
    call = check_fwbw(JAX, q, k, v, i, f, config, C, n, m)
    settings = _settings(config, call["T"])
    initial = None if C is None else MLSTMState(C, n, m)
    h, last, ctx = _run(settings, context, Steps(q, k, v, i, f), initial)
    return ((h, tuple(last)) if config.return_state else h), ctx


def _settings(config: mLSTMBackendFwbwConfig, T: int) -> _Settings:
    L = choose_chunk(T, config.chunk_size)
    options = Options(L, 0.0, not config.stabilize_correctly, matmul_precision(), config.return_state)
    return _Settings(options, config.keep_G, config.keep_gates, config.keep_M, config.keep_c)


@partial(jax.jit, static_argnums=(0, 1))
def _run(
    settings: _Settings, context: bool, x: Steps, initial: MLSTMState | None
) -> tuple[Any, Any, FwbwContext | None]:
    x, initial = vary_alike((x, initial))
    h, last, ctx = _fwbw(settings, x, initial)
    return h, last, ctx if context else None


@own_gradient("mlstm_fwbw_custom_grad")
def _fwbw(settings: _Settings, x: Steps, initial: MLSTMState | None) -> tuple[jax.Array, Any, FwbwContext]:
    return _forward(settings, x, initial)[0]


def _forward(settings: _Settings, x: Steps, initial: MLSTMState | None) -> tuple[Any, FwbwContext]:
    chunks, state = _cut(settings, x, initial)
    p = _chunkwise.forward(settings.options, chunks, state, None, Kept())
    h = from_chunks(_chunkwise.output(settings.options, chunks, p), 1, x.v.shape[1]).astype(x.v.dtype)
    ctx = _context(settings, x, initial, p)
    return (h, p.last if settings.options.return_state else None, ctx), ctx


@first_order("fwbw_backward")
def _gradient(settings: _Settings, ctx: FwbwContext, dh: jax.Array, dlast: tuple | None) -> tuple[Steps, MLSTMState]:
    x = Steps(*ctx[:5])
    chunks, state = _cut(settings, x, ctx.state)
    dlast = (None, None, None) if dlast is None else dlast
    dlast = MLSTMState(*(jnp.zeros_like(s) if d is None else d for s, d in zip(state, dlast, strict=True)))
    p = _chunkwise.forward(settings.options, chunks, state, None, _kept(settings, ctx))
    dh = to_chunks(dh.astype(state.C.dtype), 1, settings.options.L)
    dx, dinitial = _chunkwise.backward(settings.options, chunks, p, None, dh, unattained(p.last, dlast))
    dx = dx._replace(q=dx.q * x.q.shape[-1] ** -0.5)
    joined = (
        from_chunks(part, 1, of.shape[1]).reshape(of.shape).astype(of.dtype) for part, of in zip(dx, x, strict=True)
    )
    return Steps(*joined), attained(state, dinitial)


def _backward(settings: _Settings, ctx: FwbwContext, cotangents: tuple) -> tuple[Steps, MLSTMState | None]:
    dh, dlast, _ = cotangents
    dx, dinitial = _gradient(settings, ctx, dh, dlast)
    return dx, None if ctx.state is None else dinitial


_fwbw.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=0)
def _run_gradient(settings: _Settings, ctx: FwbwContext, dh: jax.Array, dlast: tuple) -> tuple[Steps, MLSTMState]:
    return _gradient(settings, *vary_alike((ctx, dh, dlast)))


def _cut(settings: _Settings, x: Steps, initial: MLSTMState | None) -> tuple[Steps, MLSTMState]:
    """The inputs in chunks, ``(c, B, L, ·)``, in the accumulation dtype and q divided by √K; the initial state."""
    B, T, K = x.q.shape
    dtype = accumulation(x.v)
    state = MLSTMState(*zeros_like_states(x.v, (B, K, x.v.shape[-1]), (B, K), (B,))) if initial is None else initial
    x = x._replace(q=x.q.astype(dtype) * K**-0.5, i=x.i.reshape(B, T), f=x.f.reshape(B, T))
    cut = {
        name: to_chunks(part.astype(dtype), 1, settings.options.L, BLANK.get(name, 0))
        for name, part in x._asdict().items()
    }
    return Steps(**cut), state


def _context(settings: _Settings, x: Steps, initial: MLSTMState | None, p: Forward) -> FwbwContext:
    G, gates, start = jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), (p.G, p.gates, p.start))
    return FwbwContext(
        *x,
        state=initial,
        G=G if settings.keep_G else None,
        gates=gates if settings.keep_gates else None,
        M=from_chunks(p.m, 1, x.q.shape[1]) if settings.keep_M else None,
        c=start if settings.keep_c else None,
    )


def _kept(settings: _Settings, ctx: FwbwContext) -> Kept:
    """What the context holds, chunks first. A step that fills up the last chunk has the stabiliser before it."""
    G, gates, start = jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), (ctx.G, ctx.gates, ctx.c))
    if ctx.M is None:
        return Kept(gates, None, G, start)
    L, T = settings.options.L, ctx.M.shape[1]
    whole = jnp.pad(ctx.M, [(0, 0), (0, -T % L)], mode="edge") if T % L else ctx.M
    return Kept(gates, to_chunks(whole, 1, L), G, start)
