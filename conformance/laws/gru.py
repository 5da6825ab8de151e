"""The multi-head GRU: `gru`. The laws that it shares with every recurrence are in `_recurrence_laws`."""

import importlib.util
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance import cases
from conformance.cases import Plan
from conformance.laws import _gru_checks as checks
from conformance.laws import _packing_laws, _recurrence_laws, law
from conformance.laws._answers import check_gradient, check_value
from conformance.laws._gru_calls import bad_calls
from conformance.laws._refusals import register as register_refusals
from conformance.operations.gru import GRU

STEP = "r = σ(hWr + xr), f = σ(hWf + xf), z = tanh((r⊙h)W + x), h' = f⊙h + (1−f)⊙z"


law(
    "gru",
    "Outputs and final state are the recurrence's, for any head counts.",
    STEP,
    name="value",
    kind="definition",
    cases=cases.gru,
    forward=True,
    quick=True,
)(partial(check_value, GRU))

law(
    "gru",
    "The gradient is exact for every argument, initial state and final-state cotangent included.",
    "dx = Σ_out ⟨d_out, ∂out/∂x⟩ for every argument x, and out in y, h_T",
    name="gradient",
    kind="definition",
    cases=lambda plan: cases.gru(plan, clipping=None),
    gradient="gru",
    quick=True,
)(partial(check_gradient, GRU))


def _clipped(plan: Plan) -> st.SearchStrategy:
    """Dense and packed cases if a new shape is cheap, else one row."""
    if not plan.eager:
        return cases.gru(plan, clipping=0.5).filter(lambda case: case.heads == cases.HEADS[0])
    bounds = st.sampled_from((0.1, -0.5, 2.0))
    either = st.one_of(cases.gru(plan), cases.packed_gru(plan))
    return st.builds(lambda case, bound: replace(case, clipping=bound), either, bounds)


law(
    "gru",
    "gradient_clipping=c clips the gradient that reaches a state from the step after it, elementwise to ±|c|, before "
    "the gradient of that step's output is added; that of the initial state is not clipped.",
    "dh_t = clip(from step t+1, ±|c|) + dy_t",
    name="clipping",
    kind="contract",
    cases=_clipped,
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    strata=("small", "chunk"),
    gradient="gru",
    share=0.75,
)(partial(check_gradient, GRU))


def _cuts(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        return _recurrence_laws.cut_anywhere(cases.gru(plan))
    # Halves have the shape of a row that other laws compile.
    whole = cases.gru(plan).filter(lambda case: case.heads == cases.HEADS[0])
    return whole.map(lambda case: replace(case, S=min(2 * case.S, plan.max_steps)))


def _unclipped(plan: Plan, **fixed: Any) -> st.SearchStrategy:
    if plan.eager:
        # There is a state to keep: from zeros, many wrong computations give the right result.
        return cases.gru(plan, **{"clipping": None, "state": True, **fixed})
    return cases.gru(plan, **fixed).filter(lambda case: not case.clipping)


_recurrence_laws.register(GRU, _cuts)

law(
    "gru",
    "A packed call gives the same results as a loop over its sequences; an empty sequence returns its initial state.",
    "gru(x, cu_seqlens)[b] = gru(x[cu_b:cu_{b+1}])",
    name="packed",
    kind="definition",
    cases=cases.packed_gru,
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    forward=True,
)(partial(check_value, GRU))

law(
    "gru",
    "The gradient of a packed call is that of a loop over its sequences.",
    "d gru(x, cu_seqlens)[b] = d gru(x[cu_b:cu_{b+1}])",
    name="packed_gradient",
    kind="definition",
    cases=lambda plan: cases.packed_gru(plan, clipping=None),
    dtypes=("float64", "float32", "bfloat16"),
    gradient="gru",
    share=0.75,
)(partial(check_gradient, GRU))

_packing_laws.register(GRU)

law(
    "gru",
    "Shared heads give the same results as repeated heads, and their gradient is the sum over the group.",
    "gru(x, W) = gru(repeat(x), repeat(W));  dW = Σ_group d repeat(W)",
    name="grouped_heads",
    kind="relation",
    cases=lambda plan: cases.gru(plan) if plan.eager else cases.gru(plan).filter(lambda case: case.S in (5, 65)),
    share=0.5,
)(checks.grouped_heads)

law(
    "gru",
    "A forget gate of 1 keeps the state bit for bit, and the whole gradient goes to the earlier state: none reaches "
    "anything else.",
    "xf = +∞ ⇒ y_t = h_0, dh_0 = dh_T + Σ dy_t, all other gradients 0",
    name="fixed_point",
    kind="definition",
    cases=_unclipped,
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    share=0.25,
)(checks.fixed_point)

law(
    "gru",
    "With a forget gate of 0 the new state is the candidate, and the previous state has no gradient.",
    "xf = −∞, W = 0 ⇒ y_t = tanh(x_t), dx_t = (1 − y_t²) dy_t, dh_0 = 0",
    name="candidate",
    kind="definition",
    cases=_unclipped,
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    share=0.25,
)(checks.candidate)

law(
    "gru",
    "With weights of 0 the recurrence is linear in the state, and value and gradient are those of its closed form.",
    "W = Wf = Wr = 0 ⇒ h_t = P[t,0] h_0 + Σ_j P[t,j] (1−f_j) tanh(x_j), P[t,j] = Π_{j<s≤t} f_s",
    name="zero_weights",
    kind="definition",
    cases=_unclipped,
    strata=("small", "chunk"),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    share=0.25,
)(checks.zero_weights)

law(
    "gru",
    "With a diagonal W each head is PyTorch's own GRU, whose update gate is the forget gate here.",
    "W = diag(w) ⇒ gru(x, W, …) = torch.nn.GRU(x; Wr, Wf, W)",
    name="torch_layer",
    kind="definition",
    cases=lambda plan: _unclipped(plan).filter(lambda case: case.gates != "extreme"),
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    compiled_dtypes=("float32",),
    share=0.25,
    skip=lambda implementation: (
        None if importlib.util.find_spec("torch") else "it compares with PyTorch's GRU, and PyTorch is not installed"
    ),
)(checks.torch_layer)

_packing_laws.register_max_seqlen(GRU)

register_refusals("gru", bad_calls)

law(
    "gru",
    "The state is carried in the accumulation dtype: over many steps, 16-bit values lose no more than float32 values "
    "do.",
    "W = 0, xf constant ⇒ h_T = fᵀh_0 + (1 − fᵀ) tanh(x), to a few float32 roundoffs",
    name="accumulation",
    kind="behaviour",
    cases=lambda plan: cases.gru(plan, scale=1.0, state=True, clipping=None) if plan.eager else cases.gru(plan),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    share=0.25,
)(checks.state_accumulation)
