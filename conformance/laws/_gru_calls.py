"""Calls of `gru` that must be refused."""

from typing import Any

import numpy as np

from conformance.cases import GRUCase
from conformance.dtypes import array
from conformance.laws._refusals import BadCall, integers, recast, reshaped, with_arrays, with_options


def _base() -> dict[str, Any]:
    return GRUCase(2, 3, 4, (4, 2, 1, 4, 2, 1)).arrays("float32")


def _stateful() -> dict[str, Any]:
    return GRUCase(2, 3, 4, (4, 2, 1, 4, 2, 1), state=True).arrays("float32")


def _packed() -> dict[str, Any]:
    return GRUCase(2, 0, 4, (4, 2, 1, 4, 2, 1), lengths=(2, 4)).arrays("float32")


def bad_calls() -> list[BadCall]:
    op = "gru"
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
    packings = [
        ("`cu_seqlens` that falls", integers(0, 5, 4, 6)),
        ("`cu_seqlens` that starts above 0", integers(1, 2, 6)),
        ("`cu_seqlens` that ends short", integers(0, 2, 5)),
        ("`cu_seqlens` that ends beyond", integers(0, 2, 7)),
        ("`cu_seqlens` of rank 2", integers([0, 2, 6])),
        ("empty `cu_seqlens`", integers()),
        ("floating `cu_seqlens`", array(np.array([0.0, 2.0, 6.0]), "float32")),
    ]
    options = [
        ("a word for the clipping", {"gradient_clipping": "1"}),
        ("a clipping of NaN", {"gradient_clipping": float("nan")}),
        ("`max_seqlen` without `cu_seqlens`", {"max_seqlen": 3}),
        ("an unknown kernel backend", {"kernel_backend": "no such backend"}),
        ("a number for a kernel backend", {"kernel_backend": 3}),
    ]
    return [
        *(with_arrays(_base, op, label, **changes) for label, changes in arrays),
        *(with_arrays(_stateful, op, label, **changes) for label, changes in states),
        *(with_arrays(_packed, op, label, cu_seqlens=packing) for label, packing in packings),
        with_arrays(_base, op, "`cu_seqlens` with dense arrays", cu_seqlens=integers(0, 3)),
        *(with_options(_base, op, label, **changes) for label, changes in options),
        with_options(_packed, op, "a `max_seqlen` that is too short", max_seqlen=3),
    ]
