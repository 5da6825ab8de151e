"""Test vectors: the oracle's answers in files that any program can read, and the judge of a program's answers."""
