"""Bridges to other packages, imported only when asked for."""
