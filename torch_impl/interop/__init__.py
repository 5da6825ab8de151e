"""Bridges to other PyTorch packages and to checkpoints, and ``torch.nn.GRU``; imported only when asked for."""

from torch_impl.interop.torch_gru import GRU

__all__ = ["GRU"]
