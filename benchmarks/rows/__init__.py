"""The contenders: our own functions, the public ones of `benchmarks.peers`, and the yardsticks of goals."""
