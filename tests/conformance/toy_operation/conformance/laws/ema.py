"""The moving average: `ema`. Laws of all recurrences follow from its record."""

from dataclasses import replace

import numpy as np

from conformance.cases._ema import EMACase, ema
from conformance.laws import SHORT, WIDE, law
from conformance.laws._answers import check_gradient, check_value
from conformance.laws.checker import Checker
from conformance.operations.ema import EMA


@law("ema", "definition", cases=ema, forward=True, quick=True)
def value(checker: Checker, case: EMACase) -> None:
    """Outputs and final state are the recurrence's.

    y_t = σ(f_t)·y_{t−1} + σ(−f_t)·x_t
    """
    check_value(EMA, checker, case)


@law("ema", "definition", cases=ema, gradient="ema", quick=True)
def gradient(checker: Checker, case: EMACase) -> None:
    """The gradient is exact for every argument.

    dx_t = σ(−f_t)·g_t, df_t = σ(f_t)·σ(−f_t)·g_t·(y_{t−1} − x_t)
    """
    check_gradient(EMA, checker, case)


@law("ema", "definition", cases=lambda limits: ema(limits, gates="ordinary"), strata=SHORT, dtypes=WIDE, share=0.25)
def constant(checker: Checker, case: EMACase) -> None:
    """The average of a constant that it starts from is that constant.

    x = c, y_0 = c ⇒ y = c
    """
    call = EMA.call_of(replace(case, state=True), checker.dtype)
    given = {n: replace(x, values=np.ones(x.shape)) for n, x in call.arrays.items() if n != "f"}
    y = checker.call(call.with_arrays(**given))["y"]
    checker.close("y", y, np.ones(y.shape), np.full(y.shape, checker.precision(case.steps).growth), case.steps)
