"""Decay matrices."""
