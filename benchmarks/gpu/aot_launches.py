"""Every launch of every Triton kernel at the shapes that it is designed for, with its default and alternative plans."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from benchmarks.gpu.aot_compile import TYPES, Launched, launches

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MLSTM = (8, 8192, 16, 128, 256)
"""B, S, N, K, V."""
LONG = (1, 65536, 16, 128, 256)
"""One sequence: sizes of 1 are compiled into a kernel."""
ODD = (8, 8192, 16, 100, 72)
"""Sizes that the launcher pads."""
MLSTM_CALLS = ("dense", "packed", "kept", "step", "long", "odd")
"""Forward and backward pass; packed, with an initial state and cotangents of the final state; with all residuals."""
GRU = {
    "B8 S4096 N85 H16": (8, 4096, 85, 16),
    "B8 S1024 N8 H32": (8, 1024, 8, 32),
    "B16 S1024 N12 H64": (16, 1024, 12, 64),
    "B16 S1024 N8 H128": (16, 1024, 8, 128),
    "B128 S128 N1 H256": (128, 128, 1, 256),
    "B16 S512 N8 H512": (16, 512, 8, 512),
    "B16 S512 N1 H1024": (16, 512, 1, 1024),
    "B8 S512 N4 H40": (8, 512, 4, 40),
}
"""B, S, N, H: at least one shape for every range of H that has its own plan, and a width that the launcher pads."""
MOST_PLANS = 6


class Case(NamedTuple):
    """The launches of a call. ``plan`` is 0 for the default plans, else the number of an alternative for tuning."""

    name: str
    dtype: str
    plan: int
    launched: list[Launched]


def cases(
    target: str,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    most_plans: int = MOST_PLANS,
    mlstm: tuple[str, ...] = MLSTM_CALLS,
    gru: tuple[str, ...] = tuple(GRU),
    slstm: tuple[str, ...] = tuple(GRU),
    sums: bool = True,
) -> Iterator[Case]:
    """The launches for a target: calls of the mLSTM, shapes in `GRU` for both forms of the GRU and for the sLSTM, and
    scans and decay matrices."""
    from torch_impl._mlstm.triton import launch as mlstm_kernels
    from torch_impl._recurrent.triton import launch as recurrent_kernels

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.version, "hip", None if target.startswith("sm_") else "6"))
        capability = int(target.removeprefix("sm_")) // 10 if target.startswith("sm_") else None
        for module in (mlstm_kernels, recurrent_kernels):
            stack.enter_context(patch.object(module, "capability", lambda device: capability))
        for number in range(most_plans):
            with ExitStack() as plans:
                for module in (mlstm_kernels, recurrent_kernels):
                    plans.enter_context(patch.object(module, "tuned", _numbered(number)))
                for dtype in dtypes:
                    # The other calls use the kernels of the dense call, or are not tuned.
                    found = list(_mlstm(dtype, mlstm if number == 0 else mlstm[:1]))
                    found += [(f"gru {name}", _gru(dtype, *GRU[name])) for name in gru]
                    found += [(f"gru reset after {name}", _gru(dtype, *GRU[name], reset_after=True)) for name in gru]
                    found += [(f"slstm {name}", _slstm(dtype, *GRU[name])) for name in slstm]
                    found += _sums(dtype) if sums and number == 0 else []
                    yield from (Case(name, TYPES[dtype], number, launched) for name, launched in found)


def _numbered(number: int) -> Callable[..., Any]:
    """A replacement for `tuned` that takes the plan with this number, or the last one if there are fewer."""

    def choose(kernel: str, sizes: str, plans: Callable[[], Any], device: Any, run: Any) -> Any:
        offered = plans()
        return offered[min(number, len(offered) - 1)]

    return choose


def _empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _mlstm(dtype: torch.dtype, names: tuple[str, ...]) -> Iterator[tuple[str, list[Launched]]]:
    """The launches of the named `MLSTM_CALLS`."""
    from torch_impl._mlstm.arguments import Arguments, Cotangents, StepArguments
    from torch_impl._mlstm.triton import launch as mlstm

    B, S, N, K, V = MLSTM
    q, k, v, i, f = (_empty(dtype, B, S, N, *shape) for shape in ((K,), (K,), (V,), (), ()))
    C, n, m = (_empty(torch.float32, B, N, *shape) for shape in ((K, V), (K,), ()))

    only_h = Cotangents(dh=v)

    def dense() -> None:
        x = Arguments(q=q, k=k, v=v, i=i, f=f)
        mlstm.mlstm_forward(x)
        mlstm.mlstm_backward(x, only_h)

    def other(sizes: tuple[int, ...]) -> None:
        B, S, N, K, V = sizes
        q, v, gate = (_empty(dtype, B, S, N, *shape) for shape in ((K,), (V,), ()))
        x = Arguments(q=q, k=q, v=v, i=gate, f=gate)
        mlstm.mlstm_forward(x)
        mlstm.mlstm_backward(x, Cotangents(dh=v))

    def kept() -> None:
        x = Arguments(q=q, k=k, v=v, i=i, f=f)
        _, residuals = mlstm.mlstm_forward(x, keep=mlstm.Residuals._fields)
        mlstm.mlstm_backward(x, only_h, residuals)

    def packed() -> None:
        tokens = (part.flatten(0, 1) for part in (q, k, v, i, f))
        x = Arguments(*tokens, C=C, n=n, m=m, cu_seqlens=torch.empty(B + 1, dtype=torch.int64, device="meta"))
        mlstm.mlstm_forward(x)
        mlstm.mlstm_backward(x, Cotangents(dh=x.v, dC=C, dn=n, dm=m))

    def step() -> None:
        tokens = (part[:, 0] for part in (q, k, v, i, f))
        mlstm.mlstm_step(StepArguments(*tokens, C=C, n=n, m=m, eps=0.0, backend="triton"))

    calls = {"dense": dense, "packed": packed, "kept": kept, "step": step}
    others = {"long": LONG, "odd": ODD}
    for name in names:
        *_, K, V = others.get(name, MLSTM)
        call = partial(other, others[name]) if name in others else calls[name]
        yield f"mlstm K{K} V{V} {name}", launches(mlstm, call)


def _gru(dtype: torch.dtype, B: int, S: int, N: int, H: int, reset_after: bool = False) -> list[Launched]:
    """Forward and backward pass, with an initial state, a final cotangent, clipping and all that the form may have."""
    from torch_impl._gru.arguments import Arguments, Cotangents
    from torch_impl._gru.triton import launch as gru
    from torch_impl._recurrent.triton import launch as recurrent

    x, W, h0 = _empty(dtype, B, S, N, H), _empty(dtype, N, H, H), _empty(torch.float32, B, N, H)
    bias = _empty(dtype, N, H) if reset_after else None
    options = {"recurrent_bias": bias, "gradient_clipping": 1.0, "reset_after": reset_after}
    arguments = Arguments(x, W, x, W, x, W, input_state=h0, **options)

    def both() -> None:
        gru.gru_forward(arguments)
        (y, _), residuals = gru.gru_forward(arguments, gru.worth_keeping(arguments))
        gru.gru_backward(arguments, Cotangents(doutput=x, doutput_state=h0), residuals._replace(output=y))

    return launches(recurrent, both)


def _slstm(dtype: torch.dtype, B: int, S: int, N: int, H: int) -> list[Launched]:
    """Forward and backward pass, with an initial state, final cotangents and clipping."""
    from torch_impl._recurrent.triton import launch as recurrent
    from torch_impl._slstm.arguments import Arguments, Cotangents
    from torch_impl._slstm.triton import launch as slstm

    x, W, state = _empty(dtype, B, S, N, H), _empty(dtype, N, H, H), _empty(torch.float32, B, N, H)
    arguments = Arguments(x, x, x, x, W, W, W, W, state, state, state, state, gradient_clipping=1.0)

    def both() -> None:
        results, residuals = slstm.slstm_forward(arguments, slstm.Residuals._fields)
        residuals = residuals._replace(h=results.h, c_last=results.c_last, n_last=results.n_last)
        slstm.slstm_backward(arguments, Cotangents(x, *[state] * 4), residuals)

    return launches(recurrent, both)


def _sums(dtype: torch.dtype) -> Iterator[tuple[str, list[Launched]]]:
    """The scans and the decay matrices, forward and backward."""
    from torch_impl._decay.triton import launch as decay
    from torch_impl._scan.triton import launch as scan

    x, a, i = _empty(dtype, 8, 16, 4096), _empty(dtype, 8, 16, 512), _empty(dtype, 8, 16, 512, 1)
    dF = _empty(dtype, 8, 16, 512, 512)

    def sums() -> None:
        scan.rev_cumsum(x)
        scan.rev_cumsum_off_backward(x)

    def matrices() -> None:
        decay.causal_forget_matrix(a)
        decay.causal_forget_matrix_backward(dF)
        decay.dtilde_matrix(i, i)
        decay.dtilde_matrix_backward(dF, i)

    yield "scan S4096", launches(scan, sums)
    yield "decay S512", launches(decay, matrices)
