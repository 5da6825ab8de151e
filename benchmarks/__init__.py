"""``python -m benchmarks``: speed of every operation, next to its peers and to the limits of the machine."""
