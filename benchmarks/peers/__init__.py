"""Public implementations, each behind an adapter that gives it gatespec's names: judged and timed by the same code.

An adapter imports its peer, its framework and `_adapter.py` next to it, and nothing else of gatespec, so that both can
go into a bug report. It raises `NotImplementedError` with the reason if the peer does not support a call.
"""
