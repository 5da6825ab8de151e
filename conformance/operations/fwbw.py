"""The fwbw interface to the mLSTM: `mlstm_fwbw_custom_grad`, and `fwbw_forward` and `fwbw_backward` called by hand."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.result_form import ArrayKind, expect_form, named
from conformance.cases import FwbwCase, Limits, MLSTMCase
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Backward, Option, Options, Output, Public


def _extremes(limits: Limits) -> st.SearchStrategy:
    return cases.fwbw(limits).map(lambda case: replace(case, inner=replace(case.inner, gates="extreme")))


_INNER = MLSTMCase(2, 5, 1, 3, 2, state="random", seed=4)


def _case(inner: MLSTMCase, chunk_size: int | None, *keep: str, **fields: bool) -> FwbwCase:
    return FwbwCase(inner, chunk_size, use_initial_state=inner.state != "none", keep=keep, **fields)


_VECTOR_CASES = (
    _case(MLSTMCase(2, 5, 1, 3, 2, state="random"), 2, "keep_gates", return_state=True, stabilize_correctly=True),
    _case(MLSTMCase(1, 1, 1, 1, 1), 512, "keep_gates"),
    _case(MLSTMCase(2, 7, 1, 3, 2, state="random"), 7, "keep_G", "keep_M", return_state=True, flat_gates=False),
    _case(MLSTMCase(1, 65, 1, 5, 3, gates="mixed"), 16, "keep_c", stabilize_correctly=True),
    _case(MLSTMCase(2, 7, 1, 2, 2, gates="extreme", state="random"), 3, stabilize_correctly=True, return_state=True),
    _case(MLSTMCase(2, 0, 1, 3, 2, state="random"), None, return_state=True, flat_gates=False),
    _case(MLSTMCase(2, 13, 1, 2, 3, gates="resets", state="random", wide_gates=True), 4, return_state=True),
    _case(MLSTMCase(1, 31, 1, 2, 2, gates="large m", state="random"), 8, return_state=True, stabilize_correctly=True),
    _case(MLSTMCase(1, cases.LONG_STEPS, 1, 2, 2, gates="remembering"), 64, "keep_gates", stabilize_correctly=True),
)

FWBW = Operation(
    name="mlstm_fwbw_custom_grad",
    about="fwbw",
    helpers=("mLSTMBackendFwbwConfig",),
    arguments=(
        Argument(name="q", shape="B T K"),
        Argument(name="k", shape="B T K"),
        Argument(name="v", shape="B T V"),
        Argument(name="i", shape="B T", role="gate"),
        Argument(name="f", shape="B T", role="gate"),
        Argument(name="C0", shape="B K V", role="state", optional=True, continues="C"),
        Argument(name="n0", shape="B K", role="state", optional=True, continues="n"),
        Argument(name="m0", shape="B", role="state", optional=True, continues="m"),
    ),
    outputs=(
        Output(name="h", shape="B T V", cotangent="dh"),
        Output(name="C", shape="B K V", role="state", cotangent="dc_last", log_scale="m"),
        Output(name="n", shape="B K", role="state", cotangent="dn_last", log_scale="m"),
        Output(name="m", shape="B", role="state", cotangent="dm_last"),
    ),
    returns=("h", ("C", "n", "m")),
    options=(Option(name="config"),),
    state_switch="return_state",
    switched_on=False,
    curried="config",
    backward=Backward(method="backward", in_order=True),
    cases={"dense": cases.fwbw},
    value=lambda arrays, options, precision: oracle.fwbw(arrays, options["config"], precision),
    gradient=lambda arrays, options, cotangents, precision: oracle.fwbw_gradient(
        arrays, options["config"], cotangents, precision
    ),
    immaterial={"chunk_size": None, "keep": ()},
    rows=(
        FwbwCase(_INNER, 2, return_state=True, use_initial_state=True, stabilize_correctly=True),
        FwbwCase(_INNER, 2, keep=("keep_G", "keep_M", "keep_c"), flat_gates=False),
    ),
    vector_cases=_VECTOR_CASES,
    never_0=("K",),
    extremes=_extremes,
    strata=("small", "chunk"),
)


def by_hand(
    functions: Mapping[str, Callable[..., Any]],
    arrays: Mapping[str, Any],
    options: Options,
    cotangents: Mapping,
    kind: ArrayKind,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """``fwbw_forward``, then ``fwbw_backward`` with its context: ``(outputs, gradients)``, no gradients of None."""
    config = options["config"]
    (q, k, v, i, f, *states), _ = FWBW.arguments_of(arrays, options, tuple)
    both = functions["fwbw_forward"](q, k, v, i, f, config, *states)
    fits = isinstance(both, tuple | list) and len(both) == 2
    expect_form("fwbw_forward", "(result, context for fwbw_backward)", fits, both, kind)
    result, context = both
    last = {str(output.cotangent): cotangents[output.name] for output in FWBW.outputs[1:] if output.name in cotangents}
    gradients = functions["fwbw_backward"](context, cotangents["h"], config, **last)
    fits = isinstance(gradients, tuple | list) and len(gradients) == len(FWBW.primals)
    expect_form("fwbw_backward", f"the gradients of ({', '.join(FWBW.primals)})", fits, gradients, kind)
    by_name = {name: x for name, x in zip(FWBW.primals, gradients, strict=True) if x is not None}
    return named("fwbw_forward", FWBW.result_of(options), result, kind), by_name


RECORDS = (FWBW, Public(name="fwbw_forward", about="fwbw"), Public(name="fwbw_backward", about="fwbw"))
