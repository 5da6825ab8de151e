"""The public implementations of `benchmarks.peers`, judged by the suite: ``docs/peers.md``."""
