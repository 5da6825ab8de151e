"""Loops that are wrong for few calls: above a length, beyond a size of a gate, for one dtype, for an empty sequence."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from conformance.frameworks.torch import TorchImplementation
from tests.suite.strangers.torch_loops import gru_loop, mlstm_loop, with_output

Tensor = torch.Tensor


def mlstm_of(function: Callable) -> TorchImplementation:
    return TorchImplementation("stranger", {"mlstm": function}, "cpu")


def gru_of(function: Callable) -> TorchImplementation:
    return TorchImplementation("stranger", {"gru": function}, "cpu")


def tail_dropped(above: int = 64, chunk: int = 16) -> TorchImplementation:
    """Of a sequence of more than ``above`` steps, the outputs of those that do not fill a chunk are 0."""

    def without_tail(h: Tensor, *_: Tensor, **options: Any) -> Tensor:
        S = h.shape[1]
        kept = torch.arange(S) < S - S % chunk
        return torch.where(kept[None, :, None, None], h, 0.0) if S > above else h

    return mlstm_of(with_output(mlstm_loop("packed sequences refused"), without_tail))


def steps_dropped(above: int = 64, chunk: int = 16) -> TorchImplementation:
    """The same, but these steps do not change the state either."""
    loop = mlstm_loop("packed sequences refused")

    def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **options: Any) -> Any:
        S = q.shape[1]
        if S <= above or not S % chunk:
            return loop(q, k, v, i, f, **options)
        kept = S - S % chunk
        found = loop(*(x[:, :kept] for x in (q, k, v, i, f)), **options)
        h = found[0] if isinstance(found, tuple) else found
        h = F.pad(h, (0, 0, 0, 0, 0, S - kept))
        return (h, *found[1:]) if isinstance(found, tuple) else h

    return mlstm_of(mlstm)


def clamped_log_gate(least: float = -20.0) -> TorchImplementation:
    """log σ(f) is at least ``least``."""

    def log_gate(f: Tensor) -> Tensor:
        wide = torch.float64 if f.dtype == torch.float64 else torch.float32
        return F.logsigmoid(f.to(wide)).clamp(min=least)

    return mlstm_of(mlstm_loop(log_gate=log_gate))


def padded_scale(multiple: int = 16) -> TorchImplementation:
    """1/√K of the K that is padded to a multiple."""
    loop = mlstm_loop()

    def mlstm(q: Tensor, *arrays: Tensor, **options: Any) -> Any:
        K = q.shape[-1]
        return loop(q * math.sqrt(K / (-(-K // multiple) * multiple)), *arrays, **options)

    return mlstm_of(mlstm)


def rounded_normaliser() -> TorchImplementation:
    """n is rounded to the values' dtype after each step."""
    return mlstm_of(mlstm_loop("normaliser rounded to the values' dtype"))


def without_the_reset_gates_path() -> TorchImplementation:
    """The gradient of a GRU's state does not pass through the reset gate."""
    return gru_of(gru_loop("reset gate ignored in the gradient of the state"))


def neighbours_state() -> TorchImplementation:
    """The final state of an empty packed sequence is that of the sequence before it."""
    return gru_of(gru_loop("empty sequence takes its neighbour's state"))


def raising(S: int = 7) -> TorchImplementation:
    """Sequences of one length raise."""
    loop = mlstm_loop()

    def mlstm(q: Tensor, *arrays: Tensor, **options: Any) -> Any:
        if q.ndim == 4 and q.shape[1] == S:
            raise RuntimeError(f"no kernel for {S} steps")
        return loop(q, *arrays, **options)

    return mlstm_of(mlstm)


def overflowing_floor() -> TorchImplementation:
    """A textbook loop: the gradient is NaN where exp(−m) overflows, and packed sequences are refused."""

    def mlstm(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        *,
        initial_state: Any = None,
        return_state: bool = False,
        eps: float = 0.0,
        cu_seqlens: Tensor | None = None,
        **unused: Any,
    ) -> Any:
        if cu_seqlens is not None:
            raise NotImplementedError("packed sequences are not supported")
        dtype, wide = v.dtype, torch.float64 if v.dtype == torch.float64 else torch.float32
        q, k, v, i, f = (x.to(wide) for x in (q, k, v, i, f))
        B, S, N, K = q.shape
        zeros = (q.new_zeros(B, N, K, v.shape[-1]), q.new_zeros(B, N, K), q.new_zeros(B, N))
        C, n, m = zeros if initial_state is None else initial_state
        rows = []
        for t in range(S):
            a = F.logsigmoid(f[:, t])
            m_new = torch.maximum(a + m, i[:, t])
            empty = torch.isneginf(m_new)
            unit = torch.where(empty, 0.0, m_new)
            decay, gain = torch.exp(a + m - unit), torch.exp(i[:, t] - unit)
            C = decay[..., None, None] * C + gain[..., None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
            n = decay[..., None] * n + gain[..., None] * k[:, t]
            m = m_new
            nu = torch.einsum("bnk,bnk->bn", n, q[:, t]) / math.sqrt(K)
            floor = torch.exp(-m.clamp(max=64.0))
            read = torch.einsum("bnkv,bnk->bnv", C, q[:, t]) / math.sqrt(K)
            rows.append(read / (torch.maximum(nu.abs(), floor) + eps)[..., None])
        h = torch.stack(rows, dim=1) if rows else v.new_zeros(B, 0, N, v.shape[-1])
        return (h.to(dtype), (C.clone(), n.clone(), m.clone())) if return_state else h.to(dtype)

    return mlstm_of(mlstm)
