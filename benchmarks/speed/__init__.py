"""Interleaved timing of every contender of a case, each compared with the oracle first."""
