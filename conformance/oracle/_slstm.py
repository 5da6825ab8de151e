"""The sLSTM, with tolerances from the specification in which every operation is rounded at random."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import copied, differentiated, options_of, slack, written
from conformance.oracle._mlstm import rescaled
from conformance.rows import correct
from conformance.rows.row import changes
from conformance.tolerance.budget import Expected, Precision
from reference.arguments import SLSTMState

SPELLINGS = ((), *((row,) for row in correct.ROWS if row.op == "slstm"))
FORWARD = ((), *((row,) for row in correct.ROWS if row.op == "slstm" and not row.function.endswith("_backward")))
"""Spellings of the value: its gradient by the tape is right, too."""
STATES = ("c0", "n0", "m0", "h0")
OF_STATE = ("c", "n", "m", "last_h")
(CLIPPED,) = changes("""
    @ slstm _slstm.py slstm

    the gradient of h from the next step is clipped
    - h[t] = before.h
    + ...
    + before = before._replace(h=np.clip_gradient(before.h, gradient_clipping))
""")
"""For the tape, which would not clip it."""


def _arguments(arrays: Values) -> dict[str, Any]:
    """The arguments of a call of `slstm`, its state in one."""
    given = {name: x for name, x in arrays.items() if name not in STATES}
    state = SLSTMState(*(arrays[name] for name in STATES)) if "c0" in arrays else None
    return {**given, "initial_state": state}


@without_warnings
def slstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `slstm`, dense or packed. States are in the units of their own m."""
    given = {**_arguments(copied(arrays)), **options_of(reference.slstm, options)}

    def compute(specification: ModuleType) -> dict[str, Any]:
        h, state = specification.slstm(**given, return_state=True)
        return {"h": h, **dict(zip(OF_STATE, state, strict=True))}

    exact = compute(reference)

    def in_units(copies: Values) -> Values:
        return {**copies, **{name: rescaled(copies[name], copies["m"], exact["m"]) for name in "cn"}}

    ways = [written(compute, *rows) for rows in SPELLINGS]
    return Expected(exact, slack(exact, ways, precision, {}, in_units))


@without_warnings
def slstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `slstm`; that of the initial state only if one is given."""
    arrays, cotangents = copied(arrays), copied(cotangents)
    given = {**_arguments(arrays), **options_of(reference.slstm_backward, options), "dh": cotangents["h"]}

    def value(specification: ModuleType, arrays: Values) -> dict[str, Any]:
        h, state = specification.slstm(**_arguments(arrays), **options_of(reference.slstm, options), return_state=True)
        return {"h": h, **dict(zip(OF_STATE, state, strict=True))}

    if "last_h" in cotangents:
        given["dstate"] = SLSTMState(*(cotangents[name] for name in OF_STATE))

    def compute(specification: ModuleType) -> dict[str, Any]:
        found = specification.slstm_backward(**given)
        return found | dict(zip(STATES, found.pop("initial_state", ()), strict=False))

    exact = compute(reference)
    clipped = () if options.get("gradient_clipping") is None else (CLIPPED,)
    ways = [
        *(written(compute, *rows) for rows in SPELLINGS),
        *(differentiated(value, arrays, cotangents, (*clipped, *rows)) for rows in FORWARD),
    ]
    return Expected(exact, slack(exact, ways, precision, cotangents))
