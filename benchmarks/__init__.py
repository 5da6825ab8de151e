"""``python -m benchmarks``: what is fast, by how much, beside which peers, how far from the machine's limits."""
