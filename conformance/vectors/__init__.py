"""Test vectors: what the oracle says, in files that any program can read, and the judge of its answers."""
