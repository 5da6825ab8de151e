"""Bridges to other PyTorch packages and to checkpoints, imported only when asked for."""
