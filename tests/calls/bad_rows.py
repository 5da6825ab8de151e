"""Calls that must be refused, of each operation: a valid call with one change."""

from functools import partial
from typing import Any

import numpy as np

from conformance.base.dtypes import array
from conformance.cases import FwbwCase, MLSTMCase
from conformance.operations.fwbw import FWBW
from conformance.operations.gru import GRU, gru_case
from conformance.operations.mlstm import MLSTM, MLSTM_STEP
from tests.calls.refusals import (
    PACKINGS,
    BadCall,
    Rows,
    bad_arrays,
    bad_options,
    bad_values,
    integers,
    recast,
    register,
    reshaped,
)


def scan_calls(operation: str) -> list[BadCall]:
    rows = [("an integer array", recast("int32")), ("no axis", reshaped()), ("a list", [1.0, 2.0])]
    changes = [(label, {"x": x}) for label, x in rows]
    return bad_arrays(operation, lambda: {"x": array(np.ones((2, 3)), "float32")}, changes)


def decay_calls(operation: str) -> list[BadCall]:
    if operation == "causal_forget_matrix":
        rows: Rows = [
            ("an integer array", {"forget_gates": recast("int32")}),
            ("no axis", {"forget_gates": reshaped()}),
            ("a number", {"forget_gates": 1.0}),
        ]
        return bad_arrays(operation, lambda: {"forget_gates": array(-np.ones((2, 3)), "float32")}, rows)
    rows = [
        ("gates of different lengths", {"fgate": reshaped(2, 4, 1)}),
        ("gates of different batches", {"fgate": reshaped(3, 3, 1)}),
        ("an axis too few", {"igate": reshaped(3)}),
        ("a last axis that is not 1", {"igate": reshaped(2, 3, 2), "fgate": reshaped(2, 3, 2)}),
        ("mixed dtypes", {"fgate": recast("float64")}),
        ("an integer array", {"igate": recast("int32")}),
    ]
    return bad_arrays(operation, lambda: dict.fromkeys(("igate", "fgate"), array(np.ones((2, 3, 1)), "float32")), rows)


def mlstm_calls() -> list[BadCall]:
    base = partial(MLSTMCase(2, 3, 2, 4, 5).arrays, "float32")
    stateful = partial(MLSTMCase(2, 3, 2, 4, 5, state="random").arrays, "float32")
    packed = partial(MLSTMCase(2, 0, 2, 4, 5, lengths=(2, 4)).arrays, "float32")
    arrays = [
        ("`q` of rank 3", {"q": reshaped(2, 3, 4)}),
        ("`q` of rank 5", {"q": reshaped(1, 2, 3, 2, 4)}),
        ("a head dim of 0", {"q": reshaped(2, 3, 2, 0), "k": reshaped(2, 3, 2, 0)}),
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


def _step() -> dict[str, Any]:
    return MLSTM_STEP.one_step.at(MLSTMCase(2, 1, 2, 4, 5, state="random").arrays("float32"), 0)


def mlstm_step_calls() -> list[BadCall]:
    arrays = [
        ("`q` with a step axis", {"q": reshaped(2, 1, 2, 4)}),
        ("`k` of another K", {"k": reshaped(2, 2, 8)}),
        ("`v` of another B", {"v": reshaped(3, 2, 5)}),
        ("`i` of rank 3", {"i": reshaped(2, 2, 1)}),
        ("`f` of another N", {"f": reshaped(2, 3)}),
        ("`q` of integers", {"q": recast("int32")}),
        ("`v` in float64", {"v": recast("float64")}),
        ("a state without `m`", {"m0": None}),
        ("`C` of another K", {"C0": reshaped(2, 2, 5, 5)}),
        ("`n` in bfloat16", {"n0": recast("bfloat16")}),
    ]
    states = [("no state", {"state": None}), ("a pair for a state", {"state": (1, 2)})]
    return [
        *bad_arrays("mlstm_step", _step, arrays),
        *bad_values(MLSTM_STEP, _step),
        *bad_options("mlstm_step", _step, states),
    ]


def fwbw_calls() -> list[BadCall]:
    every = FwbwCase(MLSTMCase(2, 3, 1, 4, 5, state="random"), use_initial_state=True).arrays
    states = {"use_initial_state": True}

    def stateless() -> dict[str, Any]:
        return {name: x for name, x in every("float32").items() if name not in FWBW.state_arguments}

    given = {
        "C0": array(np.zeros((2, 4, 5)), "float32"),
        "n0": array(np.zeros((2, 4)), "float32"),
        "m0": array(np.zeros(2), "float32"),
    }
    arrays = [
        ("`q` of rank 2", {"q": reshaped(2, 4)}),
        ("`k` of another K", {"k": reshaped(2, 3, 8)}),
        ("`v` of another T", {"v": reshaped(2, 4, 5)}),
        ("`i` with a last axis of 2", {"i": reshaped(2, 3, 2)}),
        ("`f` of another B", {"f": reshaped(1, 3)}),
        ("`q` of integers", {"q": recast("int32")}),
        ("`k` in float64", {"k": recast("float64")}),
        ("a state that the configuration does not use", given),
    ]
    of_state = [
        ("a state without `n`", {"n0": None}),
        ("`C` of another V", {"C0": reshaped(2, 4, 4)}),
        ("`m` with a last axis of 1", {"m0": reshaped(2, 1)}),
        ("a state in float16", {"n0": recast("float16")}),
    ]
    configs = [
        ("a chunk size of 0", {"config": {"chunk_size": 0}}),
        ("a chunk size of 1.5", {"config": {"chunk_size": 1.5}}),
        ("a number for a switch", {"config": {"keep_G": 1}}),
        ("an unknown field", {"config": {"keep_g": True}}),
    ]
    return [
        *bad_arrays("mlstm_fwbw_custom_grad", stateless, arrays, {"config": {}}),
        *bad_arrays("mlstm_fwbw_custom_grad", partial(every, "float32"), of_state, {"config": states}),
        *bad_options("mlstm_fwbw_custom_grad", stateless, configs),
    ]


_HEADS = (4, 2, 1, 4, 2, 1)


def gru_calls() -> list[BadCall]:
    base = partial(gru_case(2, 3, 4, _HEADS).arrays, "float32")
    stateful = partial(gru_case(2, 3, 4, _HEADS, state=True).arrays, "float32")
    packed = partial(gru_case(2, 0, 4, _HEADS, lengths=(2, 4)).arrays, "float32")
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


for _operation in ("rev_cumsum", "rev_cumsum_off"):
    register(_operation, partial(scan_calls, _operation))
for _operation in ("causal_forget_matrix", "dtilde_matrix"):
    register(_operation, partial(decay_calls, _operation))
register("mlstm", mlstm_calls)
register("mlstm_step", mlstm_step_calls)
register("mlstm_fwbw_custom_grad", fwbw_calls, op="fwbw")
register("gru", gru_calls)
