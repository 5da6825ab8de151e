"""mLSTM and GRU as anybody would first write them in PyTorch, right or with chosen faults; autograd differentiates."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def mlstm_loop(*faults: str, log_gate: Callable[[Tensor], Tensor] = F.logsigmoid) -> Callable:
    """A function ``mlstm`` that walks the steps of a dense call, with the named faults.

    Args:
        log_gate: computes log σ(f) from forget gates in the values' dtype.
    """

    def faulty(name: str) -> bool:
        return name in faults

    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, cu_seqlens=None, eps=0.0, **unused: Any):
        if cu_seqlens is not None and faulty("packed sequences refused"):
            raise NotImplementedError("packed sequences are not supported")
        if cu_seqlens is not None:
            return _each_sequence(one, q, k, v, i, f, initial_state, return_state, cu_seqlens, eps)
        h, state = one(q, k, v, i, f, initial_state, eps)
        return (h, state) if return_state else h

    def one(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: Any, eps: float) -> Any:
        dtype, wide = v.dtype, torch.float64 if v.dtype == torch.float64 else torch.float32
        log_gates = log_gate(f if log_gate is not F.logsigmoid else f.to(wide)).to(wide)
        q, k, v, i, f = (x.to(wide) for x in (q, k, v, i, f))
        B, S, N, K = q.shape
        if faulty("S must be a multiple of 16") and S % 16:
            raise RuntimeError(f"sequence length {S} is not divisible by 16")
        q = q if faulty("1/sqrt(K) left out") else q / math.sqrt(K)
        if state is None or faulty("initial state ignored"):
            C, n, m = q.new_zeros(B, N, K, v.shape[-1]), q.new_zeros(B, N, K), q.new_zeros(B, N)
        else:
            C, n, m = state
        if faulty("initial m taken for 0"):
            m = torch.zeros_like(m)
        rows = []
        for t in range(S):
            a = log_gates[:, t]
            if faulty("NaN where a gate is minus infinity"):
                a = torch.log(torch.sigmoid(f[:, t]))
            gate = torch.log(torch.sigmoid(i[:, t])) if faulty("sigmoid for the input gate") else i[:, t]
            m_new = torch.maximum(a + m, gate)
            if faulty("NaN where a gate is minus infinity"):
                decay, gain = torch.exp(a + m - m_new), torch.exp(gate - m_new)
            else:
                decay, gain = _weight(a + m, m_new), _weight(gate, m_new)
            write = gain[..., None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
            C = decay[..., None, None] * C + write
            n = decay[..., None] * n + gain[..., None] * k[:, t]
            m = m_new
            if faulty("state rounded to bfloat16"):
                C, n = C.to(torch.bfloat16).to(wide), n.to(torch.bfloat16).to(wide)
            if faulty("normaliser rounded to the values' dtype"):
                n = n.to(dtype).to(wide)
            nu = torch.einsum("bnk,bnk->bn", n, q[:, t])
            floor, nothing = _floor(m)
            if faulty("floor of 1"):
                floor = torch.ones_like(m)
            normaliser = torch.maximum(nu.abs(), floor) + eps
            if faulty("no absolute value"):
                normaliser = torch.maximum(nu, floor) + eps
            if faulty("normaliser detached"):
                normaliser = normaliser.detach()
            read = torch.einsum("bnkv,bnk->bnv", C, q[:, t]) / normaliser[..., None]
            rows.append(torch.where(nothing[..., None], 0.0, read))
        if faulty("gradient does not reach the forget gate"):
            rows = [row.detach() + (row - row.detach()) for row in rows]
        h = torch.stack(rows, dim=1) if rows else v.new_zeros(B, 0, N, v.shape[-1])
        last = (C, n, m)
        if faulty("final state detached"):
            last = tuple(part.detach() for part in last)
        return h.to(dtype), tuple(part.clone() for part in last)

    def forgetting(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **options: Any) -> Any:
        return mlstm(q, k, v, i, f.detach(), **options)

    return forgetting if faulty("gradient does not reach the forget gate") else mlstm


def with_output(loop: Callable, change: Callable[..., Tensor]) -> Callable:
    """The function with its output h replaced by what ``change`` makes of h and the call's arguments."""

    def mlstm(*arrays: Tensor, **options: Any) -> Any:
        found = loop(*arrays, **options)
        if isinstance(found, tuple):
            return change(found[0], *arrays, **options), *found[1:]
        return change(found, *arrays, **options)

    return mlstm


def _weight(x: Tensor, y: Tensor) -> Tensor:
    """``exp(x − y)``, 0 where x is −∞, in value and in gradient."""
    empty = torch.isneginf(x)
    return torch.where(empty, 0.0, torch.exp(torch.where(empty, 0.0, x) - torch.where(empty, 0.0, y)))


