"""The fwbw interface of xlstm_jax: mLSTM forward and backward as two functions with a context between them.

Layout: ``q, k (B, T, K)``, ``v (B, T, V)``, ``i, f (B, T)`` or ``(B, T, 1)``; heads by an outer ``torch.func.vmap``,
which joins them into one call. The equations, and the names of what is kept, stand at the head of
`torch_impl._mlstm.chunkwise`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reference.arguments import (
    Call,
    check_fwbw,
    check_fwbw_cotangents,
    dtype_name,
    mLSTMBackendFwbwConfig,
    normalise_config,
)
from reference.backends import Request
from torch_impl._arrays import ACCUMULATION, TORCH, autocast_dtype, cast
from torch_impl._backends import choose
from torch_impl._mlstm.autograd import (
    KEEP_C,
    KEEP_G,
    KEEP_GATES,
    KEEP_M,
    kept_axes,
    kept_sizes,
    mlstm_autograd,
    mlstm_backward_autograd,
    mlstm_direct,
    slots,
)
from torch_impl._operators import needs_transform

_NAMES = ("initial_C", "initial_n", "initial_m")


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
) -> tuple[Any, tuple[Tensor, ...]]:
    """Forward pass of the mLSTM (the equations of `mlstm`) that keeps a context for `fwbw_backward`.

    Args:
        q, k: ``(B, T, K)``.
        v: ``(B, T, V)``.
        i, f: gate preactivations, ``(B, T)`` or ``(B, T, 1)``.
        config: the configuration or its dict.
        initial_C, initial_n, initial_m: ``(B, K, V)``, ``(B, K)``, ``(B,)``; legal with ``use_initial_state`` alone,
            which without them means zeros.

    Returns:
        ``(h, context)``, or ``((h, (C, n, m)), context)`` with ``return_state``; h is ``(B, T, V)``. The context is a
        tuple: the five inputs, the initial state with ``use_initial_state``, and of what the configuration keeps, in
        this order: G ``(B, T/L, L, L)``; the gates a, b ``(B, T/L, L)`` and F ``(B, T/L, L, L)``; M ``(B, T/L, L)``;
        the memory c at each chunk's start, ``(B, T/L, K, V)``, ``(B, T/L, K)``, ``(B, T/L)``. Where kernels compute it
        (`mlstm`'s choice for the same arrays) L is the length of their blocks, and each holds what they would else
        compute again: G ``(B, T, L)``; of the gates no F but seven arrays of the size of a; M ``(B, T)``; and beside c
        m at each block's end, the final state, and the step that attains its m.

    Raises:
        TypeError, ValueError: as in `mlstm`; also for a configuration that is none, and for a state with
            ``use_initial_state=False`` or without its partners.
    """
    config = normalise_config(config, "fwbw_forward")
    arrays, _ = _checked("fwbw_forward", config, q, k, v, i, f, (initial_C, initial_n, initial_m), _NAMES)
    *tokens, C, n, m = arrays
    if config.use_initial_state and C is None:
        B, _, K = tokens[0].shape
        V, dtype = tokens[2].shape[-1], ACCUMULATION[tokens[2].dtype]
        C, n, m = (tokens[2].new_zeros(shape, dtype=dtype) for shape in ((B, K, V), (B, K), (B,)))
    h, last, kept = _run(config, tokens, (C, n, m), True)
    context = (*tokens, *((C, n, m) if config.use_initial_state else ()), *kept)
    return ((h, last) if config.return_state else h), context


def fwbw_backward(
    ctx: Sequence[Tensor],
    dh: Tensor,
    config: mLSTMBackendFwbwConfig | dict,
    dc_last: Tensor | None = None,
    dn_last: Tensor | None = None,
    dm_last: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradient of `fwbw_forward`; what the context keeps is not computed again.

    Args:
        ctx: the context that `fwbw_forward` returned.
        dh: cotangent of h, ``(B, T, V)``.
        config: the configuration of the forward pass.
        dc_last, dn_last, dm_last: cotangents of the final state, None for zeros.

    Returns:
        Gradients of ``q, k, v, i, f, initial_C, initial_n, initial_m``; the last three are None without
        ``use_initial_state``.

    Raises:
        TypeError, ValueError: as in `fwbw_forward`; also where the context is not that of the configuration.
        RuntimeError: a derivative of these gradients is asked for.
    """
    config = normalise_config(config, "fwbw_backward")
    whole = isinstance(ctx, Sequence) and len(ctx) >= 5 and all(isinstance(x, Tensor) for x in ctx[:5])
    backend = _backend(ctx[0], ctx[2]) if whole else "torch"
    keep = _keep(config)
    kept = sum(kept_sizes(keep, backend))
    size = 5 + 3 * config.use_initial_state + kept
    if not isinstance(ctx, Sequence) or len(ctx) != size:
        got = f"a {type(ctx).__name__} of {len(ctx)}" if isinstance(ctx, Sequence) else f"a {type(ctx).__name__}"
        error = ValueError if isinstance(ctx, Sequence) else TypeError
        raise error(f"fwbw_backward: `ctx` is {got}; expected the {size} tensors that this `config` keeps")
    q, k, v, i, f = ctx[:5]
    C, n, m = ctx[5:8] if config.use_initial_state else (None, None, None)
    call = check_fwbw(TORCH, q, k, v, i, f, config, C, n, m, "fwbw_backward")
    check_fwbw_cotangents(call, v, dh, dc_last, dn_last, dm_last)
    for number, (part, axes) in enumerate(zip(ctx[size - kept :], kept_axes(q, v, keep, backend), strict=True)):
        if part.ndim != axes - 1:
            raise ValueError(
                f"fwbw_backward: `ctx[{size - kept + number}]` has {part.ndim} axes; expected {axes - 1} of what this "
                "`config` keeps there"
            )
    arguments = (
        *_with_head(q, k, v, i, f, C, n, m),
        None,
        dh.unsqueeze(2),
        *_head_of_states(dc_last, dn_last, dm_last),
        *_options(config, backend),
        *slots(keep, [part.unsqueeze(2) for part in ctx[size - kept :]]),
    )
    needs_transform()
    *tokens, dC, dn, dm = mlstm_backward_autograd(*arguments)
    dq, dk, dv = (dx.squeeze(2) for dx in tokens[:3])
    di, df = (dx.reshape(gate.shape) for dx, gate in zip(tokens[3:], (i, f), strict=True))
    states = (part.squeeze(1) for part in (dC, dn, dm)) if config.use_initial_state else (None, None, None)
    return (dq, dk, dv, di, df, *states)


def mlstm_fwbw_custom_grad(config: mLSTMBackendFwbwConfig | dict) -> Callable:
    """The forward pass as a differentiable function whose gradient is `fwbw_backward`.

    Args:
        config: the configuration or its dict.

    Returns:
        ``function(q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None)`` → ``h``, or ``(h, (C, n, m))`` with
        ``return_state``. It works under torch.func.vmap and grad, autograd, autocast and torch.compile.

    Raises:
        TypeError, ValueError: `config` is no configuration.
    """
    return custom_grad(normalise_config(config, "mlstm_fwbw_custom_grad"), _NAMES)


def custom_grad(config: mLSTMBackendFwbwConfig, names: tuple[str, str, str]) -> Callable:
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
        arrays, _ = _checked("fwbw_forward", config, q, k, v, i, f, (initial_C, initial_n, initial_m), names)
        h, last, _ = _run(config, arrays[:5], arrays[5:], needs_transform(*arrays))
        return (h, last) if config.return_state else h

    return mlstm_fwbw


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
) -> tuple[tuple[Any, ...], Call]:
    if (low := autocast_dtype(q)) is not None:
        q, k, v = (cast(x, low) for x in (q, k, v))
        i, f, C, n, m = (cast(x, torch.float32) for x in (i, f, *state))
        state = C, n, m
    call = check_fwbw(TORCH, q, k, v, i, f, config, *state, function, names)
    return (q, k, v, i, f, *state), call


