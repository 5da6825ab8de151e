"""The multi-head GRU: `gru`. Laws of all recurrences follow from its record."""

import importlib.util
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import oracle
from conformance.base.dtypes import Array
from conformance.cases import OPTION, USUAL, Limits
from conformance.laws import FEW, SHORT, SINGLE, UP_TO_BFLOAT16, WIDE, law
from conformance.laws._answers import (
    check_results,
    expected_gradient,
    expected_value,
    has_gradient,
)
from conformance.laws._gru_identities import agree, closed_form, expanded, grouped, initial, with_values
from conformance.laws._relations import alike, close, results_of
from conformance.laws.checker import Checker, LawError
from conformance.operations.gru import GRU
from conformance.tolerance.budget import Expected

DENSE, PACKED = GRU.cases["dense"], GRU.cases["packed"]


def _reset_after(limits: Limits) -> st.SearchStrategy:
    """Dense and packed cases if a new shape is cheap, else dense ones; some have a bias."""
    after = {f"{OPTION}reset_after": True}
    if not limits.eager and limits.stratum != USUAL:
        return DENSE(limits, **after)
    return st.one_of(DENSE(limits, **after), PACKED(limits, **after))


@law("gru", "definition", cases=_reset_after, usual=FEW, quick=True)
def reset_after(checker: Checker, case: Any) -> None:
    """reset_after=True applies the reset gate after the recurrent product, whose bias b is per unit; values, states and
    the gradient of every argument, b included, are exact.

    z = tanh(r⊙(hW + b) + x)
    """
    check_results(GRU, checker, case)


def _without_options(limits: Limits, **fixed: Any) -> st.SearchStrategy:
    # There is a state to keep: from zeros, many wrong computations give the right result.
    return GRU.cases["gradient"](limits, **fixed, **({"state": True} if limits.eager else {}))


@law("gru", "relation", cases=DENSE, share=0.5)
def grouped_heads(checker: Checker, case: Any) -> None:
    """Shared heads give the same results as repeated heads, and their gradient is the sum over the group.

    gru(x, W) = gru(repeat(x), repeat(W));  dW = Σ_group d repeat(W)
    """
    call = GRU.call_of(case, checker.dtype)
    arrays = call.arrays
    written_out = {
        name: replace(arrays[name], values=expanded(name, arrays[name].values, case.N))
        for name in GRU.head_axis
        if name in arrays
    }
    own, own_gradients = results_of(checker, call)
    outputs, gradients = results_of(checker, call.with_arrays(**written_out))
    alike(checker, outputs, own, expected_value(GRU, checker, case), case.steps)
    if gradients is None or own_gradients is None:
        return
    of_groups = expected_gradient(GRU, checker, case)
    for name in written_out:
        axis = GRU.head_axis[name]
        got, heads = gradients[name], arrays[name].shape[axis]
        summed = replace(got, values=grouped(name, got.values, heads))
        slack = of_groups.slack[name] + checker.precision(1).roundoff * grouped(name, np.abs(got.values), heads)
        where, of = f"gradient of {name}", of_groups.values[name]
        close(checker, where, summed, own_gradients[name], of, slack, case.steps, times=3)


@law("gru", "definition", cases=_without_options, strata=SHORT, dtypes=WIDE, share=0.25)
def fixed_point(checker: Checker, case: Any) -> None:
    """A forget gate of 1 keeps the state bit for bit, and the whole gradient goes to the earlier state: none reaches
    anything else.

    xf = +∞ ⇒ y_t = h_0, dh_0 = dh_T + Σ dy_t, all other gradients 0
    """
    call = with_values(case, checker.dtype, forget_input=np.inf)
    if not checker.contract:
        # 1 − f may be rounded, or z and h may be mixed as z + f·(h − z), which returns h except for rounding.
        agree(checker, call)
        return
    h0 = initial(case, call)
    kept = np.broadcast_to(h0[:, None], (case.B, case.S, case.N, case.H))

    def bit_by_bit(outputs: dict[str, Array]) -> None:
        if not np.array_equal(outputs["y"].values, kept) or not np.array_equal(outputs["state"].values, h0):
            raise LawError("y", "a state behind a forget gate of exactly 1 changed")

    bit_by_bit(checker.call(call))
    if not has_gradient(GRU, checker):
        return
    outputs, gradients = checker.vjp(call)
    bit_by_bit(outputs)
    for name in GRU.head_axis.keys() & gradients.keys():
        if np.abs(gradients[name].values).max(initial=0.0) > 0:
            raise LawError(f"gradient of {name}", "is not 0 behind forget gates of exactly 1")
    if case.state:
        dy, dstate = call.cotangents["y"].values, call.cotangents["state"].values
        slack = checker.precision(case.steps).growth * (np.abs(dy).sum(axis=1) + np.abs(dstate))
        got = gradients["input_state"]
        checker.close("gradient of input_state", got, dstate + dy.sum(axis=1), slack, case.steps)


