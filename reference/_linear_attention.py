"""Linear attention with a memory that decays: four operations that share a loop.

The memory S of a head is a matrix, ``(K, V)``. With row vectors, a step lets it decay, writes w at the key k, and reads
it with the scaled query q̂::

    S̄ = exp(g) S_{t−1}        S_t = S̄ + kᵀ w        o_t = q̂ S_t

g is a number per head, or per key channel: ``S̄ = diag(exp g) S_{t−1}``. The write w is the value itself or, by the
delta rule, β times the difference between the value and what the memory returns for the key::

                              w = v             w = β (v − k S̄)
    g per head                simple_gla        gated_delta_rule
    g per key channel         gla               kimi_delta_attention

Sources: Dao and Gu, Mamba-2, arXiv:2405.21060, and, with a constant g, Sun et al., RetNet, arXiv:2307.08621, and Qin et
al., Lightning Attention, arXiv:2401.04658 (`simple_gla`); Yang et al., Gated Linear Attention, arXiv:2312.06635
(`gla`); Yang et al., Gated Delta Networks, arXiv:2412.06464 (`gated_delta_rule`); Kimi Linear, arXiv:2510.26692
(`kimi_delta_attention`).
"""

from typing import Any, NamedTuple

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend, choose
from reference._gru import _reduce, _sequences
from reference.arguments import Call, check_gated_delta_step, check_linear_attention


class _Rule(NamedTuple):
    """An operation: whether g has key channels, and whether the write is that of the delta rule."""

    name: str
    channels: bool
    delta: bool


_SIMPLE_GLA = _Rule("simple_gla", channels=False, delta=False)
_GLA = _Rule("gla", channels=True, delta=False)
_GATED_DELTA = _Rule("gated_delta_rule", channels=False, delta=True)
_KIMI_DELTA = _Rule("kimi_delta_attention", channels=True, delta=True)


_Arrays = tuple[Any, Any, Any, Any, Any]
"""q, k, v, g and beta."""


class _Options(NamedTuple):
    initial_state: np.ndarray | None
    scale: float | None
    qk_norm_eps: float | None
    cu_seqlens: np.ndarray | None = None
    max_seqlen: int | None = None
    chunk_size: int | None = None


