"""The fwbw interface of xlstm_jax: the forward and the backward pass of the mLSTM, with a context between them.

Layout: ``q, k (B, T, K)``, ``v (B, T, V)``, ``i, f (B, T)`` or ``(B, T, 1)``; heads are an outer axis that the caller
maps over with ``jax.vmap``. The equations are in the docstring of `chunkwise`; the configuration says which results of
the forward pass are saved for the backward pass. Where steps are sharded over a mesh axis, the passes are those of this
device's steps, from the state that `sequence_parallel` gives them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jax_impl._arrays import JAX, accumulation, matmul_precision, zeros_like_states
from jax_impl._call_cache import cached_by_signature
from jax_impl._chunk_layout import chunk_length, from_chunks, to_chunks
from jax_impl._handwritten_gradient import handwritten_gradient, without_second_derivative
from jax_impl._mesh_axes import partition, place, vary_alike, vary_to, varying_axes, with_auto_axes
from jax_impl._mlstm import chunkwise, sequence_parallel
from jax_impl._mlstm.arguments import Arguments, Gradients, Tokens
from jax_impl._mlstm.arguments import Options as MLSTMOptions
from jax_impl._mlstm.blocks import PADDING
from jax_impl._mlstm.chunkwise import Chunks, ChunkwiseOptions, ForwardPass, LogGates, Precomputed
from jax_impl._mlstm.drift import begin, pass_on
from jax_impl._mlstm.state import join_stabiliser_gradient, split_stabiliser_gradient, weighted
from reference.arguments import (
    MLSTMState,
    check_fwbw,
    check_fwbw_context,
    check_fwbw_cotangents,
    frozen_config,
    mLSTMBackendFwbwConfig,
    normalise_config,
)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["q", "k", "v", "i", "f", "state", "G", "gates", "M", "c"],
    meta_fields=["config", "sequence_axis"],
)
@dataclass(frozen=True)
class FwbwContext:
    """Residuals that `fwbw_forward` passes to `fwbw_backward`: the inputs, and whatever the configuration asks to keep.

    A pytree. Everything but the inputs is in the accumulation dtype; the backward pass recomputes the fields that are
    None. T/L is rounded up.

    Attributes:
        config: the configuration of the forward pass.
        q, k, v, i, f: the inputs as they were passed.
        state: the initial state, of the whole sequences; None means zeros.
        G: decayed scores inside each chunk, ``(B, T/L, L, L)`` (``keep_G``).
        gates: log forget gates and their sums inside each chunk, ``(B, T/L, L)`` each (``keep_gates``).
        M: the stabiliser of every step, ``(B, T)`` (``keep_M``).
        c: the memory at the start of every chunk, ``(B, T/L, K, V)``, ``(B, T/L, K)``, ``(B, T/L)`` (``keep_c``).
        sequence_axis: the mesh axis over which the steps are sharded; None if they are not.
    """

    config: mLSTMBackendFwbwConfig
    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array
    state: MLSTMState | None
    G: jax.Array | None
    gates: LogGates | None
    M: jax.Array | None
    c: MLSTMState | None
    sequence_axis: str | tuple[str, ...] | None = None

    @property
    def tokens(self) -> Tokens:
        return Tokens(q=self.q, k=self.k, v=self.v, i=self.i, f=self.f)


class Options(NamedTuple):
    """A configuration as static options.

    Attributes:
        config: the configuration itself.
        chunkwise: the options of the arithmetic, for the T of the call.
        sequence_axis: as in `FwbwContext`.
    """

    config: mLSTMBackendFwbwConfig
    chunkwise: ChunkwiseOptions
    sequence_axis: str | tuple[str, ...] | None = None

    def across_devices(self, return_state: bool) -> MLSTMOptions:
        """The options of the call of `mlstm` that communicates as this one does."""
        return MLSTMOptions(
            chunkwise=self.chunkwise, return_state=return_state, backend="xla", interpret=False, block=0,
            sequence_axis=self.sequence_axis,
        )  # fmt: skip


class OptionalState(NamedTuple):
    """Cotangents of the final state; None for one that is zero."""

    C: jax.Array | None
    n: jax.Array | None
    m: jax.Array | None


class BackwardArguments(NamedTuple):
    """The arrays of a backward pass: the context, and the cotangents of h and of the final state."""

    ctx: FwbwContext
    dh: jax.Array
    dlast: OptionalState


class Result(NamedTuple):
    """h, the final state if requested, and the context; or their cotangents (that of the context is not used)."""

    h: jax.Array
    state: MLSTMState | None
    context: FwbwContext | None


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
    *,
    sequence_axis: str | tuple[str, ...] | None = None,
) -> tuple[Any, FwbwContext]:
    """Forward pass of the mLSTM, with the equations of `mlstm`; also returns the context for `fwbw_backward`.

    Args:
        q, k: ``(B, T, K)``.
        v: ``(B, T, V)``.
        i, f: gate preactivations, ``(B, T)`` or ``(B, T, 1)``, in the dtype of `v`, or float32 if `v` has a 16-bit
            dtype.
        config: the configuration or its dict.
        initial_C, initial_n, initial_m: ``(B, K, V)``, ``(B, K)``, ``(B,)``, in the accumulation dtype; allowed only
            with ``use_initial_state``, where None means zeros.
        sequence_axis: as in `mlstm`: the arrays q to f are then this device's steps, and states those of the whole
            sequences. The context says so to `fwbw_backward`, which is called inside the same ``shard_map``.

    Returns:
        ``(h, context)``, or ``((h, (C, n, m)), context)`` with ``return_state``; h is ``(B, T, V)`` in the dtype of
        `v`, the state is in the accumulation dtype. h and the state can be differentiated once, in reverse mode; the
        context is only a record of the call and carries no gradient.

    Raises:
        TypeError, ValueError: as in `mlstm`; also if `config` is not a configuration, if a state is given with
            ``use_initial_state=False``, or if only a part of the state is given; for `sequence_axis` as in `mlstm`.
    """
    config = normalise_config(config, "fwbw_forward")
    # The context outlives the call, so arrays that the caller may overwrite later are copied.
    arrays = [
        jnp.array(x) if isinstance(x, np.ndarray) and JAX.refuses(x) is None else x
        for x in (q, k, v, i, f, initial_C, initial_n, initial_m)
    ]
    h, state, context = _run(_options(config, sequence_axis, *arrays), *arrays)
    return _public(config, h, state), jax.lax.stop_gradient(context)


def fwbw_backward(
    ctx: FwbwContext,
    dh: jax.Array,
    config: mLSTMBackendFwbwConfig | dict,
    dc_last: jax.Array | None = None,
    dn_last: jax.Array | None = None,
    dm_last: jax.Array | None = None,
) -> tuple[jax.Array | None, ...]:
    """Gradient of `fwbw_forward`; it cannot itself be differentiated.

    Where the context is that of sharded steps, every device sends the messages of the forward pass again, and then as
    many in the opposite direction.

    Args:
        ctx: the context that `fwbw_forward` returned for the same configuration; only ``return_state`` may differ.
        dh: cotangent of h, ``(B, T, V)``.
        config: the configuration of the forward pass.
        dc_last, dn_last, dm_last: cotangents of the final state; None means zeros. Of sharded steps they are the same
            on every device of the axis, and count once.

    Returns:
        Gradients of ``q, k, v, i, f, initial_C, initial_n, initial_m``, each with the dtype and shape of its argument;
        the last three are None without ``use_initial_state``.

    Raises:
        TypeError, ValueError: as in `fwbw_forward`; also if `ctx` is not a context, was made with another
            configuration, or if its axis is not one of the surrounding ``shard_map``.
        NotImplementedError: the function is differentiated.
    """
    config = normalise_config(config, "fwbw_backward")
    check_fwbw_context(ctx, FwbwContext, config)
    decide = _cached_gradient_options if ctx.sequence_axis is None else _gradient_options
    options = decide(
        *(ctx.q, ctx.k, ctx.v, ctx.i, ctx.f, dh, dc_last, dn_last, dm_last, matmul_precision(), ctx.sequence_axis),
        *_values(config),
    )
    gradients = _run_gradient(options, ctx, dh, dc_last, dn_last, dm_last)
    dinitial = gradients.initial_state if config.use_initial_state else None
    return *gradients.tokens, *(dinitial or (None, None, None))


def mlstm_fwbw_custom_grad(
    config: mLSTMBackendFwbwConfig | dict, *, sequence_axis: str | tuple[str, ...] | None = None
) -> Callable:
    """The forward pass as a function with the gradient `fwbw_backward`; may be jitted, mapped and differentiated once.

    Args:
        config: the configuration or its dict; it is read now, so that later changes have no effect.
        sequence_axis: as in `fwbw_forward`; the function is then called inside ``shard_map``.

    Returns:
        ``function(q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None)`` → ``h``, or ``(h, (C, n, m))`` with
        ``return_state``; shapes, dtypes and errors are those of `fwbw_forward`.

    Raises:
        TypeError, ValueError: `config` is not a valid configuration.
    """
    config = frozen_config(config, "mlstm_fwbw_custom_grad")

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
        options = _options(config, sequence_axis, q, k, v, i, f, initial_C, initial_n, initial_m)
        h, state = _run_without_context(options, q, k, v, i, f, initial_C, initial_n, initial_m)
        return _public(config, h, state)

    return mlstm_fwbw


_values = attrgetter(*(field.name for field in fields(mLSTMBackendFwbwConfig)))
"""The values of a configuration, field by field, for use in a cache key: the caller may change the object later."""


def _options(config: mLSTMBackendFwbwConfig, sequence_axis: Any, *arrays: Any) -> Options:
    """The options of a legal call with the arrays from q to initial_m; raises if the call is not legal."""
    # No cache knows over which mesh axes an array varies.
    decide = _cached_options if sequence_axis is None else _decided_options
    return decide(*arrays, matmul_precision(), sequence_axis, *_values(config))


def _decided_options(
    q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any, precision: str, sequence_axis: Any, *values: Any
) -> Options:
    config = mLSTMBackendFwbwConfig(*values)
    call = check_fwbw(JAX, q, k, v, i, f, config, C, n, m)
    if sequence_axis is not None:
        place("fwbw_forward", sequence_axis, "sequence_axis")
        states = {"initial_C": C, "initial_n": n, "initial_m": m}
        sequence_parallel.check_sharded(call, sequence_axis, (q, k, v, i, f), states)
    return _options_for_length(config, call["T"], precision, sequence_axis)


def _gradient_options(
    q: Any, k: Any, v: Any, i: Any, f: Any, dh: Any, dC: Any, dn: Any, dm: Any, precision: str, axis: Any, *values: Any
) -> Options:
    config = mLSTMBackendFwbwConfig(*values)
    call = check_fwbw(JAX, q, k, v, i, f, config, None, None, None, "fwbw_backward")
    check_fwbw_cotangents(call, v, dh, dC, dn, dm)
    if axis is not None:
        place("fwbw_backward", axis, "ctx.sequence_axis")
        cotangents = {"dc_last": dC, "dn_last": dn, "dm_last": dm}
        sequence_parallel.check_sharded(call, axis, (q, k, v, i, f), cotangents)
    return _options_for_length(config, call["T"], precision, axis)


_cached_options, _cached_gradient_options = map(cached_by_signature, (_decided_options, _gradient_options))


def _options_for_length(config: mLSTMBackendFwbwConfig, T: int, precision: str, sequence_axis: Any) -> Options:
    arithmetic = ChunkwiseOptions(
        L=chunk_length(T, config.chunk_size),
        eps=0.0,
        stabilize_correctly=config.stabilize_correctly,
        precision=precision,
    )
    return Options(config=config, chunkwise=arithmetic, sequence_axis=sequence_axis)


def _public(config: mLSTMBackendFwbwConfig, h: jax.Array, state: tuple | None) -> Any:
    return (h, state) if config.return_state else h


@partial(jax.jit, static_argnums=0)
def _run(options: Options, *arrays: Any) -> tuple[jax.Array, tuple | None, FwbwContext]:
    """The forward pass, compiled; arrays from q to initial_m and results cross the boundary of `jax.jit` one by one."""
    arguments = _arguments(*arrays)
    result = _placed(options, vary_alike(arguments))
    assert result.context is not None
    context = result.context
    if options.sequence_axis is not None:
        # The gradient of the state depends on the axes over which it varied before the cast.
        context = replace(context, **arguments.tokens._asdict(), state=arguments.initial_state)
    return result.h, _parts(result.state), context


@partial(jax.jit, static_argnums=0)
def _run_without_context(options: Options, *arrays: Any) -> tuple[jax.Array, tuple | None]:
    result = _placed(options, vary_alike(_arguments(*arrays)))
    return result.h, _parts(result.state)


def _placed(options: Options, arguments: Arguments) -> Result:
    """The forward pass, with explicit mesh axes made automatic."""
    compute = partial(_fwbw if options.sequence_axis is None else _sharded, options)
    return with_auto_axes(compute, arguments, partial(_partitions, options, arguments))


def _sharded(options: Options, arguments: Arguments) -> Result:
    """The forward pass of this device's steps, and the final state of the whole sequences on every device."""
    config, state = options.config, arguments.initial_state
    across = options.across_devices(config.return_state)
    begin = _incoming(across, arguments.tokens, _zeros(arguments.tokens) if state is None else state)
    result = _fwbw(options, arguments._replace(initial_state=begin))
    assert result.context is not None
    result = result._replace(context=replace(result.context, state=state))
    if result.state is None:
        return result
    owns = sequence_parallel.ends_here(across)
    return result._replace(state=sequence_parallel.from_owner(across, owns, result.state))