@law("gru", "definition", cases=_without_options, strata=SHORT, dtypes=WIDE, share=0.25)
def candidate(checker: Checker, case: Any) -> None:
    """With a forget gate of 0 the new state is the candidate, and the previous state has no gradient.

    xf = −∞, W = 0 ⇒ y_t = tanh(x_t), dx_t = (1 − y_t²) dy_t, dh_0 = 0
    """
    call = with_values(case, checker.dtype, forget_input=-np.inf, weight=0.0)
    x, cotangents = expanded("input", call.arrays["input"].values, case.N), call.cotangents
    last = np.tanh(x[:, -1]) if case.S else initial(case, call)
    values, precision = oracle.values(call.arrays), checker.precision(case.steps)
    expected = Expected({"y": np.tanh(x), "state": last}, GRU.value(values, {}, precision).slack)
    outputs, gradients = results_of(checker, call)
    checker.agree(outputs, expected, case.steps)
    if gradients is None:
        return
    slack = GRU.gradient(values, {}, oracle.values(cotangents), precision).slack
    if case.state and case.S:
        of_state, where = gradients["input_state"], "gradient of input_state"
        if not checker.contract:
            checker.close(where, of_state, np.zeros(of_state.shape), slack["input_state"], case.steps)
        elif np.abs(of_state.values).max(initial=0.0) > 0:
            raise LawError(where, "is not 0 behind forget gates of exactly 0 and a weight of 0")
    through = cotangents["y"].values.copy()
    through[:, -1:] += cotangents["state"].values[:, None]
    exact = grouped("input", through * (1 - np.tanh(x) ** 2), call.arrays["input"].shape[-2])
    checker.close("gradient of input", gradients["input"], exact, slack["input"], case.steps)


@law(
    "gru", "definition", cases=_without_options, strata=SHORT, dtypes=UP_TO_BFLOAT16, compiled_dtypes=SINGLE, share=0.25
)
def zero_weights(checker: Checker, case: Any) -> None:
    """With weights of 0 the recurrence is linear in the state, and value and gradient are those of its closed form.

    W = Wf = Wr = 0 ⇒ h_t = P[t,0] h_0 + Σ_j P[t,j] (1−f_j) tanh(x_j), P[t,j] = Π_{j<s≤t} f_s
    """
    call = with_values(case, checker.dtype, **dict.fromkeys(GRU.weights, 0.0))
    agree(checker, call, *closed_form(case, oracle.values(call.arrays), oracle.values(call.cotangents)))


@law(
    "gru",
    "definition",
    cases=lambda limits: _without_options(limits).filter(lambda case: case.gates != "extreme"),
    strata=SHORT,
    dtypes=WIDE,
    compiled_dtypes=SINGLE,
    share=0.25,
    skip=lambda implementation: (
        None if importlib.util.find_spec("torch") else "it compares with PyTorch's GRU, and PyTorch is not installed"
    ),
)
def torch_layer(checker: Checker, case: Any) -> None:
    """With a diagonal W each head is PyTorch's own GRU, whose update gate is the forget gate here.

    W = diag(w) ⇒ gru(x, W, …) = torch.nn.GRU(x; Wr, Wf, W)
    """
    layer: Any = importlib.import_module("conformance.frameworks.torch_gru")
    call, diagonal = GRU.call_of(case, checker.dtype), np.eye(case.H, dtype=bool)
    weight = call.arrays["weight"]
    call = call.with_arrays(weight=replace(weight, values=np.where(diagonal, weight.values, 0.0)))
    # r⊙(hW) and (r⊙h)W are one function of a diagonal W, and only there: the gradient off the diagonal is another's.
    known = layer.outputs_and_gradients(oracle.values(call.arrays), oracle.values(call.cotangents), case.N)
    agree(checker, call, *known, compared={"weight": diagonal})


@law(
    "gru",
    "behaviour",
    cases=partial(_without_options, scale=1.0),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    share=0.25,
)
def accumulation(checker: Checker, case: Any) -> None:
    """The state is carried in the accumulation dtype: over many steps, 16-bit values lose no more than float32 values
    do.

    W = 0, xf constant ⇒ h_T = fᵀh_0 + (1 − fᵀ) tanh(x), to a few float32 roundoffs
    """
    # Without weights there is no product whose operand could be rounded: only the carried state remains.
    call = with_values(case, checker.dtype, forget_input=4.0, **dict.fromkeys(GRU.weights, 0.0))
    expected = GRU.value(oracle.values(call.arrays), {}, replace(checker.precision(case.steps), dtype="float32"))
    checker.agree(checker.call(call), expected, case.steps, only=("state",))
