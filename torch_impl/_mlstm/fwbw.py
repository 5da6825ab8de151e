"""The fwbw interface of xlstm_jax: the forward and the backward pass of the mLSTM, with a context between them.

Layout: ``q, k (B, T, K)``, ``v (B, T, V)``, ``i, f (B, T)`` or ``(B, T, 1)``; heads by an outer ``torch.func.vmap``,
which is merged into one call. The equations are in the docstring of `torch_impl._mlstm.chunkwise`. Where steps are
sharded over ranks, the passes are those of this rank's steps, from the state that `sequence_parallel` gives.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import (
    MLSTMState,
    check_fwbw,
    check_fwbw_context,
    check_fwbw_cotangents,
    frozen_config,
    mLSTMBackendFwbwConfig,
    normalise_config,
)
from torch_impl._arrays import ACCUMULATION, TORCH, autocast_dtype, cast, transforming
from torch_impl._backends import choose, request_of
from torch_impl._collectives import Group, group_of
from torch_impl._distributed import is_distributed
from torch_impl._mlstm.agreement import Names, first_token, refuse_together
from torch_impl._mlstm.arguments import Arguments, Cotangents
from torch_impl._mlstm.autograd import SEQUENCES
from torch_impl._mlstm.sequence_parallel import check_local, dense_incoming, ends_here, from_owner
from torch_impl._operators import needs_transform, recording
from torch_impl._sequence_groups import as_operator_option

_INPUTS = ("q", "k", "v", "i", "f", "initial_C", "initial_n", "initial_m")
_NAMES = ("initial_C", "initial_n", "initial_m")


@dataclass(frozen=True)
class FwbwContext:
    """Residuals that `fwbw_forward` passes to `fwbw_backward`: a pytree whose leaves are the tensors that it holds.

    Attributes:
        q, k, v, i, f: the inputs, cast as under autocast.
        initial_C, initial_n, initial_m: the initial state; None without ``use_initial_state``.
        residuals: the record of the backend's residuals, without a head axis; those that are None are recomputed.
        backend: the name of the backend that made the context, which also computes the backward pass.
        config: a copy of the configuration.
        versions: PyTorch's count of writes to each input when the context was made, by which `fwbw_backward` detects an
            overwritten input; None if PyTorch does not count.
        group: the ranks over which the steps are sharded, and the place of this one; None if they are not.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    f: Tensor
    initial_C: Tensor | None
    initial_n: Tensor | None
    initial_m: Tensor | None
    residuals: Any
    backend: str
    config: mLSTMBackendFwbwConfig
    versions: tuple[int | None, ...] | None = None
    group: Group | None = None

    def __getstate__(self) -> dict[str, Any]:
        _check_versions(self, "FwbwContext")
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # PyTorch counts the writes to a copied or unpickled tensor from 0.
        counted = state["versions"] is not None
        vars(self).update(state, versions=_versions([state[name] for name in _INPUTS]) if counted else None)


def _versions(inputs: Sequence[Tensor | None]) -> tuple[int | None, ...] | None:
    """PyTorch's counts of writes to the tensors; None under a transform or a tracer, and for inference tensors."""
    if torch.compiler.is_compiling() or transforming() or torch._C._len_torch_dispatch_stack():
        return None
    if any(x is not None and x.is_inference() for x in inputs):
        return None
    return tuple(None if x is None else x._version for x in inputs)


def _check_versions(context: FwbwContext, function: str) -> None:
    """Raise if an input of the context was written to since it was made, as autograd does for a saved tensor."""
    inputs = [getattr(context, name) for name in _INPUTS]
    now = None if context.versions is None else _versions(inputs)
    if context.versions is None or now is None:
        return
    for name, before, after in zip(_INPUTS, context.versions, now, strict=True):
        if before != after:
            raise RuntimeError(
                f"{function}: `{name}` was overwritten after fwbw_forward had saved it in `ctx`; expected it "
                "unchanged, or a copy given to fwbw_forward"
            )


def _flatten(context: FwbwContext) -> tuple[list[Tensor], Any]:
    """The tensors, and the other data with the names of the tensors that are present."""
    inputs = {name: getattr(context, name) for name in _INPUTS}
    residuals = context.residuals._asdict()
    names = [tuple(name for name, x in part.items() if x is not None) for part in (inputs, residuals)]
    tensors = [part[name] for part, present in zip((inputs, residuals), names, strict=True) for name in present]
    return tensors, (*names, type(context.residuals), context.backend, context.config, context.group)


