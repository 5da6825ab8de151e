"""Calls of `gru` that must be refused."""

from functools import partial

from conformance.cases import GRUCase
from conformance.laws._refusals import (
    PACKINGS,
    BadCall,
    bad_arrays,
    bad_options,
    bad_values,
    integers,
    recast,
    reshaped,
)
from conformance.operations.gru import GRU

_HEADS = (4, 2, 1, 4, 2, 1)


def bad_calls() -> list[BadCall]:
    base = partial(GRUCase(2, 3, 4, _HEADS).arrays, "float32")
    stateful = partial(GRUCase(2, 3, 4, _HEADS, state=True).arrays, "float32")
    packed = partial(GRUCase(2, 0, 4, _HEADS, lengths=(2, 4)).arrays, "float32")
    arrays = [
        ("`input` of rank 3", {"input": reshaped(2, 3, 4)}),
        ("`weight` that is not square", {"weight": reshaped(2, 4, 5)}),
        ("`weight` of another H", {"weight": reshaped(2, 5, 5)}),
        ("`weight` of rank 2", {"weight": reshaped(4, 4)}),
        ("`forget_input` of another S", {"forget_input": reshaped(2, 4, 1, 4)}),
        ("`reset_input` of another B", {"reset_input": reshaped(1, 3, 2, 4)}),
        ("`forget_weight` of another H", {"forget_weight": reshaped(4, 3, 3)}),
        ("`reset_weight` with 3 heads of 4", {"reset_weight": reshaped(3, 4, 4)}),
        ("`input` with 3 heads of 4", {"input": reshaped(2, 3, 3, 4)}),
        ("`weight` with no heads", {"weight": reshaped(0, 4, 4)}),
        ("`input` of integers", {"input": recast("int32")}),
        ("`reset_weight` in float64", {"reset_weight": recast("float64")}),
        ("`forget_input` in float16", {"forget_input": recast("float16")}),
        ("None for `weight`", {"weight": None}),
    ]
    states = [
        ("a state of another N", {"input_state": reshaped(2, 2, 4)}),
        ("a state of another B", {"input_state": reshaped(1, 4, 4)}),
        ("a state of rank 2", {"input_state": reshaped(2, 16)}),
        ("a state in float16", {"input_state": recast("float16")}),
        ("a state of integers", {"input_state": recast("int32")}),
    ]
    return [
        *bad_arrays("gru", base, arrays),
        *bad_arrays("gru", stateful, states),
        *bad_arrays("gru", packed, PACKINGS),
        *bad_arrays("gru", base, [("`cu_seqlens` with dense arrays", {"cu_seqlens": integers(0, 3)})]),
        *bad_values(GRU, base),
        *bad_options("gru", packed, [("a `max_seqlen` that is too short", {"max_seqlen": 3})]),
    ]