def _backend(q: Tensor, v: Tensor) -> str:
    """What `mlstm` would take for the same arrays."""
    sizes = {"K": q.shape[-1], "V": v.shape[-1]}
    return choose(Request("mlstm", v.device.type, dtype_name(v), sizes), None).value


def _keep(config: mLSTMBackendFwbwConfig) -> int:
    return KEEP_G * config.keep_G + KEEP_GATES * config.keep_gates + KEEP_M * config.keep_M + KEEP_C * config.keep_c


def _options(config: mLSTMBackendFwbwConfig, backend: str) -> tuple[int, float, bool, str]:
    return config.chunk_size or 0, 0.0, config.stabilize_correctly, backend


def _with_head(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *state: Tensor | None) -> tuple[Any, ...]:
    tokens = (x.unsqueeze(2) for x in (q, k, v))
    gates = (gate if gate.ndim == 3 else gate.unsqueeze(2) for gate in (i, f))
    return *tokens, *gates, *_head_of_states(*state)


def _head_of_states(*state: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if part is None else part.unsqueeze(1) for part in state)


def _run(
    config: mLSTMBackendFwbwConfig, tokens: Sequence[Tensor], state: Sequence[Tensor | None], keeps: bool
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    run = mlstm_autograd if needs_transform(*tokens, *state) else mlstm_direct
    backend = _backend(tokens[0], tokens[2])
    keep = _keep(config) if keeps else 0
    h, C, n, m, *kept = run(*_with_head(*tokens, *state), None, *_options(config, backend), keep)
    return h.squeeze(2), (C.squeeze(1), n.squeeze(1), m.squeeze(1)), tuple(part.squeeze(2) for part in kept)
