"""Reverse cumulative sums."""
