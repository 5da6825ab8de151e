"""The contenders of an operation: our own functions, the public ones of `benchmarks.peers`, and the yardsticks."""