def _incoming(across: MLSTMOptions, tokens: Tokens, state: MLSTMState) -> MLSTMState:
    """The state with which this device's steps begin, if those of the first device begin with ``state``."""
    heads = Tokens(*(x.reshape(*x.shape[:2], 1, *x.shape[2:]) for x in tokens[:3]), *map(_gate_of_heads, tokens[3:]))
    begin = sequence_parallel.dense_incoming(across, heads, jax.tree.map(lambda x: x[:, None], state))
    return jax.tree.map(lambda x: x[:, 0], begin)


def _gate_of_heads(gate: jax.Array) -> jax.Array:
    return gate.reshape(*gate.shape[:2], 1)


def _partitions(options: Options, arguments: Arguments) -> Any:
    """h, and everything with a batch axis, is sharded like v; the context holds the inputs unchanged."""
    result = jax.eval_shape(partial(_fwbw, options), jax.tree.map(_shape, arguments))
    h, of_inputs = partition(arguments.tokens.v), jax.tree.map(lambda x: P(*partition(x)), arguments)
    computed = jax.tree.map(lambda x: P(h[0], *(None,) * (x.ndim - 1)), result)
    assert computed.context is not None
    context = replace(computed.context, **of_inputs.tokens._asdict(), state=of_inputs.initial_state)
    return Result._make((P(*h), computed.state, context))


