"""Calls of `mlstm` that must be refused."""

from functools import partial

from conformance.cases import MLSTMCase
from conformance.laws._refusals import (
    PACKINGS,
    BadCall,
    bad_arrays,
    bad_options,
    bad_values,
    degenerate,
    integers,
    recast,
    reshaped,
)
from conformance.operations.mlstm import MLSTM


def bad_calls() -> list[BadCall]:
    base = partial(MLSTMCase(2, 3, 2, 4, 5).arrays, "float32")
    stateful = partial(MLSTMCase(2, 3, 2, 4, 5, state="random").arrays, "float32")
    packed = partial(MLSTMCase(2, 0, 2, 4, 5, lengths=(2, 4)).arrays, "float32")
    arrays = [
        ("`q` of rank 3", {"q": reshaped(2, 3, 4)}),
        ("`q` of rank 5", {"q": reshaped(1, 2, 3, 2, 4)}),
        ("a head dim of 0", {"q": degenerate(2, 3, 2, 0), "k": degenerate(2, 3, 2, 0)}),
        ("`k` of another K", {"k": reshaped(2, 3, 2, 8)}),
        ("`k` of another S", {"k": reshaped(2, 4, 2, 4)}),
        ("`v` of another N", {"v": reshaped(2, 3, 1, 5)}),
        ("`v` of rank 3", {"v": reshaped(2, 3, 5)}),
        ("`i` with a last axis of 1", {"i": reshaped(2, 3, 2, 1)}),
        ("`f` of another B", {"f": reshaped(1, 3, 2)}),
        ("`q` of integers", {"q": recast("int32")}),
        ("`f` of integers", {"f": recast("int32")}),
        ("`k` in float64", {"k": recast("float64")}),
        ("`v` in float16", {"v": recast("float16")}),
        ("gates in float64", {"i": recast("float64"), "f": recast("float64")}),
        ("one gate in float16", {"i": recast("float16")}),
        ("a list for `v`", {"v": [1.0]}),
        ("None for `k`", {"k": None}),
    ]
    states = [
        ("a state without `n`", {"n0": None}),
        ("a state without `C`", {"C0": None}),
        ("`C` of another V", {"C0": reshaped(2, 2, 4, 4)}),
        ("`C` transposed", {"C0": reshaped(2, 2, 5, 4)}),
        ("`n` of another K", {"n0": reshaped(2, 2, 5)}),
        ("`m` of another B", {"m0": reshaped(3, 2)}),
        ("`m` with a last axis of 1", {"m0": reshaped(2, 2, 1)}),
        ("a state in float16", {"C0": recast("float16")}),
        ("an integer `m`", {"m0": recast("int32")}),
    ]
    packings = [
        *PACKINGS[:2],
        ("`cu_seqlens` that starts below 0", {"cu_seqlens": integers(-1, 2, 6)}),
        *PACKINGS[2:5],
        ("`cu_seqlens` of rank 0", {"cu_seqlens": integers(6)}),
        *PACKINGS[5:],
        ("a list for `cu_seqlens`", {"cu_seqlens": [0, 2, 6]}),
        ("packed `k` of another T", {"k": reshaped(5, 2, 4)}),
    ]
    other_states = [
        ("a pair for a state", {"initial_state": (1, 2)}),
        ("a number for a state", {"initial_state": 1.0}),
        ("a word for a state", {"initial_state": "CNM"}),
    ]
    packed_options = [
        ("a `max_seqlen` that is too short", {"max_seqlen": 3}),
        ("a negative `max_seqlen`", {"max_seqlen": -1}),
        ("a `max_seqlen` of 4.0", {"max_seqlen": 4.0}),
    ]
    return [
        *bad_arrays("mlstm", base, arrays),
        *bad_arrays("mlstm", stateful, states),
        *bad_arrays("mlstm", packed, packings),
        *bad_arrays("mlstm", base, [("`cu_seqlens` with dense arrays", {"cu_seqlens": integers(0, 3)})]),
        *bad_values(MLSTM, base),
        *bad_options("mlstm", base, other_states),
        *bad_options("mlstm", packed, packed_options),
    ]
