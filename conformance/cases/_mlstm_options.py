"""Calls of `mlstm` that return no final state or compute in chunks: options that some drawn cases are given."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from conformance.cases._limits import Limits
from conformance.cases._mlstm import MLSTMCase


def without_states(case: MLSTMCase) -> MLSTMCase:
    """The case without its final state; a pattern with cotangents of the state alone becomes one with all."""
    cotangents = "dense" if case.cotangents == "state only" else case.cotangents
    return replace(case, return_state=False, cotangents=cotangents)


def some_without_states(strategy: Callable[[Limits], st.SearchStrategy]) -> Callable[[Limits], st.SearchStrategy]:
    """The strategy with some cases that return no final state, if another option needs no compilation."""

    def drawn(limits: Limits) -> st.SearchStrategy:
        if limits.pin or not limits.eager:
            return strategy(limits)
        chosen = st.sampled_from((False, False, False, True))
        return st.builds(lambda case, bare: without_states(case) if bare else case, strategy(limits), chosen)

    return drawn


_CHUNK_SIZES = {"small": (2, 1, 3, 7, 64), "chunk": (16, 1, 2, 13, 32, 64, 128, 131), "long": (64, 100, 256)}
_LONGEST_CHUNKS = {"small": 8, "chunk": 140, "long": 1100}


def chunk_sizes(limits: Limits) -> st.SearchStrategy:
    """Chunk sizes that divide the number of steps or do not, and some above it."""
    usual = _CHUNK_SIZES[limits.stratum]
    return st.one_of(st.sampled_from(usual), st.integers(usual[0], _LONGEST_CHUNKS[limits.stratum]))


def some_in_chunks(strategy: Callable[[Limits], st.SearchStrategy]) -> Callable[[Limits], st.SearchStrategy]:
    """The strategy with a chunk size in two fifths of the cases, if another option needs no compilation.

    Many targets compute chunks by other code, which relations between two calls judge only in part.
    """

    def drawn(limits: Limits) -> st.SearchStrategy:
        if limits.pin or not limits.eager:
            return strategy(limits)
        chosen = st.sampled_from((False, False, False, True, True))

        def built(case: MLSTMCase, size: int, chunked: bool) -> MLSTMCase:
            return replace(case, chunk_size=size) if chunked else case

        return st.builds(built, strategy(limits), chunk_sizes(limits), chosen)

    return drawn
