"""`mlstm` and `mlstm_step` for callers whose arrays are head-first, ``(B, N, S, ·)``, as in mlstm_kernels.

The function is the same: q is scaled by ``K^−½`` inside, ``eps`` is added to the normaliser, and without a state the
memory is empty with ``m = 0``. Only the layout of arrays, the shape of m and the dtype of states differ.
"""

import contextlib
from typing import NoReturn

import torch
from torch import Tensor

from reference.arguments import MLSTMState, describe
from torch_impl._arrays import ACCUMULATION, autocast_dtype, cast
from torch_impl._backends import KernelBackend
from torch_impl._mlstm.api import mlstm, mlstm_step

HeadFirstState = tuple[Tensor, Tensor, Tensor]
"""``(c, n, m)`` of shapes ``(B, N, K, V)``, ``(B, N, K)`` and ``(B, N, 1)``."""


def run_sequences(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: tuple[Tensor | None, Tensor | None, Tensor | None],
    *,
    eps: float,
    chunk_size: int | None = None,
    autocast_kernel_dtype: torch.dtype | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, HeadFirstState]:
    """`mlstm` in the head-first layout.

    Args:
        function: its name in messages.
        q: ``(B, N, S, K)``.
        k: same shape as `q`.
        v: ``(B, N, S, V)``.
        i: ``(B, N, S)``.
        f: same shape as `i`.
        state: ``(c, n, m)``, ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N, 1)``, in the accumulation dtype or one that it
            holds exactly; three times None means an empty memory with ``m = 0``.
        eps: added to the normaliser.
        chunk_size: as in `mlstm`.
        autocast_kernel_dtype: under autocast, the dtype to which q, k and v are cast in place of autocast's; gates and
            states are then float32. None means autocast's.
        kernel_backend: as in `mlstm`.

    Returns:
        ``(h, (c, n, m))``: h ``(B, N, S, V)``, a view of a sequence-major array, and the state after the last step in
        the accumulation dtype.

    Raises:
        TypeError, ValueError: as in `mlstm`; a part of the state is missing, or m is not ``(B, N, 1)``.
    """
    check_inputs(function, q, k, v, i, f)
    if autocast_kernel_dtype is not None:
        check_dtype(function, "autocast_kernel_dtype", autocast_kernel_dtype)
    context = contextlib.nullcontext()
    if autocast_kernel_dtype is not None and autocast_dtype(q) is not None:
        q, k, v = (cast(x, autocast_kernel_dtype) for x in (q, k, v))
        i, f = (cast(x, torch.float32) for x in (i, f))
        context = torch.autocast(q.device.type, enabled=False)
    initial = None if all(part is None for part in state) else _sequence_major(function, state, v.dtype)
    with context:
        h, (C, n, m) = mlstm(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            i.transpose(1, 2),
            f.transpose(1, 2),
            initial_state=initial,
            return_state=True,
            chunk_size=chunk_size,
            eps=eps,
            kernel_backend=kernel_backend,
        )
    return h.transpose(1, 2), (C, n, m.unsqueeze(-1))


def run_step(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: tuple[Tensor | None, Tensor | None, Tensor | None],
    *,
    eps: float,
    dtype_state: torch.dtype,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, HeadFirstState]:
    """`mlstm_step` with gates and m of shape ``(B, N, 1)``.

    Args:
        function: its name in messages.
        q: ``(B, N, K)``.
        k: same shape as `q`.
        v: ``(B, N, V)``.
        i: ``(B, N, 1)``.
        f: same shape as `i`.
        state: as in `run_sequences`, none of it None.
        eps: added to the normaliser.
        dtype_state: the dtype of the returned state. The step itself is computed in the accumulation dtype.
        kernel_backend: as in `mlstm_step`.

    Returns:
        ``(h, (c, n, m))``: h ``(B, N, V)``, and the state after the step in `dtype_state`.

    Raises:
        TypeError, ValueError: as in `mlstm_step`; i, f or m is not ``(B, N, 1)``.
    """
    # Ranks are checked by `mlstm_step`, except those of gates.
    _check_arrays(function, q=q, k=k, v=v, i=i, f=f)
    check_dtype(function, "dtype_state", dtype_state)
    if i.shape[2:] != (1,) or f.shape[2:] != (1,):
        name, gate = ("f", f) if i.shape[2:] == (1,) else ("i", i)
        _refuse(function, name, describe(gate), "[B, N, 1]")
    initial = _sequence_major(function, state, v.dtype)
    h, (C, n, m) = mlstm_step(q, k, v, i.squeeze(-1), f.squeeze(-1), initial, eps=eps, kernel_backend=kernel_backend)
    m = m.unsqueeze(-1)
    return h, (C, n, m) if C.dtype is dtype_state else (C.to(dtype_state), n.to(dtype_state), m.to(dtype_state))


def _sequence_major(
    function: str, state: tuple[Tensor | None, Tensor | None, Tensor | None], dtype: torch.dtype
) -> MLSTMState:
    """The state as `mlstm` takes it; a narrower dtype is widened, which is exact."""
    c, n, m = state
    if c is None or n is None or m is None:
        name = next(name for name, part in zip("cnm", state, strict=True) if part is None)
        _refuse(function, name, "None", "an array: a state needs all of its arrays")
    _check_arrays(function, c=c, n=n, m=m)
    for name, part in (("c", c), ("n", n), ("m", m)):
        if not part.is_floating_point():
            raise TypeError(f"{function}: `{name}` is {describe(part)}; expected a floating-point tensor")
    if m.shape[2:] != (1,):
        _refuse(function, "m", describe(m), "[B, N, 1]")
    wide = ACCUMULATION.get(dtype, torch.float32)
    m = m.squeeze(-1)
    if c.dtype is not wide or n.dtype is not wide or m.dtype is not wide:
        c, n, m = (part.to(wide) if torch.promote_types(part.dtype, wide) is wide else part for part in (c, n, m))
    return MLSTMState(c, n, m)


def check_inputs(function: str, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> None:
    """Raise unless all are tensors, q, k and v with four axes, i and f with three."""
    _check_arrays(function, q=q, k=k, v=v, i=i, f=f)
    for name, array in (("q", q), ("k", k), ("v", v), ("i", i), ("f", f)):
        axes = "[B, N, S]" if name in "if" else "[B, N, S, ·]"
        if array.ndim != axes.count(",") + 1:
            _refuse(function, name, describe(array), axes)


def check_dtype(function: str, argument: str, dtype: object) -> None:
    """Raise for anything but a floating-point dtype."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        got = str(dtype) if isinstance(dtype, torch.dtype) else describe(dtype)
        raise TypeError(f"{function}: `{argument}` is {got}; expected a floating-point torch.dtype")


def _check_arrays(function: str, **arrays: Tensor) -> None:
    for name, array in arrays.items():
        if not isinstance(array, Tensor):
            received = f"a {type(array).__module__.partition('.')[0]}.{type(array).__name__}"
            got = received if hasattr(array, "shape") else describe(array)
            raise TypeError(f"{function}: `{name}` is {got}; expected a torch.Tensor")


def _refuse(function: str, argument: str, got: str, expected: str) -> NoReturn:
    raise ValueError(f"{function}: `{argument}` is {got}; expected {expected}")