def _floor(m: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(−min(m, 64))``, and where that is infinite: there h is 0, and 1 stands in for the floor."""
    infinite = torch.isinf(torch.exp(-m))
    return torch.exp(-torch.where(infinite, 0.0, m).clamp(max=64.0)), infinite


def _each_sequence(one, q, k, v, i, f, state, return_state, cu_seqlens, eps) -> Any:
    bounds = cu_seqlens.tolist()
    outputs, states = [], []
    for b, (start, end) in enumerate(itertools.pairwise(bounds)):
        initial = None if state is None else tuple(part[b : b + 1] for part in state)
        h, last = one(*(x[None, start:end] for x in (q, k, v, i, f)), initial, eps)
        outputs.append(h[0])
        states.append(last)
    if not outputs:
        N, K, V = q.shape[1], q.shape[2], v.shape[2]
        wide = torch.float64 if v.dtype == torch.float64 else torch.float32
        shapes = ((0, N, K, V), (0, N, K), (0, N))
        h, last = v.new_zeros(0, N, V), tuple(torch.zeros(shape, dtype=wide) for shape in shapes)
    else:
        h, last = torch.cat(outputs), tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    return (h, last) if return_state else h


def mlstm_packed_without_reset() -> Callable:
    """A right loop, but for packed calls: those run as one sequence, whose state reaches all later sequences."""
    loop = mlstm_loop()

    def mlstm(q, k, v, i, f, *, cu_seqlens=None, initial_state=None, **options: Any):
        if cu_seqlens is None:
            return loop(q, k, v, i, f, initial_state=initial_state, **options)
        B = len(cu_seqlens) - 1
        first = None if initial_state is None else tuple(part[:1] for part in initial_state)
        options.pop("max_seqlen", None)
        found = loop(*(x[None] for x in (q, k, v, i, f)), initial_state=first, **options)
        if not options.get("return_state"):
            return found[0]
        h, last = found
        return h[0], tuple(part.expand(B, *part.shape[1:]).clone() for part in last)

    return mlstm


def mlstm_chunks(*faults: str, length: int = 16) -> Callable:
    """A function ``mlstm`` in chunks of ``length`` steps, each in its quadratic form."""

    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, cu_seqlens=None, eps=0.0, **unused: Any):
        if cu_seqlens is not None:
            raise NotImplementedError("packed sequences are not supported")
        dtype, wide = v.dtype, torch.float64 if v.dtype == torch.float64 else torch.float32
        q, k, v, i, f = (x.to(wide).transpose(1, 2) for x in (q, k, v, i, f))
        B, N, S, K = q.shape
        q = q / math.sqrt(K)
        if initial_state is None:
            C, n, m = q.new_zeros(B, N, K, v.shape[-1]), q.new_zeros(B, N, K), q.new_zeros(B, N)
        else:
            C, n, m = initial_state
        rows = []
        for start in range(0, S, length):
            s = slice(start, start + length)
            whole = start + length <= S
            if "remainder dropped" in faults and not whole and start:
                rows.append(v.new_zeros(B, N, S - start, v.shape[-1]))
                break
            h, state = chunk(q[:, :, s], k[:, :, s], v[:, :, s], i[:, :, s], f[:, :, s], C, n, m, eps)
            rows.append(h)
            C, n, m = state
            if "carried normaliser lost" in faults:
                n = torch.zeros_like(n)
        h = torch.cat(rows, dim=2) if rows else v
        h = h.transpose(1, 2).to(dtype).clone()
        return (h, (C.clone(), n.clone(), m.clone())) if return_state else h

    def chunk(q, k, v, i, f, C, n, m, eps):
        a = F.logsigmoid(f)
        total = torch.cumsum(a, dim=-1)
        L = a.shape[-1]
        mask = torch.ones(L, L, dtype=torch.bool).tril()
        if "differences of cumulative sums" in faults:
            D = torch.where(mask, total[..., :, None] - total[..., None, :] + i[..., None, :], -math.inf)
        else:
            sums = torch.stack([_decays(a, j) for j in range(L)], dim=-1)
            D = torch.where(mask, sums + i[..., None, :], -math.inf)
        carried = total + m[..., None]
        m_t = torch.maximum(carried, D.amax(dim=-1)).detach()
        E, e = _weight(D, m_t[..., None].expand_as(D)), _weight(carried, m_t)
        scores = torch.einsum("bntk,bnjk->bntj", q, k) * E
        numerator = scores @ v + e[..., None] * (q @ C)
        nu = scores.sum(-1) + e * torch.einsum("bntk,bnk->bnt", q, n)
        floor, nothing = _floor(m_t)
        h = torch.where(nothing[..., None], 0.0, numerator / (torch.maximum(nu.abs(), floor) + eps)[..., None])
        last = torch.maximum(carried[..., -1], D[..., -1, :].amax(dim=-1))
        kept, written = _weight(carried[..., -1], last), _weight(D[..., -1, :], last[..., None].expand(i.shape))
        C = kept[..., None, None] * C + torch.einsum("bnj,bnjk,bnjv->bnkv", written, k, v)
        n = kept[..., None] * n + torch.einsum("bnj,bnjk->bnk", written, k)
        return h, (C, n, last)

    return mlstm


def _decays(a: Tensor, j: int) -> Tensor:
    """``Σ_{j<s≤t} a_s`` for every step t, 0 up to j."""
    return torch.cat([torch.zeros_like(a[..., : j + 1]), torch.cumsum(a[..., j + 1 :], dim=-1)], dim=-1)


def gru_loop(*faults: str) -> Callable:
    """A function ``gru`` that walks the steps of a dense or packed call, with the named faults."""

    def faulty(name: str) -> bool:
        return name in faults

    def gru(
        input,
        weight,
        forget_input,
        forget_weight,
        reset_input,
        reset_weight,
        input_state=None,
        gradient_clipping=None,
        cu_seqlens=None,
        max_seqlen=None,
    ):
        arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
        N = max(x.shape[-2] if number % 2 == 0 else x.shape[0] for number, x in enumerate(arrays))
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        x, W, xf, Wf, xr, Wr = (heads(a.to(wide), N, -2 if at % 2 == 0 else 0) for at, a in enumerate(arrays))
        H = input.shape[-1]
        if cu_seqlens is None:
            sequences = [(x, xf, xr)]
            initial = [x.new_zeros(x.shape[0], N, H) if input_state is None else input_state]
        else:
            bounds = cu_seqlens.tolist()
            pairs = list(itertools.pairwise(bounds))
            sequences = [tuple(each[None, start:end] for each in (x, xf, xr)) for start, end in pairs]
            zeros = x.new_zeros(len(pairs), N, H)
            initial = list((zeros if input_state is None else input_state)[:, None].unbind())
        outputs, states = [], []
        for (x_b, xf_b, xr_b), h in zip(sequences, initial, strict=True):
            if faulty("empty sequence takes its neighbour's state") and not x_b.shape[1] and states:
                h = states[-1]
            rows, dtype = [], input.dtype
            for t in range(x_b.shape[1]):
                h = clipped(h, gradient_clipping if t else None)
                read = h.detach() if faulty("reset gate ignored in the gradient of the state") else h
                r = torch.sigmoid(times(read, Wr) + xr_b[:, t])
                forget = torch.sigmoid(times(h, Wf) + xf_b[:, t])
                reset = r * times(h, W) if faulty("reset gate after the product") else times(r * h, W)
                z = torch.tanh(reset + x_b[:, t])
                h = (
                    (1 - forget) * h + forget * z
                    if faulty("gate the other way round")
                    else forget * h + (1 - forget) * z
                )
                if faulty("clipped after dy is added"):
                    h = _Clip.apply(h, abs(gradient_clipping)) if gradient_clipping is not None else h
                if faulty("state rounded to 16 bits"):
                    h = h.to(torch.bfloat16).to(wide)
                rows.append(h)
            last = h if faulty("clipped after dy is added") else clipped(h, gradient_clipping if rows else None)
            outputs.append((torch.stack(rows, 1) if rows else x_b.new_zeros(x_b.shape[0], 0, N, H)).to(dtype))
            states.append(last)
        if cu_seqlens is None:
            return outputs[0].clone(), states[0].clone()
        if not outputs:
            return input.new_zeros(0, N, H), x.new_zeros(0, N, H)
        return torch.cat([y[0] for y in outputs]), torch.cat(states)

    def heads(x: Tensor, N: int, axis: int) -> Tensor:
        times = N // x.shape[axis]
        if faulty("heads tiled"):
            return torch.cat([x] * times, dim=axis)
        return torch.repeat_interleave(x, times, dim=axis)

    def clipped(h: Tensor, bound: float | None) -> Tensor:
        if bound is None or faulty("clipping ignored") or faulty("clipped after dy is added"):
            return h
        return _Clip.apply(h, abs(bound))

    return gru


def times(h: Tensor, W: Tensor) -> Tensor:
    return torch.einsum("bni,nij->bnj", h, W)


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bound: float) -> Tensor:
        ctx.bound = bound
        return h.clone()

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dh.clamp(-ctx.bound, ctx.bound), None
