"""The sLSTM: `slstm`. Laws of all recurrences follow from its record."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.cases import OPTION
from conformance.laws import SINGLE, SMALL, WIDE, law
from conformance.laws.checker import Checker
from conformance.operations.slstm import SLSTM

DENSE = SLSTM.cases["dense"]
_EMPTY = {"gates": "closed", "held": 0.0, "state": True, "empty": True}
_LOW = -40.0
"""An input gate below the sum of all log forget gates of the steps before it."""


@law(
    "slstm",
    "contract",
    cases=lambda limits: DENSE(limits).filter(lambda case: case.state),
    compiled_dtypes=SINGLE,
    dtypes=WIDE,
    gradient="slstm",
    subject=("final state", "state cotangents"),
    share=0.25,
)
def ties(checker: Checker, case: Any) -> None:
    """The gradient of a stabiliser that the carried memory and a write both attain, exactly, goes to the carried one.

    W = 0, a_t = 0, u_i = m_0 ⇒ dm_0 = dm_T, du_i = 0; da_t = dm_T
    """
    call = SLSTM.call_of(replace(case, empty=False), checker.dtype)
    exponential = getattr(case, f"{OPTION}forget_gate") == "exp"
    arrays, cotangents = call.arrays, call.cotangents
    fixed = dict.fromkeys(SLSTM.weights, 0.0) | {"i": 1.0, "m0": 1.0, "f": 0.0 if exponential else np.inf}
    call = call.with_arrays(**{n: replace(arrays[n], values=np.full(arrays[n].shape, x)) for n, x in fixed.items()})
    only_m = {name: replace(d, values=0 * d.values) if name != "m" else d for name, d in cotangents.items()}
    _, gradients = checker.vjp(replace(call, cotangents=only_m))
    dm = only_m["m"].values
    da = np.broadcast_to(dm[:, None], arrays["f"].shape) if exponential else np.zeros(arrays["f"].shape)
    for name, expected in (("i", np.zeros(arrays["i"].shape)), ("f", da), ("m0", dm)):
        slack = checker.precision(case.steps).growth * np.abs(expected)
        checker.close(f"gradient of {name}", gradients[name], expected, slack, case.steps)


@law(
    "slstm",
    "definition",
    cases=lambda limits: DENSE(limits, **_EMPTY).filter(lambda case: case.S > 0),
    compiled_dtypes=SINGLE,
    strata=SMALL,
    subject=("initial state", "final state", "input gates of -inf"),
    share=0.25,
)
def first_write(checker: Checker, case: Any) -> None:
    """An element that nothing has written is empty until its first write, which attains m however low it is.

    c_0 = n_0 = 0, m_0 = −∞, u_{i,t} = −∞ for t < T ⇒ m_T = u_{i,T}, n_T = 1
    """
    call = SLSTM.call_of(case, checker.dtype)
    given = call.arrays["i"]
    i, late = given.values.copy(), np.indices((case.N, case.H)).sum(axis=0) % 2 == 0
    i[..., late] = -np.inf
    i[:, -1, late] = _LOW
    call = call.with_arrays(i=replace(given, values=i))
    expected = SLSTM.value(oracle.values(call.arrays), call.options, checker.precision(case.steps))
    checker.agree(checker.call(call), expected, case.steps)


@law(
    "slstm",
    "behaviour",
    cases=lambda limits: DENSE(limits, gates="remembering", held=0.0, scale=1.0),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    subject=("final state",),
    share=0.25,
)
def accumulation(checker: Checker, case: Any) -> None:
    """States are carried in the accumulation dtype: over many steps, 16-bit values lose no more than float32 values do.

    |c_T − c*_T| is a few float32 roundoffs for weights of 0
    """
    # Without weights there is no product whose operand could be rounded.
    call = SLSTM.call_of(case, checker.dtype)
    zero = {name: replace(call.arrays[name], values=0 * call.arrays[name].values) for name in SLSTM.weights}
    call = call.with_arrays(**zero)
    precise = replace(checker.precision(case.steps), dtype="float32")
    expected = SLSTM.value(oracle.values(call.arrays), call.options, precise)
    checker.agree(checker.call(call), expected, case.steps, only=tuple(SLSTM.states))
