"""The moving average: `ema`. What it shares with every recurrence is in `_recurrence_laws`."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance import cases
from conformance.cases import EMACase
from conformance.checker import Checker
from conformance.laws import _recurrence_laws, law
from conformance.laws._answers import check_gradient, check_value
from conformance.laws._refusals import BadCall, register, reshaped, with_arrays
from conformance.operations.ema import EMA

law(
    "ema",
    "Outputs and final state are the recurrence's.",
    "y_t = a·y_{t−1} + (1 − a)·x_t",
    name="value",
    kind="definition",
    cases=cases.ema,
    forward=True,
    quick=True,
)(partial(check_value, EMA))

law(
    "ema",
    "The gradient is exact for every argument.",
    "dx_t = (1 − a)·g_t, da = Σ g_t·(y_{t−1} − x_t)",
    name="gradient",
    kind="definition",
    cases=cases.ema,
    gradient="ema",
    quick=True,
)(partial(check_gradient, EMA))


_recurrence_laws.register(EMA, cases.ema)


@law(
    "ema",
    "The average of a constant that it starts from is that constant.",
    "x = c, y_0 = c ⇒ y = c",
    name="constant",
    kind="definition",
    cases=lambda plan: cases.ema(plan, gates="ordinary"),
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    share=0.25,
)
def constant(checker: Checker, case: EMACase) -> None:
    arrays = replace(case, state=True).arrays(checker.dtype)
    given: dict[str, Any] = {n: replace(x, values=np.ones(x.shape)) for n, x in arrays.items()} | {
        "decay": arrays["decay"]
    }
    y = checker.call("ema", given)["y"]
    checker.close("y", y, np.ones(y.shape), np.full(y.shape, checker.precision(case.steps).growth), case.steps)


def _bad_calls() -> list[BadCall]:
    def base() -> dict[str, Any]:
        return EMACase(2, 3, 4, state=True).arrays("float32")

    return [
        with_arrays(base, "ema", "`x` of rank 2", x=reshaped(2, 3)),
        with_arrays(base, "ema", "`decay` of another N", decay=reshaped(3)),
        with_arrays(base, "ema", "a state of another B", initial=reshaped(1, 4)),
    ]


register("ema", _bad_calls)
