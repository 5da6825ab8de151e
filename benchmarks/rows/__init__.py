"""Who is measured: our own functions, the public ones of `benchmarks.peers`, and what goals are measured by."""