def simple_gla(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None, kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Linear attention with a decay per head: RetNet, Lightning Attention, and the SSD of Mamba-2.

    Per head, with row vectors::

        S_t = exp(g) S_{t−1} + kᵀ v        o_t = q̂ S_t

    Everything else is as in `gated_delta_rule`.
    """
    options = _Options(initial_state, scale, None, cu_seqlens, max_seqlen)
    return _forward(_SIMPLE_GLA, (q, k, v, g, None), options, kernel_backend)


def gla(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None, kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Gated linear attention, with a decay per key channel.

    Per head, with row vectors::

        S_t = diag(exp g) S_{t−1} + kᵀ v        o_t = q̂ S_t

    `g` is ``(B, S, Ng, K)`` or ``(T, Ng, K)``. Everything else is as in `gated_delta_rule`.
    """
    options = _Options(initial_state, scale, None, cu_seqlens, max_seqlen)
    return _forward(_GLA, (q, k, v, g, None), options, kernel_backend)


def gated_delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray | None = None, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, qk_norm_eps: float | None = None,
    cu_seqlens: np.ndarray | None = None, max_seqlen: int | None = None, chunk_size: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The delta rule with a decay per head, over whole sequences, dense or packed.

    Per head, with row vectors::

        S̄ = exp(g) S_{t−1}        S_t = S̄ + β kᵀ (v − k S̄)        o_t = q̂ S_t

    ``N``, the number of heads, is the largest head count. Each count divides it, and head n reads head ``n // (N/Nq)``
    of an array with Nq heads.

    Args:
        q: queries, ``(B, S, Nq, K)``, or ``(T, Nq, K)`` with `cu_seqlens`.
        k: keys, ``(B, S, Nk, K)`` or ``(T, Nk, K)``.
        v: values, ``(B, S, Nv, V)`` or ``(T, Nv, V)``.
        g: log decay, ``(B, S, Ng)`` or ``(T, Ng)``, below +∞; −∞ empties the memory before the step writes.
        beta: β, the strength of the write, ``(B, S, Nb)`` or ``(T, Nb)``; None means 1.
        initial_state: S before the first step, ``(B, N, K, V)``; None means zeros.
        scale: ``q̂ = scale·q``; None means ``1/√K``.
        qk_norm_eps: ε, with which q and k are first divided by ``√(Σx² + ε)``; None leaves them as they are.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        chunk_size: at least 1, or None; fast implementations compute so many steps at a time, this loop one.
        kernel_backend: None or ``numpy``.

    Returns:
        ``(o, state)``: every o, ``(B, S, N, V)`` or ``(T, N, V)``, and the last S of each sequence, ``(B, N, K, V)``;
        an empty sequence returns its initial state. Both are float64.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, an option is out of range, or `cu_seqlens` is not a
            valid packing.
    """
    options = _Options(initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen, chunk_size)
    return _forward(_GATED_DELTA, (q, k, v, g, beta), options, kernel_backend)


def kimi_delta_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray | None = None, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, qk_norm_eps: float | None = None,
    cu_seqlens: np.ndarray | None = None, max_seqlen: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The delta rule with a decay per key channel.

    Per head, with row vectors::

        S̄ = diag(exp g) S_{t−1}        S_t = S̄ + β kᵀ (v − k S̄)        o_t = q̂ S_t

    `g` is ``(B, S, Ng, K)`` or ``(T, Ng, K)``. Everything else is as in `gated_delta_rule`.
    """
    options = _Options(initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen)
    return _forward(_KIMI_DELTA, (q, k, v, g, beta), options, kernel_backend)


def gated_delta_step(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray | None, state: np.ndarray, *,
    scale: float | None = None, qk_norm_eps: float | None = None, kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """One step of `gated_delta_rule`, as used to generate text; the shapes are those of a sequence without ``S``.

    Args:
        q, k, v, g, beta, scale, qk_norm_eps, kernel_backend: as in `gated_delta_rule`.
        state: S before the step, ``(B, N, K, V)``.

    Returns:
        ``(o, state)``: o, ``(B, N, V)``, and S after the step. Both are float64.

    Raises:
        TypeError, ValueError: as in `gated_delta_rule`.
    """
    call = check_gated_delta_step(NUMPY, q, k, v, g, beta, state, scale, qk_norm_eps)
    choose(call, v, kernel_backend)
    x = _heads(_GATED_DELTA, call, (q, k, v, g, beta), scale, qk_norm_eps)
    after = _step(x, float64(state)).after
    return _times(x.q, after), after


def _forward(rule: _Rule, arrays: _Arrays, options: _Options, kernel_backend: Any) -> tuple[np.ndarray, np.ndarray]:
    call = check_linear_attention(NUMPY, *arrays, *options, function=rule.name, channels=rule.channels)
    choose(call, arrays[2], kernel_backend, packed=options.cu_seqlens is not None)
    x = _heads(rule, call, arrays, options.scale, options.qk_norm_eps)
    S0 = _initial_state(call, options.initial_state)
    o, last = np.empty(x.v.shape), S0.copy()
    for b, steps in _sequences(call, options.cu_seqlens):
        S = S0[b]
        for t in steps:
            S = _step(x.at(t), S).after
            o[t] = _times(x.q[t], S)
        last[b] = S
    return o, last


class _Heads(NamedTuple):
    """What all N heads read; g has K or 1 channels, beta has 1, or is None if the write is the value."""

    q: Any
    k: Any
    v: Any
    g: Any
    beta: Any

    def at(self, t: Any) -> "_Heads":
        return _Heads(*(None if x is None else x[t] for x in self))


def _heads(rule: _Rule, call: Call, arrays: Any, scale: float | None, qk_norm_eps: float | None) -> _Heads:
    """Normalise, scale, and expand to N heads: head n is head ``n // (N/Nx)`` of the given array."""
    q, k, v, g, beta = map(float64, arrays)
    q, k = _scale(call, scale) * _normalised(q, qk_norm_eps), _normalised(k, qk_norm_eps)
    g = g if rule.channels else g[..., None]
    if rule.delta:
        beta = np.ones((*v.shape[:-2], 1, 1)) if beta is None else beta[..., None]
    return _Heads(*(None if x is None else np.repeat(x, call["N"] // x.shape[-2], axis=-2) for x in (q, k, v, g, beta)))


def _scale(call: Call, scale: float | None) -> float:
    return 1 / np.sqrt(call["K"]) if scale is None else scale


def _normalised(x: np.ndarray, eps: float | None) -> np.ndarray:
    return x if eps is None else x / _length(x, eps)


def _length(x: np.ndarray, eps: float) -> np.ndarray:
    return np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def _initial_state(call: Call, state: np.ndarray | None) -> np.ndarray:
    """A copy of ``state``, or zeros if it is None."""
    return np.zeros((call["B"], call["N"], call["K"], call["V"])) if state is None else float64(state)


class _Step(NamedTuple):
    """The memory S̄ that a step keeps, what it writes, and the memory after it."""

    kept: np.ndarray
    write: np.ndarray
    after: np.ndarray


def _step(x: _Heads, S: np.ndarray) -> _Step:
    kept = np.exp(x.g)[..., None] * S
    write = x.v if x.beta is None else x.beta * (x.v - _times(x.k, kept))
    return _Step(kept, write, kept + _outer(x.k, write))


def _times(x: np.ndarray, S: np.ndarray) -> np.ndarray:
    """``x S`` head by head: row vectors ``(B, N, K)`` times ``(B, N, K, V)``."""
    return np.einsum("bni,bnij->bnj", x, S)


def _outer(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``xᵀ y`` head by head, ``(B, N, K, V)``."""
    return np.einsum("bni,bnj->bnij", x, y)


def simple_gla_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None, do: np.ndarray, dstate: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Gradient of `simple_gla`, as in `gated_delta_rule_backward` with dv = dw, ``dk = v dSᵀ`` and dS̄ = dS."""
    options = _Options(initial_state, scale, None, cu_seqlens, max_seqlen)
    return _backward(_SIMPLE_GLA, (q, k, v, g, None), options, do, dstate)


def gla_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None, do: np.ndarray, dstate: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Gradient of `gla`, as in `simple_gla_backward` with dg of each row of S̄."""
    options = _Options(initial_state, scale, None, cu_seqlens, max_seqlen)
    return _backward(_GLA, (q, k, v, g, None), options, do, dstate)


def gated_delta_rule_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray | None = None, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, qk_norm_eps: float | None = None,
    cu_seqlens: np.ndarray | None = None, max_seqlen: int | None = None,
    do: np.ndarray, dstate: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Gradient of `gated_delta_rule`: one loop forward that stores every step, one loop backward.

    At step t, dS_t is the gradient that reaches S_t from the next step (at the last step, from the final state), plus
    what o_t reads. With the write ``w = β (v − k S̄)``::

        dq̂ = do S_tᵀ        dS_t += q̂ᵀ do        dw = k dS_t
        dβ = dw·(v − k S̄)   dv = β dw            dk = w dS_tᵀ − dv S̄ᵀ
        dS̄ = dS_t − kᵀ dv   dg = ⟨dS̄, S̄⟩         dS_{t−1} = exp(g) dS̄

    A normalised ``y = x/ℓ`` with ``ℓ = √(Σx² + ε)`` has ``dx = (dy − y (y·dy))/ℓ``. A head that several heads read
    receives the sum of their gradients.

    Args:
        q, k, v, g, beta, initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen: as in `gated_delta_rule`.
        do: cotangent of o.
        dstate: cotangent of the final state; None means zeros.

    Returns:
        Gradients by argument name, with ``beta`` and ``initial_state`` if they were given. All are float64.

    Raises:
        TypeError, ValueError: as in `gated_delta_rule`.
    """
    options = _Options(initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen)
    return _backward(_GATED_DELTA, (q, k, v, g, beta), options, do, dstate)


def kimi_delta_attention_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray | None = None, *,
    initial_state: np.ndarray | None = None, scale: float | None = None, qk_norm_eps: float | None = None,
    cu_seqlens: np.ndarray | None = None, max_seqlen: int | None = None,
    do: np.ndarray, dstate: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Gradient of `kimi_delta_attention`, as in `gated_delta_rule_backward` with dg of each row of S̄."""
    options = _Options(initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen)
    return _backward(_KIMI_DELTA, (q, k, v, g, beta), options, do, dstate)


def gated_delta_step_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray | None, state: np.ndarray, *,
    scale: float | None = None, qk_norm_eps: float | None = None, do: np.ndarray, dstate: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Gradient of `gated_delta_step`, computed as `gated_delta_rule_backward` of a sequence of one step.

    ``do`` is ``(B, N, V)``. Returns gradients by argument name, with ``beta`` if it was given.
    """
    check_gated_delta_step(NUMPY, q, k, v, g, beta, state, scale, qk_norm_eps, "gated_delta_step_backward")
    arrays = (q[:, None], k[:, None], v[:, None], g[:, None], None if beta is None else beta[:, None])
    options = _Options(state, scale, qk_norm_eps)
    gradients = _backward(_GATED_DELTA, arrays, options, do[:, None], dstate)
    return {"state": gradients.pop("initial_state"), **{name: x[:, 0] for name, x in gradients.items()}}


def _backward(rule: _Rule, arrays: _Arrays, options: _Options, do: np.ndarray, dstate: Any) -> dict[str, np.ndarray]:
    function = f"{rule.name}_backward"
    call = check_linear_attention(NUMPY, *arrays, *options, function=function, channels=rule.channels)
    initial_state, scale, eps, cu_seqlens, *_ = options
    call.kind(do=do)
    call.shape("do", do, "B S N V" if cu_seqlens is None else "T N V")
    x, S0 = _heads(rule, call, arrays, scale, eps), _initial_state(call, initial_state)
    do, dS0 = float64(do), np.zeros(S0.shape) if dstate is None else float64(dstate)
    dx = _Heads(*(None if each is None else np.empty((*do.shape[:-1], each.shape[-1])) for each in x))
    for b, steps in _sequences(call, cu_seqlens):
        S, done = S0[b], []
        for t in steps:
            done.append(_step(x.at(t), S))
            S = done[-1].after
        dS = dS0[b]
        for t, (kept, write, after) in zip(reversed(steps), reversed(done), strict=True):
            dS = dS + _outer(x.q[t], do[t])
            dq, dk = _times(do[t], after.mT), _times(write, dS.mT)
            dv = dw = _times(x.k[t], dS)
            if rule.delta:
                dx.beta[t] = (dw * (x.v[t] - _times(x.k[t], kept))).sum(axis=-1, keepdims=True)
                dv = x.beta[t] * dw
                dk = dk - _times(dv, kept.mT)
                dS = dS - _outer(x.k[t], dv)
            dg = np.einsum("bnij,bnij->bni", dS, kept)
            dx.q[t], dx.k[t], dx.v[t] = dq, dk, dv
            dx.g[t] = dg if rule.channels else dg.sum(axis=-1, keepdims=True)
            dS = np.exp(x.g[t])[..., None] * dS
        dS0[b] = dS
    q, k = float64(arrays[0]), float64(arrays[1])
    gradients = {
        "q": _normalised_backward(q, eps, _scale(call, scale) * _reduce(dx.q, call["Nq"], -2)),
        "k": _normalised_backward(k, eps, _reduce(dx.k, call["Nk"], -2)),
        "v": _reduce(dx.v, call["Nv"], -2),
        "g": _reduce(dx.g, call["Ng"], -2) if rule.channels else _reduce(dx.g[..., 0], call["Ng"], -1),
    }
    if arrays[4] is not None:
        gradients["beta"] = _reduce(dx.beta[..., 0], call["Nb"], -1)
    return gradients if initial_state is None else {**gradients, "initial_state": dS0}


def _normalised_backward(x: np.ndarray, eps: float | None, dy: np.ndarray) -> np.ndarray:
    """Gradient of `_normalised`."""
    if eps is None:
        return dy
    y = _normalised(x, eps)
    return (dy - y * (y * dy).sum(axis=-1, keepdims=True)) / _length(x, eps)
