"""The sLSTM, with tolerances from the specification in which every operation is rounded at random."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import Compute, copied, differentiated, options_of, slack, written
from conformance.oracle._mlstm import rescaled
from conformance.rows import correct, taped
from conformance.specification.changed import Specification, changed
from conformance.tolerance.budget import Expected, Precision
from reference.arguments import SLSTMState

EXACT = Specification(reference, {})
SPELLINGS = ((), *((row,) for row in correct.ROWS if row.op == "slstm"))
FORWARD = ((), *((row,) for row in correct.ROWS if row.op == "slstm" and not row.function.endswith("_backward")))
"""Spellings of the value: its gradient by the tape is right, too."""
STATES = ("c0", "n0", "m0", "h0")
OF_STATE = ("c", "n", "m", "last_h")


def _arguments(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `slstm`, its state in one."""
    given = {name: x for name, x in arrays.items() if name not in STATES}
    state = SLSTMState(*(arrays[name] for name in STATES)) if "c0" in arrays else None
    return {**given, "initial_state": state}


@without_warnings
def slstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `slstm`, dense or packed. States are in the units of their own m."""
    arrays, compute = copied(arrays), _value(options)
    exact = compute(EXACT, arrays)

    def in_units(copies: Values) -> Values:
        return {**copies, **{name: rescaled(copies[name], copies["m"], exact["m"]) for name in "cn"}}

    ways = [written(compute, partial(changed, *rows), arrays) for rows in SPELLINGS]
    return Expected(exact, slack(exact, ways, precision, {}, in_units))


def _value(options: Mapping[str, Any]) -> Compute:
    more = {**options_of(reference.slstm, options), "return_state": True}

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        h, state = specification.function("slstm")(**_arguments(arrays), **more)
        return {"h": h, **dict(zip(OF_STATE, state, strict=True))}

    return compute


@without_warnings
def slstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `slstm`; that of the initial state only if one is given."""
    arrays, cotangents = copied(arrays), copied(cotangents)
    more = {**options_of(reference.slstm_backward, options), "dh": cotangents["h"]}
    if "last_h" in cotangents:
        more["dstate"] = SLSTMState(*(cotangents[name] for name in OF_STATE))

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        found = specification.function("slstm_backward")(**_arguments(arrays), **more)
        return found | dict(zip(STATES, found.pop("initial_state", ()), strict=False))

    exact = compute(EXACT, arrays)
    value, clipped = _value(options), () if options.get("gradient_clipping") is None else (taped.CLIPPED["slstm"],)
    ways = [
        *(written(compute, partial(changed, *rows), arrays) for rows in SPELLINGS),
        *(differentiated(value, partial(changed, *clipped, *rows), arrays, cotangents) for rows in FORWARD),
    ]
    return Expected(exact, slack(exact, ways, precision, cotangents))
