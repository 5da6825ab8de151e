"""The launchers of the causal forget matrix and of D̃."""

import torch
from torch import Tensor

from torch_impl._scan.triton.launch import Rows
from torch_impl._triton.launch import Launch, launch, power_of_two

_TILE = 64
_HOW = Launch(8)
# Tiles of the matrix as long as they are wide spill under Triton 3.9, with four warps or eight.
_STEPS, _HOW_OF_MATRIX = 32, Launch(4)


def causal_forget_matrix(forget_gates: Tensor) -> Tensor:
    """F, ``(..., S, S)``, of log gates ``(..., S)``, in their dtype; summed in float32."""
    return _matrix(forget_gates, None)


def causal_forget_matrix_backward(dF: Tensor) -> Tensor:
    """The gradient of the log gates, ``(..., S)`` in float32, given that of F, ``(..., S, S)``."""
    return _sums(dF, False)[0]


def dtilde_matrix(igate: Tensor, fgate: Tensor) -> Tensor:
    """D̃, ``(..., S, S)``, of preactivations ``(..., S, 1)``, in their dtype; summed in float32."""
    return _matrix(fgate[..., 0], igate[..., 0])


def dtilde_matrix_backward(dD: Tensor, fgate: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of igate and fgate, ``(..., S, 1)`` in the dtype of fgate, by the special rule of D̃."""
    da, di = _sums(dD, True)
    df = da[..., None] * torch.sigmoid(-fgate.float())
    return di[..., None].to(fgate.dtype), df.to(fgate.dtype)


def _matrix(gates: Tensor, igates: Tensor | None) -> Tensor:
    from torch_impl._decay.triton import kernels

    S = gates.shape[-1]
    F = gates.new_empty((*gates.shape, S))
    rows = Rows.of(gates, 1)
    if F.numel():
        inputs = rows if igates is None else Rows.of(igates, 1)
        tile = power_of_two(S, most=_TILE)
        launch(kernels.decay, rows.count * -(-S // tile), F.device, _HOW_OF_MATRIX,
               gates=rows.x, gate_sizes=rows.sizes, gate_strides=rows.strides, gate_step=rows.x.stride(-1),
               igates=inputs.x, igate_sizes=inputs.sizes, igate_strides=inputs.strides,
               igate_step=inputs.x.stride(-1), F=F, S=S, TILDE=igates is not None,
               BLOCK_T=min(tile, _STEPS), BLOCK_J=tile)  # fmt: skip
    return F


def _sums(dF: Tensor, tilde: bool) -> tuple[Tensor, Tensor]:
    from torch_impl._decay.triton import kernels

    S, rows = dF.shape[-1], Rows.of(dF, 2)
    tile = power_of_two(S, most=_TILE)
    tiles = -(-S // tile)
    da, di = (dF.new_empty((rows.count, tiles, S), dtype=torch.float32) for _ in range(2))
    if dF.numel():
        launch(kernels.decay_backward, rows.count * tiles, dF.device, _HOW,
               dF=rows.x, sizes=rows.sizes, strides=rows.strides, step_t=rows.x.stride(-2),
               step_j=rows.x.stride(-1), da=da, di=di, S=S, TILDE=tilde, BLOCK_T=tile, BLOCK_J=tile)  # fmt: skip
    return da.sum(1).view(dF.shape[:-1]), di.sum(1).view(dF.shape[:-1]) if tilde else di
