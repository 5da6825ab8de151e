"""The mLSTM as registered operators ``gatespec::mlstm_forward``, ``mlstm_backward``, and their ``autograd.Function``s.

Both the plain and the fwbw interface run through here; they differ in the normaliser's floor and in what is kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torch_impl._arrays import ACCUMULATION
from torch_impl._mlstm import composed
from torch_impl._mlstm.chunkwise import LARGEST_M, Normaliser, Tokens
from torch_impl._mlstm.triton import launch as kernels
from torch_impl._operators import each, fold, no_second_derivative, operator, plainly, transformable, unfold

KEEP_G, KEEP_GATES, KEEP_M, KEEP_C, KEEP_BLOCKS = 1, 2, 4, 8, 16
"""Bits of the operators' ``keep``: what the forward pass returns for the backward pass."""

_KEPT = {"torch": composed.KEPT, "triton": (1, len(kernels.Gates._fields), 1, len(kernels.Memories._fields), 0)}
_MOST_KEPT = max(sum(sizes) for sizes in _KEPT.values())


def kept_sizes(keep: int, backend: str) -> list[int]:
    """How many tensors are kept for each bit of ``keep``."""
    return [size * bool(keep & 1 << bit) for bit, size in enumerate(_KEPT[backend])]


def _flags(keep: int) -> composed.Flags:
    return composed.Flags(*(bool(keep & 1 << bit) for bit in range(len(composed.KEPT))))


def kept_axes(q: Tensor, v: Tensor, keep: int, backend: str) -> list[int]:
    """How many axes each of the tensors has that a dense call keeps, the head axis among them."""
    q, v = (torch.empty((1, 1, 1, x.shape[-1]), dtype=x.dtype, device="meta") for x in (q, v))
    outputs = _mlstm_forward_shapes(q, q, v, q, q, None, None, None, None, 1, 0.0, True, backend, keep)
    return [x.ndim for x in outputs[4:]]


def _from_kernels(kept: kernels.Kept, B: int) -> list[Tensor]:
    """What kernels kept of a dense call, with the head axis third: views, but for what is returned as well."""
    G, gates, M, c = kept
    outputs = [] if G is None else [G.transpose(1, 2)]
    if gates is not None:
        outputs += [*(part.mT for part in gates[:4]), *(_by_lane(part, B) for part in gates[4:])]
    if M is not None:
        outputs.append(M.mT)
    if c is not None:
        outputs += [
            *(_by_lane(part, B) for part in c[:5] if part is not None),
            *(part.clone().unsqueeze(1) for part in c[5:]),
        ]
    return outputs


