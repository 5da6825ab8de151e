"""Bridges to checkpoints of other packages, imported only when asked for."""