def _shape(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _arguments(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> Arguments:
    initial = None if C is None else MLSTMState(C=C, n=n, m=m)
    return Arguments(tokens=Tokens(q=q, k=k, v=v, i=i, f=f), initial_state=initial)


def _parts(state: MLSTMState | None) -> tuple | None:
    return None if state is None else tuple(state)


def _forward(options: Options, arguments: Arguments) -> tuple[Result, FwbwContext]:
    chunks, state = _to_chunks(options, arguments)
    p = chunkwise.forward(options.chunkwise, chunks, begin(state))
    v = arguments.tokens.v
    h = from_chunks(chunkwise.output(options.chunkwise, chunks, p), 1, v.shape[1]).astype(v.dtype)
    context = _context(options, arguments, p)
    last = pass_on(p.last)[0] if options.config.return_state else None
    return Result(h=h, state=last, context=context), context


@without_second_derivative("fwbw_backward")
def _gradient(options: Options, ctx: FwbwContext, dh: jax.Array, dlast: OptionalState | MLSTMState | None) -> Gradients:
    tokens = ctx.tokens
    chunks, state = _to_chunks(options, Arguments(tokens=tokens, initial_state=ctx.state))
    given = OptionalState(C=None, n=None, m=None) if dlast is None else dlast
    dstate = MLSTMState(*(jnp.zeros_like(s) if d is None else d for s, d in zip(state, given, strict=True)))
    p = chunkwise.forward(options.chunkwise, chunks, begin(state), precomputed=_precomputed(options, ctx))
    dh = to_chunks(dh.astype(state.C.dtype), 1, options.chunkwise.L)
    last, weight = pass_on(p.last)
    dend = weighted(split_stabiliser_gradient(last, dstate), weight)
    found = chunkwise.backward(options.chunkwise, chunks, p, dh, dend)
    dchunks = found.chunks._replace(q=found.chunks.q * tokens.q.shape[-1] ** -0.5)
    joined = (
        from_chunks(part, 1, of.shape[1]).reshape(of.shape).astype(of.dtype)
        for part, of in zip(dchunks, tokens, strict=True)
    )
    return Gradients(tokens=Tokens(*joined), initial_state=join_stabiliser_gradient(state, found.initial_state))


def _sharded_gradient(options: Options, x: BackwardArguments) -> Gradients:
    """The gradient of `_sharded`: that of this device's own pass, then that of the state with which it begins."""
    ctx, across = x.ctx, options.across_devices(return_state=True)
    state = _zeros(ctx.tokens) if ctx.state is None else ctx.state
    if ctx.state is None and options.config.use_initial_state:
        # Like a given state, which is the same on all devices of the axis; so is its gradient.
        axes = {across.sequence_axis} if isinstance(across.sequence_axis, str) else {*(across.sequence_axis or ())}
        state = jax.tree.map(lambda z: vary_to(varying_axes(z) - axes, jnp.zeros(z.shape, z.dtype)), state)

    def incoming(tokens: Tokens, state: MLSTMState) -> MLSTMState:
        return _incoming(across, *vary_alike((tokens, state)))

    begin, pull_back = jax.vjp(incoming, ctx.tokens, state)
    ends, last = sequence_parallel.ends_here(across), x.dlast
    last = OptionalState(*(None if d is None else jnp.where(ends, d, 0) for d in last))
    varying = vary_alike(BackwardArguments(ctx=replace(ctx, state=begin), dh=x.dh, dlast=last))
    own = _gradient(options, varying.ctx, varying.dh, varying.dlast)
    dtokens, dstate = pull_back(own.initial_state)
    return Gradients(tokens=jax.tree.map(jnp.add, own.tokens, dtokens), initial_state=dstate)


def _backward(options: Options, ctx: FwbwContext, cotangents: Result) -> Gradients:
    gradients = _gradient(options, ctx, cotangents.h, cotangents.state)
    return gradients._replace(initial_state=None) if ctx.state is None else gradients


_fwbw = handwritten_gradient("mlstm_fwbw_custom_grad", Arguments, _forward, _backward)


@partial(jax.jit, static_argnums=0)
def _run_gradient(
    options: Options,
    ctx: FwbwContext,
    dh: jax.Array,
    dC: jax.Array | None,
    dn: jax.Array | None,
    dm: jax.Array | None,
) -> Gradients:
    """The gradients of the inputs and of the initial state, compiled."""
    backward = BackwardArguments(ctx=ctx, dh=dh, dlast=OptionalState(C=dC, n=dn, m=dm))
    if options.sequence_axis is None:
        backward = vary_alike(backward)

    def partitions() -> Gradients:
        ctx = backward.ctx
        B = partition(ctx.v)[0]
        state = MLSTMState(C=P(B, None, None), n=P(B, None), m=P(B))
        return Gradients(tokens=jax.tree.map(lambda x: P(*partition(x)), ctx.tokens), initial_state=state)

    def compute(x: BackwardArguments) -> Gradients:
        return (
            _gradient(options, x.ctx, x.dh, x.dlast) if options.sequence_axis is None else _sharded_gradient(options, x)
        )

    return with_auto_axes(compute, backward, partitions)


def _to_chunks(options: Options, arguments: Arguments) -> tuple[Chunks, MLSTMState]:
    """The inputs in chunks, ``(c, B, L, ·)``, in the accumulation dtype and with q divided by √K; the initial state."""
    tokens, state = arguments.tokens, arguments.initial_state
    B, T, K = tokens.q.shape
    dtype = accumulation(tokens.v)
    state = _zeros(tokens) if state is None else state
    tokens = tokens._replace(q=tokens.q.astype(dtype) * K**-0.5, i=tokens.i.reshape(B, T), f=tokens.f.reshape(B, T))
    chunks = {
        name: to_chunks(part.astype(dtype), 1, options.chunkwise.L, PADDING.get(name, 0))
        for name, part in tokens._asdict().items()
    }
    return Chunks(**chunks), state


def _zeros(tokens: Tokens) -> MLSTMState:
    """Zero states of the sequences."""
    (B, _, K), V = tokens.q.shape, tokens.v.shape[-1]
    return MLSTMState(*zeros_like_states(tokens.v, (B, K, V), (B, K), (B,)))


def _context(options: Options, arguments: Arguments, p: ForwardPass) -> FwbwContext:
    config, tokens = options.config, arguments.tokens
    G, gates, start = jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), (p.G, p.gates, p.start))
    return FwbwContext(
        # This is a copy because options are cached for later calls, while the caller can change what the context holds.
        config=replace(config),
        **tokens._asdict(),
        state=arguments.initial_state,
        G=G if config.keep_G else None,
        gates=gates if config.keep_gates else None,
        M=from_chunks(p.m, 1, tokens.q.shape[1]) if config.keep_M else None,
        c=start if config.keep_c else None,
        sequence_axis=options.sequence_axis,
    )


def _precomputed(options: Options, ctx: FwbwContext) -> Precomputed:
    """The results stored in the context, chunk axis first. Padding steps get the stabiliser of the last step."""
    G, gates, start = jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), (ctx.G, ctx.gates, ctx.c))
    if ctx.M is None:
        return Precomputed(gates=gates, G=G, start=start)
    L, T = options.chunkwise.L, ctx.M.shape[1]
    padded = jnp.pad(ctx.M, [(0, 0), (0, -T % L)], mode="edge") if T % L else ctx.M
    return Precomputed(gates=gates, m=to_chunks(padded, 1, L), G=G, start=start)