def _by_lane(part: Tensor, B: int) -> Tensor:
    return part.view(B, len(part) // max(B, 1), *part.shape[1:])


def _to_kernels(kept: Sequence[Tensor], keep: int) -> kernels.Kept:
    rest = iter(kept)
    G, gates, M, c, _ = ([next(rest) for _ in range(size)] for size in kept_sizes(keep, "triton"))
    return kernels.Kept(
        G[0].transpose(1, 2).contiguous() if G else None,
        kernels.Gates(*(x.mT.contiguous() for x in gates[:4]), *(x.flatten(0, 1).contiguous() for x in gates[4:]))
        if gates
        else None,
        M[0].mT.contiguous() if M else None,
        kernels.Memories(*(x.flatten(0, 1).contiguous() for x in c)) if c else None,
    )


def _mlstm_forward(q, k, v, i, f, C, n, m, cu_seqlens, chunk_size, eps, stabilize, backend, keep) -> list[Tensor]:
    if backend == "triton":
        names = zip(("keep_G", "keep_gates", "keep_M", "keep_c"), _flags(keep), strict=False)
        *outputs, kept = kernels.mlstm_forward(
            q, k, v, i, f, C, n, m, cu_seqlens, chunk=chunk_size, eps=eps, stabilized=stabilize, **dict(names)
        )
        return [*outputs, *_from_kernels(kept, q.shape[0])]
    return composed.mlstm_forward(
        Tokens(q, k, v), (i, f), (C, n, m), cu_seqlens, chunk_size, Normaliser(stabilize, eps), _flags(keep)
    )


def _mlstm_forward_shapes(
    q, k, v, i, f, C, n, m, cu_seqlens, chunk_size, eps, stabilize, backend, keep
) -> list[Tensor]:
    dtype = ACCUMULATION[v.dtype]
    *_, N, K = q.shape
    B, V = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1, v.shape[-1]

    def states(*lead: int) -> list[Tensor]:
        return [v.new_empty((*lead, N, *shape), dtype=dtype) for shape in ((K, V), (K,), ())]

    outputs = [v.new_empty(v.shape), *states(B)]
    if keep and backend == "triton":
        outputs += _kept_shapes(q, v, B, N, K, V, kernels.block_length(v.dtype, chunk_size), keep)
    elif keep:
        outputs += composed.kept_shapes(q, v, chunk_size, _flags(keep))
    return outputs


def _kept_shapes(q: Tensor, v: Tensor, B: int, N: int, K: int, V: int, L: int, keep: int) -> list[Tensor]:
    """Empty tensors like those of `_from_kernels`."""
    S = q.shape[1]
    blocks = -(-S // L)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return v.new_empty(shape, dtype=dtype)

    outputs = []
    if keep & KEEP_G:
        outputs.append(empty(B, N, S, L).transpose(1, 2))
    if keep & KEEP_GATES:
        outputs += [*(empty(B, N, S).mT for _ in range(4)), *(empty(B, blocks, N) for _ in range(2))]
        outputs.append(empty(B, blocks, N, dtype=torch.int32))
    if keep & KEEP_M:
        outputs.append(empty(B, N, S).mT)
    if keep & KEEP_C:
        operand = torch.bfloat16 if v.dtype is torch.bfloat16 else torch.float32
        outputs += [empty(B, blocks + 1, N, K, V, dtype=operand), *(empty(B, blocks + 1, N, d) for d in (K, V))]
        outputs += [*(empty(B, blocks, N) for _ in range(2)), empty(B, 1, N, K, V), empty(B, 1, N, K), empty(B, 1, N)]
        outputs.append(empty(B, 1, N, dtype=torch.int32))
    return outputs


def _mlstm_backward(
    q, k, v, i, f, C, n, m, cu_seqlens, dh, dC, dn, dm, chunk_size, eps, stabilize, backend, keep, kept
) -> list[Tensor]:
    if backend == "triton":
        left = _to_kernels(kept, keep)
        options = {"chunk": chunk_size, "eps": eps, "stabilized": stabilize}
        return list(kernels.mlstm_backward(q, k, v, i, f, C, n, m, cu_seqlens, dh, dC, dn, dm, left, **options))
    return composed.mlstm_backward(
        Tokens(q, k, v), (i, f), (C, n, m), cu_seqlens, dh, (dC, dn, dm), chunk_size, Normaliser(stabilize, eps),
        kept, _flags(keep),
    )  # fmt: skip


def _mlstm_backward_shapes(
    q, k, v, i, f, C, n, m, cu_seqlens, dh, dC, dn, dm, chunk_size, eps, stabilize, backend, keep, kept
) -> list[Tensor]:
    states = _mlstm_forward_shapes(q, k, v, i, f, C, n, m, cu_seqlens, chunk_size, eps, stabilize, backend, 0)[1:]
    return [*(x.new_empty(x.shape) for x in (q, k, v, i, f)), *states]


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? C, Tensor? n, Tensor? m, Tensor? cu_seqlens"
_OPTIONS = "int chunk_size, float eps, bool stabilize, str backend"
mlstm_direct = operator(
    f"mlstm_forward({_INPUTS}, {_OPTIONS}, int keep) -> Tensor[]", _mlstm_forward, _mlstm_forward_shapes
)
_backward_direct = operator(
    f"mlstm_backward({_INPUTS}, Tensor? dh, Tensor? dC, Tensor? dn, Tensor? dm, {_OPTIONS}, "
    "int keep, Tensor[] kept) -> Tensor[]",
    _mlstm_backward,
    _mlstm_backward_shapes,
)


def slots(keep: int, kept: Sequence[Tensor]) -> tuple[Any, ...]:
    """The last arguments of `mlstm_backward_autograd`: ``keep``, and what was kept in as many places as there are."""
    return keep, *kept, *(None,) * (_MOST_KEPT - len(kept))


def _axes(packed: bool) -> tuple[list[int | None], list[int]]:
    """The head axis of q, k, v, i, f, C, n, m, cu_seqlens, and of h, C, n, m."""
    tokens = 1 if packed else 2
    return [tokens] * 5 + [1] * 3 + [None], [tokens, 1, 1, 1]


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, i, f, C, n, m, cu_seqlens, chunk_size, eps, stabilize, backend, keep):
        return tuple(mlstm_direct(q, k, v, i, f, C, n, m, cu_seqlens, chunk_size, eps, stabilize, backend, keep))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, chunk_size, eps, stabilize, backend, keep = inputs
        kept = output[4:]
        ctx.chunk_size, ctx.eps, ctx.stabilize, ctx.backend, ctx.keep = chunk_size, eps, stabilize, backend, keep
        ctx.save_for_backward(*tensors, *kept)
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dh, dC, dn, dm, *_):
        if dh is None and dC is None and dn is None and dm is None:
            return (None,) * 14
        saved = ctx.saved_tensors
        arguments = *saved[:9], dh, dC, dn, dm, ctx.chunk_size, ctx.eps, ctx.stabilize, ctx.backend
        if plainly():
            gradients = _backward_direct(*arguments, ctx.keep, saved[9:])
        else:
            gradients = _Backward.apply(*arguments, *slots(ctx.keep, saved[9:]))
        return *(gradients[:5] if saved[5] is None else gradients), *((None,) * (9 if saved[5] is None else 6))

    @staticmethod
    def vmap(info, in_dims, *args):
        size, packed = info.batch_size, args[8] is not None
        if in_dims[8] is not None:
            return each(_Forward.apply, size, in_dims, args)
        axes, outputs = _axes(packed)
        folded = _Forward.apply(*fold(size, in_dims, args, [*axes, *(None,) * 5]))
        return unfold(size, folded, [*outputs, *outputs[:1] * (len(folded) - 4)])


