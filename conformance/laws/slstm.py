"""The sLSTM: `slstm`, and one step of it, `slstm_step`. Laws of all recurrences follow from their records."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.cases import Limits, SLSTMCase
from conformance.laws import EVERY, FEW, SHORT, SINGLE, SMALL, UP_TO_BFLOAT16, WIDE, law
from conformance.laws._answers import check_gradient, check_value
from conformance.laws.checker import Checker
from conformance.operations.slstm import SLSTM, SLSTM_STEP

_LOW = -40.0
"""An input gate below the sum of all log forget gates of the steps before it."""


@law("slstm", "definition", cases=cases.some_without_states(cases.slstm), usual=FEW, forward=True, quick=True)
def value(checker: Checker, case: SLSTMCase) -> None:
    """Outputs and final state are the recurrence's, and no element depends on the memory of another but through h.

    m_t = max(a_t + m_{t−1}, u_i), c_t = e^{a_t+m_{t−1}−m_t} c_{t−1} + e^{u_i−m_t} tanh(u_z), h_t = σ(u_o) c_t/n_t
    """
    check_value(SLSTM, checker, case)


@law(
    "slstm",
    "definition",
    cases=cases.some_without_states(lambda limits: cases.slstm(limits, **{cases.CLIPPING: None})),
    usual=EVERY,
    gradient="slstm",
    quick=True,
)
def gradient(checker: Checker, case: SLSTMCase) -> None:
    """The gradient is exact for every argument, initial states and final-state cotangents included.

    dx = Σ_out ⟨d_out, ∂out/∂x⟩ for every argument x, and out in h, c_T, n_T, m_T, h_T
    """
    check_gradient(SLSTM, checker, case)


def _clipped(limits: Limits) -> st.SearchStrategy:
    """Dense and packed cases if a new shape is cheap, else one row."""
    if not limits.eager:
        return cases.slstm(limits, with_gradient_clipping=0.5).filter(lambda case: case.forget_gate is None)
    either = st.one_of(cases.slstm(limits), cases.packed_slstm(limits))
    return st.builds(
        lambda case, bound: replace(case, with_gradient_clipping=bound), either, st.sampled_from((0.1, -0.5, 2.0))
    )


@law(
    "slstm",
    "contract",
    cases=_clipped,
    dtypes=UP_TO_BFLOAT16,
    compiled_dtypes=SINGLE,
    strata=SHORT,
    gradient="slstm",
    share=0.75,
)
def clipping(checker: Checker, case: SLSTMCase) -> None:
    """gradient_clipping=c clips the gradient that reaches h from the step after it, elementwise to ±|c|, before the
    gradient of that step's output is added; those of c, n, m and of the initial state are not clipped.

    dh_t = clip(from step t+1, ±|c|) + cotangent of h_t
    """
    check_gradient(SLSTM, checker, case)


@law(
    "slstm",
    "definition",
    cases=cases.some_without_states(cases.packed_slstm),
    usual=FEW,
    dtypes=UP_TO_BFLOAT16,
    compiled_dtypes=SINGLE,
    forward=True,
)
def packed(checker: Checker, case: SLSTMCase) -> None:
    """A packed call gives the same results as a loop over its sequences; an empty sequence returns its initial state.

    slstm(x, cu_seqlens)[b] = slstm(x[cu_b:cu_{b+1}])
    """
    check_value(SLSTM, checker, case)


@law(
    "slstm",
    "contract",
    cases=lambda limits: cases.slstm(limits).filter(lambda case: case.state != "none"),
    compiled_dtypes=SINGLE,
    dtypes=WIDE,
    gradient="slstm",
    subject=("final state", "state cotangents"),
    share=0.25,
)
def ties(checker: Checker, case: SLSTMCase) -> None:
    """The gradient of a stabiliser that the carried memory and a write both attain, exactly, goes to the carried one.

    W = 0, a_t = 0, u_i = m_0 ⇒ dm_0 = dm_T, du_i = 0; da_t = dm_T
    """
    call = SLSTM.call_of(replace(case, state="random", return_state=True), checker.dtype)
    arrays, cotangents = call.arrays, call.cotangents
    fixed = dict.fromkeys(SLSTM.weights, 0.0) | {"i": 1.0, "m0": 1.0, "f": 0.0 if case.exponential else np.inf}
    call = call.with_arrays(**{n: replace(arrays[n], values=np.full(arrays[n].shape, x)) for n, x in fixed.items()})
    only_m = {name: replace(d, values=0 * d.values) if name != "m" else d for name, d in cotangents.items()}
    _, gradients = checker.vjp(replace(call, cotangents=only_m))
    dm = only_m["m"].values
    da = np.broadcast_to(dm[:, None], arrays["f"].shape) if case.exponential else np.zeros(arrays["f"].shape)
    for name, expected in (("i", np.zeros(arrays["i"].shape)), ("f", da), ("m0", dm)):
        slack = checker.precision(case.steps).growth * np.abs(expected)
        checker.close(f"gradient of {name}", gradients[name], expected, slack, case.steps)


@law(
    "slstm",
    "definition",
    cases=lambda limits: cases.slstm(limits, gates="closed", held=0.0, state="empty").filter(lambda case: case.S > 0),
    compiled_dtypes=SINGLE,
    strata=SMALL,
    subject=("initial state", "final state", "input gates of -inf"),
    share=0.25,
)
def first_write(checker: Checker, case: SLSTMCase) -> None:
    """An element that nothing has written is empty until its first write, which attains m however low it is.

    c_0 = n_0 = 0, m_0 = −∞, u_{i,t} = −∞ for t < T ⇒ m_T = u_{i,T}, n_T = 1
    """
    call = SLSTM.call_of(replace(case, return_state=True), checker.dtype)
    given = call.arrays["i"]
    i, late = given.values.copy(), np.indices((case.N, case.H)).sum(axis=0) % 2 == 0
    i[..., late] = -np.inf
    i[:, -1, late] = _LOW
    call = call.with_arrays(i=replace(given, values=i))
    expected = oracle.slstm(oracle.values(call.arrays), call.options, checker.precision(case.steps))
    checker.agree(checker.call(call), expected, case.steps)


@law(
    "slstm",
    "behaviour",
    cases=lambda limits: cases.slstm(
        limits, gates="remembering", held=0.0, scale=1.0, **({"return_state": True} if limits.eager else {})
    ),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    subject=("final state",),
    share=0.25,
)
def accumulation(checker: Checker, case: SLSTMCase) -> None:
    """States are carried in the accumulation dtype: over many steps, 16-bit values lose no more than float32 values do.

    |c_T − c*_T| is a few float32 roundoffs for weights of 0
    """
    # Without weights there is no product whose operand could be rounded.
    call = SLSTM.call_of(case, checker.dtype)
    zero = {name: replace(call.arrays[name], values=0 * call.arrays[name].values) for name in SLSTM.weights}
    call = call.with_arrays(**zero)
    precise = replace(checker.precision(case.steps), dtype="float32")
    expected = oracle.slstm(oracle.values(call.arrays), call.options, precise)
    checker.agree(checker.call(call), expected, case.steps, only=tuple(SLSTM.states))


@law(
    "slstm_step",
    "definition",
    name="gradient",
    cases=SLSTM_STEP.cases["dense"],
    strata=SMALL,
    usual=FEW,
    gradient="slstm_step",
    quick=True,
)
def step_gradient(checker: Checker, case: SLSTMCase) -> None:
    """The gradient of a step is exact for every argument, the state included.

    dx = Σ_out ⟨d_out, ∂out/∂x⟩ with S = 1
    """
    outputs, gradients = check_gradient(SLSTM_STEP, checker, case)
    checker.expect_dtypes(outputs, gradients, SLSTM_STEP.call_of(case, checker.dtype).arrays, SLSTM_STEP.in_dtype)