def _unflatten(tensors: Any, rest: Any) -> FwbwContext:
    inputs, residuals, record, backend, config, group = rest
    tensors = list(tensors)
    given: dict[str, Any] = dict.fromkeys(_INPUTS) | dict(zip(inputs, tensors, strict=False))
    kept = record(**dict(zip(residuals, tensors[len(inputs) :], strict=True)))
    return FwbwContext(**given, residuals=kept, backend=backend, config=config, group=group)


pytree.register_pytree_node(FwbwContext, _flatten, _unflatten, serialized_type_name="torch_impl.FwbwContext")


def fwbw_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    config: mLSTMBackendFwbwConfig | dict,
    initial_C: Tensor | None = None,
    initial_n: Tensor | None = None,
    initial_m: Tensor | None = None,
    *,
    sequence_group: Any = None,
) -> tuple[Any, FwbwContext]:
    """Forward pass of the mLSTM, with the equations of `mlstm`; also returns the context for `fwbw_backward`.

    Args:
        q, k: ``(B, T, K)``.
        v: ``(B, T, V)``.
        i, f: gate preactivations, ``(B, T)`` or ``(B, T, 1)``.
        config: the configuration or its dict.
        initial_C, initial_n, initial_m: ``(B, K, V)``, ``(B, K)``, ``(B,)``; allowed only with ``use_initial_state``,
            where None means zeros.
        sequence_group: as in `mlstm`: the tensors q to f are then the steps of this rank, and states those of the whole
            sequences. The context says so to `fwbw_backward`.

    Returns:
        ``(h, context)``, or ``((h, (C, n, m)), context)`` with ``return_state``; h is ``(B, T, V)``. The context is a
        `FwbwContext` with the residuals that the configuration keeps. They belong to the backend that `mlstm` would
        take for the same arrays. On the composed backend they are: G ``(B, T/L, L, L)``; the gates a, b and M, each
        ``(B, T/L, L)``; the memory at the start of each chunk, ``(B, T/L, K, V)``, ``(B, T/L, K)``, ``(B, T/L)``.
        With kernels, L is the length of their blocks; G is ``(B, T, L)``; the gates are five arrays, four by step and
        one by block; M is ``(B, T)``, with the final m and the step that attains it; and the memory comes with the
        final C and n.

    Raises:
        TypeError, ValueError: as in `mlstm`; also if `config` is not a valid configuration, if a state is given with
            ``use_initial_state=False``, or if only a part of the state is given; for `sequence_group` as in `mlstm`.
    """
    config = frozen_config(config, "fwbw_forward")
    group = _group(sequence_group)
    arrays = _checked("fwbw_forward", config, q, k, v, i, f, (initial_C, initial_n, initial_m), _NAMES, group)
    tokens, (C, n, m) = arrays[:5], arrays[5:]
    if config.use_initial_state and C is None:
        B, _, K = tokens[0].shape
        V, dtype = tokens[2].shape[-1], ACCUMULATION[tokens[2].dtype]
        C, n, m = (tokens[2].new_zeros(shape, dtype=dtype) for shape in ((B, K, V), (B, K), (B,)))
    h, last, residuals, backend = _run(config, tokens, (C, n, m), keeps=True, group=group, names=_NAMES)
    inputs = *tokens, C, n, m
    context = FwbwContext(
        **dict(zip(_INPUTS, inputs, strict=True)), residuals=residuals, backend=backend, config=config,
        versions=_versions(inputs), group=group,
    )  # fmt: skip
    return ((h, last) if config.return_state else h), context


