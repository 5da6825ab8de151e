"""The multi-head GRU: `gru`."""

import math
from dataclasses import replace
from typing import Any

from conformance.cases import LONG_STEPS, RecurrenceCase
from conformance.operations._record import BACKEND, MAX_SEQLEN, Option
from conformance.operations.stated import operation_of
from conformance.rows import correct, taped
from conformance.specification.recurrence import Specified, gate, state, value

CLIPPING = "gradient_clipping"
_GRU = operation_of(
    Specified(
        name="gru",
        arguments={
            "input": value("B S Nx H"),
            "weight": value("Nw H H"),
            "forget_input": gate("B S Nxf H"),
            "forget_weight": value("Nwf H H"),
            "reset_input": gate("B S Nxr H", keeps=False),
            "reset_weight": value("Nwr H H"),
            "input_state": state("B N H", final="state"),
            "recurrent_bias": value("Nw H", optional=True, only_with="reset_after"),
        },
        outputs={"y": "B S N H"},
        equation="r = σ(hWr + xr), f = σ(hWf + xf), z = tanh((r⊙h)W + x), h' = f⊙h + (1−f)⊙z",
        options={CLIPPING: (None, 0.1, -0.5, 2.0), "reset_after": (False, True)},
        rows=tuple(row for row in correct.ROWS if row.op == "gru"),
        of_gradient={CLIPPING: taped.CLIPPED["gru"]},
        apart=("reset_after",),
    ),
    never_0=("N",),
    options=(
        Option(name=CLIPPING, refused={"a word for the clipping": "1", "a clipping of NaN": math.nan}),
        Option(name="reset_after", default=False, refused={"a number for the form of the reset gate": 1}),
        MAX_SEQLEN,
        BACKEND,
    ),
)


def gru_case(B: int, S: int, H: int, heads: tuple[int, ...], **fields: Any) -> RecurrenceCase:
    """A case with these numbers of heads, in the order of the arguments: input, weight, forget input, …"""
    sizes = {"B": B, "S": S, "H": H, "N": max(heads)}
    assert _GRU.stated is not None
    return _GRU.stated.kind(**sizes, serves=tuple(max(heads) // each for each in heads), **fields)


def _clipped(bound: float, *sizes: Any, **fields: Any) -> RecurrenceCase:
    return gru_case(*sizes, **fields, with_gradient_clipping=bound)


_ONE, _TWO = (1,) * 6, (2,) * 6
_SHARED, _FEW_INPUTS, _FEW_WEIGHTS = (6, 3, 2, 1, 6, 2), (1, 4, 2, 4, 1, 2), (2, 1, 4, 1, 2, 4)
_VECTOR_CASES = (
    gru_case(2, 5, 3, _SHARED, state=True),
    gru_case(1, 1, 1, _ONE),
    _clipped(0.1, 1, 33, 2, _FEW_INPUTS, state=True),
    gru_case(3, 0, 2, _FEW_WEIGHTS, lengths=(4, 0, 13), state=True),
    gru_case(2, 7, 2, _TWO, gates="extreme", state=True),
    _clipped(0.1, 2, 0, 3, _TWO, state=True),
    gru_case(1, 31, 5, _ONE, gates="saturated", scale=2.0),
    _clipped(-0.5, 2, 13, 2, (3, 1, 1, 3, 3, 1), gates="closed", state=True),
    _clipped(0.5, 3, 0, 2, (1, 1, 1, 6, 1, 3), lengths=(0, 33, 1), gates="remembering"),
    gru_case(1, 65, 1, _TWO, gates="remembering", state=True, cotangents="one step"),
    gru_case(2, 7, 3, _FEW_INPUTS, gates="small", scale=0.01, state=True, cotangents="state only"),
    gru_case(1, LONG_STEPS, 2, (2, 1, 1, 2, 1, 1), gates="remembering", state=True),
    _clipped(0.5, 2, 7, 3, _SHARED, state=True, with_reset_after=True),
    gru_case(3, 0, 2, _FEW_WEIGHTS, lengths=(4, 0, 5), with_reset_after=True, left_out=("recurrent_bias",)),
)

GRU = replace(
    _GRU,
    rows=(
        gru_case(2, 5, 3, _SHARED, state=True, seed=5),
        gru_case(3, 0, 2, _FEW_INPUTS, lengths=(3, 0, 4), state=True, seed=6),
    ),
    vector_cases=_VECTOR_CASES,
)

RECORDS = (GRU,)
