"""Public implementations, each behind an adapter that gives it gatespec's names: judged and timed by the same code.

An adapter imports its peer and its framework and nothing of gatespec, so that its source can go into a bug report. It
raises `NotImplementedError` with the reason if the peer does not support a call.
"""