def fwbw_backward(
    ctx: FwbwContext,
    dh: Tensor,
    config: mLSTMBackendFwbwConfig | dict,
    dc_last: Tensor | None = None,
    dn_last: Tensor | None = None,
    dm_last: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradient of `fwbw_forward`; the residuals in the context are not recomputed.

    Where the context is that of sharded steps, all ranks call the function alike. They compare their calls and send the
    messages of the forward pass again, and then as many in the opposite direction.

    Args:
        ctx: the context that `fwbw_forward` returned.
        dh: cotangent of h, ``(B, T, V)``.
        config: the configuration of the forward pass.
        dc_last, dn_last, dm_last: cotangents of the final state; None means zeros. Of sharded steps they are the same
            on every rank, and count once.

    Returns:
        Gradients of ``q, k, v, i, f, initial_C, initial_n, initial_m``; the last three are None without
        ``use_initial_state``.

    Raises:
        TypeError: as in `fwbw_forward`; also if `ctx` is not a context.
        ValueError: as in `fwbw_forward`; also if the context was made with another configuration.
        RuntimeError: an input was overwritten since the forward pass, or a derivative of these gradients is requested.
    """
    config = normalise_config(config, "fwbw_backward")
    check_fwbw_context(ctx, FwbwContext, config)
    _check_versions(ctx, "fwbw_backward")
    tokens, state = (ctx.q, ctx.k, ctx.v, ctx.i, ctx.f), (ctx.initial_C, ctx.initial_n, ctx.initial_m)
    with _agreed(ctx.group):
        call = check_fwbw(TORCH, *tokens, config, *state, "fwbw_backward")
        check_fwbw_cotangents(call, ctx.v, dh, dc_last, dn_last, dm_last)
    arguments = _with_head(config, ctx.backend, tokens, state)
    dC, dn, dm = _head_of_states((dc_last, dn_last, dm_last))
    cotangents = Cotangents(dh=dh.unsqueeze(2), dC=dC, dn=dn, dm=dm)
    if is_distributed(ctx.q):
        gradients = SEQUENCES.distributed_gradients("fwbw_backward", arguments, cotangents)
    else:
        needs_transform()
        residuals = _residuals(Tensor.unsqueeze, ctx.backend, ctx.residuals)
        if ctx.group is None:
            gradients = SEQUENCES.gradients(arguments, cotangents, residuals)
        else:
            gradients = _sharded_gradients(arguments, cotangents, residuals, ctx.group)
    dq, dk, dv = (dx.squeeze(2) for dx in gradients[:3])
    di, df = (dx.reshape(gate.shape) for dx, gate in zip(gradients[3:5], (ctx.i, ctx.f), strict=True))
    states = (part.squeeze(1) for part in gradients[5:]) if config.use_initial_state else (None, None, None)
    return (dq, dk, dv, di, df, *states)


def _sharded_gradients(x: Arguments, cotangents: Cotangents, residuals: Any, group: Group) -> Sequence[Tensor]:
    """The gradients of this rank's own pass, with those that come from the state with which it begins."""
    begin = first_token(x, group, _names("fwbw_backward", _NAMES))
    differentiable = ["k", "v", "i", "f", *("Cnm" if x.C is not None else "")]

    def scan(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(dense_incoming(x._replace(**dict(zip(differentiable, given, strict=True))), begin, group))

    (C, n, m), pull_back, *_ = torch.func.vjp(scan, *(getattr(x, name) for name in differentiable))
    owns = ends_here(x, group)
    last = {name: d if d is None else torch.where(owns, d, 0.0) for name, d in cotangents._asdict().items()}
    own = SEQUENCES.gradients(x._replace(C=C, n=n, m=m), Cotangents(**{**last, "dh": cotangents.dh}), residuals)
    more = pull_back(tuple(own[5:]))
    return [own[0], *(one + other for one, other in zip(own[1:5], more[:4], strict=True)), *more[4:]]


def mlstm_fwbw_custom_grad(config: mLSTMBackendFwbwConfig | dict, *, sequence_group: Any = None) -> Callable:
    """The forward pass as a differentiable function whose gradient is `fwbw_backward`.

    Args:
        config: the configuration or its dict; it is read now, so that later changes have no effect.
        sequence_group: as in `fwbw_forward`.

    Returns:
        ``function(q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None)`` → ``h``, or ``(h, (C, n, m))`` with
        ``return_state``. It works under torch.func.vmap and grad, autograd, autocast and torch.compile.

    Raises:
        TypeError, ValueError: `config` is not a valid configuration.
    """
    return custom_grad(frozen_config(config, "mlstm_fwbw_custom_grad"), _NAMES, sequence_group)


def custom_grad(config: mLSTMBackendFwbwConfig, names: tuple[str, str, str], sequence_group: Any) -> Callable:
    def mlstm_fwbw(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        initial_C: Tensor | None = None,
        initial_n: Tensor | None = None,
        initial_m: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        group = _group(sequence_group)
        arrays = _checked("fwbw_forward", config, q, k, v, i, f, (initial_C, initial_n, initial_m), names, group)
        h, last, *_ = _run(config, arrays[:5], arrays[5:], needs_transform(*arrays), group, names)
        return (h, last) if config.return_state else h

    return mlstm_fwbw


def _group(sequence_group: Any) -> Group | None:
    """The group that shards the steps; None if one rank has them all."""
    group = None if sequence_group is None else group_of("fwbw_forward", "sequence_group", sequence_group)
    return None if group is None or group.size == 1 else group


@contextmanager
def _agreed(group: Group | None) -> Iterator[None]:
    """Checks of a call, whose error is raised on every rank."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if group is None or torch.compiler.is_compiling():
            raise
        refuse_together(error, group)


def _names(function: str, names: tuple[str, str, str]) -> Names:
    options = {name: f"config.{name}" for name in ("return_state", "stabilize_correctly")}
    return Names(function, names[0], *names, **options)


def _checked(
    function: str,
    config: mLSTMBackendFwbwConfig,
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    state: tuple[Any, Any, Any],
    names: tuple[str, str, str],
    group: Group | None,
) -> tuple[Any, ...]:
    if (low := autocast_dtype(q)) is not None:
        q, k, v = (cast(x, low) for x in (q, k, v))
        i, f, C, n, m = (cast(x, torch.float32) for x in (i, f, *state))
        state = C, n, m
    with _agreed(group):
        call = check_fwbw(TORCH, q, k, v, i, f, config, *state, function, names)
        if group is not None:
            check_local(call, q, group)
    return q, k, v, i, f, *state


def _backend(q: Tensor, v: Tensor) -> str:
    """The backend that `mlstm` would take for the same arrays."""
    sizes = {"K": q.shape[-1], "V": v.shape[-1]}
    return choose(request_of("mlstm", v, sizes), None).value


def _with_head(
    config: mLSTMBackendFwbwConfig, backend: str, tokens: Sequence[Tensor], state: Sequence[Tensor | None]
) -> Arguments:
    """The arguments of the call, with a head axis of size 1."""
    q, k, v = (x.unsqueeze(2) for x in tokens[:3])
    i, f = (gate if gate.ndim == 3 else gate.unsqueeze(2) for gate in tokens[3:])
    C, n, m = _head_of_states(state)
    return Arguments(
        q=q, k=k, v=v, i=i, f=f, C=C, n=n, m=m, chunk_size=as_operator_option(config.chunk_size),
        stabilize_correctly=config.stabilize_correctly, backend=backend,
    )  # fmt: skip


def _head_of_states(state: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    return tuple(None if part is None else part.unsqueeze(1) for part in state)


def _residuals(change: Callable[[Tensor, int], Tensor], backend: str, residuals: Any) -> Any:
    """The record with a head axis added to every tensor, or removed from it."""
    axes = zip(residuals, SEQUENCES.residual_heads[backend], strict=True)
    parts = [None if part is None or axis is None else change(part, axis) for part, axis in axes]
    return SEQUENCES.implementations[backend].residuals(*parts)


def _run(
    config: mLSTMBackendFwbwConfig,
    tokens: Sequence[Tensor],
    state: Sequence[Tensor | None],
    keeps: bool,
    group: Group | None,
    names: tuple[str, str, str],
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Any, str]:
    """h, the final state, the residuals, and the backend that was used."""
    backend = _backend(tokens[0], tokens[2])
    options = SEQUENCES.kept_by[backend].items() if keeps else ()
    keep = tuple(name for option, names in options if getattr(config, option) for name in names)
    arguments = _with_head(config, backend, tokens, state)
    if group is not None:
        arguments = arguments._replace(return_state=config.return_state)
        begin = first_token(arguments, group, _names("fwbw_forward", names))
        arguments = arguments._replace(**dense_incoming(arguments, begin, group)._asdict())
    if is_distributed(tokens[0]):
        outputs, keep = SEQUENCES.distributed("fwbw_forward", arguments), ()
    elif recording():
        # A recorded program keeps no residuals; its backward pass recomputes them.
        outputs, keep = SEQUENCES.recorded(*arguments), ()
    else:
        run = SEQUENCES.differentiable if needs_transform(*arguments[:8]) else SEQUENCES.operator
        outputs = run(*arguments, keep)
    h, C, n, m, *_ = outputs
    if not keep:
        residuals = SEQUENCES.implementations[backend].residuals()
    else:
        residuals = _residuals(Tensor.squeeze, backend, SEQUENCES.residuals_of(arguments, keep, outputs))
    if group is not None and config.return_state:
        C, n, m = from_owner(MLSTMState(C, n, m), ends_here(arguments, group), group)
    return h.squeeze(2), (C.squeeze(1), n.squeeze(1), m.squeeze(1)), residuals, backend