class _Backward(torch.autograd.Function):
    # Not *kept: torch.compile tells a forward with ctx from one without by counting parameters.
    @staticmethod
    def forward(
        q, k, v, i, f, C, n, m, cu_seqlens, dh, dC, dn, dm, chunk_size, eps, stabilize, backend,
        keep, k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13, k14, k15, k16, k17,
    ):  # fmt: skip
        primals, cotangents = (q, k, v, i, f, C, n, m, cu_seqlens), (dh, dC, dn, dm)
        kept = k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13, k14, k15, k16, k17
        kept = kept[: sum(kept_sizes(keep, backend))]
        return tuple(_backward_direct(*primals, *cotangents, chunk_size, eps, stabilize, backend, keep, kept))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        no_second_derivative("mlstm")

    @staticmethod
    def vmap(info, in_dims, *args):
        size, packed = info.batch_size, args[8] is not None
        if in_dims[8] is not None:
            return each(_Backward.apply, size, in_dims, args)
        axes, outputs = _axes(packed)
        folded = _Backward.apply(*fold(size, in_dims, args, [*axes, *outputs, *(None,) * 5, *outputs[:1] * _MOST_KEPT]))
        return unfold(size, folded, axes[:8])


mlstm_autograd, mlstm_backward_autograd = transformable(_Forward), transformable(_Backward)


def _mlstm_step(q, k, v, i, f, C, n, m, eps, backend) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if backend == "triton":
        return kernels.mlstm_step(q, k, v, i, f, C, n, m, eps=eps)
    # On a CPU the operators' own fixed cost is what a step takes, so there are as few as can be, all on (B·N, ·, ·).
    out, dtype = v.dtype, ACCUMULATION[v.dtype]
    if out is not dtype:
        q, k, v = (x.to(dtype) for x in (q, k, v))
    if f.dtype is not dtype:
        i, f = i.to(dtype), f.to(dtype)
    (B, N, K), V = q.shape, v.shape[-1]
    i, m_before = i.contiguous(), m.contiguous()
    a = logsigmoid(f.contiguous())
    m = torch.maximum(a + m_before, i)
    finite = m.clamp(min=torch.finfo(dtype).min)
    kept = torch.sub(m_before, finite).add_(a).exp_().view(B * N, 1, 1)
    k = k.reshape(B * N, K, 1) * torch.sub(i, finite).exp_().view(B * N, 1, 1)
    C = (C.reshape(B * N, K, V) * kept).addcmul_(k, v.reshape(B * N, 1, V))
    n = torch.addcmul(k, n.reshape(B * N, K, 1), kept)
    q, scale = q.reshape(B * N, 1, K), K**-0.5
    floor = m.clamp(max=LARGEST_M).neg_().exp_().view(B * N, 1, 1)
    Y = torch.maximum(torch.baddbmm(floor, q, n, beta=0, alpha=scale).abs_(), floor)
    h = torch.baddbmm(floor, q, C, beta=0, alpha=scale).div_(Y.add_(eps) if eps else Y).view(B, N, V)
    return h if out is dtype else h.to(out), C.view(B, N, K, V), n.reshape(B, N, K), m


def _mlstm_step_shapes(q, k, v, i, f, C, n, m, eps, backend) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return v.new_empty(v.shape), C.new_empty(C.shape), n.new_empty(n.shape), m.new_empty(m.shape)


step_direct = operator(
    "mlstm_step(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor C, Tensor n, Tensor m, float eps, "
    "str backend) -> (Tensor, Tensor, Tensor, Tensor)",
    _mlstm_step,
    _mlstm_step_shapes,
)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, i, f, C, n, m, eps, backend):
        return step_direct(q, k, v, i, f, C, n, m, eps, backend)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.eps, ctx.backend = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dh, dC, dn, dm):
        if dh is None and dC is None and dn is None and dm is None:
            return (None,) * 10
        *tokens, C, n, m = ctx.saved_tensors
        tokens = (x.unsqueeze(1) for x in tokens)
        dh = None if dh is None else dh.unsqueeze(1)
        options = 0, ctx.eps, True, ctx.backend
        arguments = *tokens, C, n, m, None, dh, dC, dn, dm, *options
        if plainly():
            gradients = _backward_direct(*arguments, 0, ())
        else:
            gradients = mlstm_backward_autograd(*arguments, *slots(0, ()))
        return *(dx.squeeze(1) for dx in gradients[:5]), *gradients[5:], None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        folded = _Step.apply(*fold(info.batch_size, in_dims, args, [*(1,) * 8, None, None]))
        return unfold(info.batch_size, folded, (1,) * 4)


step_autograd = transformable(_Step)
