"""The layers that hold parameters or a configuration: `GRU` and `mLSTMBackendFwbw`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference
from conformance import cases, oracle
from conformance.base.dtypes import ROUNDOFF, Array, array
from conformance.cases import PINS, FwbwCase, Limits, MLSTMCase
from conformance.laws import SINGLE, SMALL, WIDE
from conformance.laws.checker import Checker, LawError
from tests.calls.layer import Layer
from tests.calls.layer_cases import COUNTS, LayerCase, layers
from tests.calls.layer_oracle import WEIGHTS, gru_layer
from tests.calls.refusals import BadUse, register_uses
from tests.calls.registry import law


def _named(outputs: list[Array], names: tuple[str, ...]) -> dict[str, Array]:
    if len(outputs) != len(names):
        raise LawError("", f"returned {len(outputs)} arrays, expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, outputs, strict=True))


@law("GRU", "definition", cases=layers, strata=SMALL, dtypes=WIDE, compiled_dtypes=SINGLE)
def value(checker: Checker, case: LayerCase) -> None:
    """The layer is projection, gru, projection, in value and in the gradient of its input, state and every parameter.

    output = gru(split(input·K + b), weights)·K′ + b′, in the order x, f, r
    """
    layer = checker.implementation.layer("GRU", case.settings(), case.seed)
    arrays, cotangents = case.arrays(checker.dtype), case.cotangents(checker.dtype)
    parameters = case.parameters("float64" if checker.upcasts else checker.dtype)
    options = {"reset_after": True} if case.reset_after else {}
    options |= {} if case.clipping is None else {"gradient_clipping": case.clipping}
    values = oracle.values({**parameters, **arrays})
    expected = gru_layer(values, case.heads[:3], oracle.values(cotangents), options, checker.precision(case.steps))
    if checker.implementation.lacks("layer gradient"):
        outputs = layer.call(parameters, arrays, {})
        checker.agree(_named(outputs, ("output", "state")), expected, case.steps, only=("output", "state"))
        return
    outputs, gradients = layer.vjp(parameters, arrays, {}, list(cotangents.values()))
    got = _named(outputs, ("output", "state")) | {f"gradient of {name}": x for name, x in gradients.items()}
    checker.agree(got, expected, case.steps)


@law(
    "GRU",
    "behaviour",
    rows=lambda: [
        LayerCase(1, 1, 3, 8, 5, (4, 1, 2, 2, 4, 1)),
        LayerCase(1, 1, 2, 8, 3, (1, 1, 1, 6, 2, 3), bias=False),
        LayerCase(1, 1, 3, 16, 5, (1, 1, 1, 4, 2, 4), reset_after=True),
    ],
)
def parameters(checker: Checker, case: LayerCase) -> None:
    """Every parameter has the shape that the head counts require; weights are drawn within ±H^−½, none is left unset,
    no two are alike, and another seed gives other weights.

    W ~ U(−H^−½, H^−½)
    """
    first, other = (checker.implementation.layer("GRU", case.settings(), seed).parameters for seed in (1, 2))
    shapes = {name: x.shape for name, x in first.items()}
    if shapes != case.shapes():
        raise LawError("parameters", f"are {shapes}, expected {case.shapes()}")
    bound = case.H**-0.5
    for name, x in first.items():
        if not np.isfinite(x.values).all():
            raise LawError(name, "holds elements that were never set")
        if name not in (*WEIGHTS.values(), "recurrent_bias"):
            continue
        largest = np.abs(x.values).max()
        if largest > bound * (1 + ROUNDOFF["float32"]):
            raise LawError(name, f"holds {largest}, beyond H^−½ = {bound:.4g}")
        # Of 64 or more uniform numbers one is beyond half the bound, and both signs occur, but for 1 case in 2^62.
        if x.values.max() < bound / 2 and x.values.min() > -bound / 2:
            raise LawError(name, f"reaches {largest:.4g} of a bound of {bound:.4g}")
        if np.unique(x.values).size < x.values.size // 2 or (x.values > 0).all() or (x.values < 0).all():
            raise LawError(name, "is not drawn at random")
        if np.array_equal(x.values, other[name].values):
            raise LawError(name, "is the same for another seed")


def _gru_bad_uses() -> list[BadUse]:
    good = LayerCase(2, 3, 5, 4, 6, (4, 1, 2, 2, 4, 1))
    sizes: list[tuple[str, dict[str, Any]]] = [
        *((f"{name} of {wrong!r}", {name: wrong}) for name in ("input_size", *COUNTS) for wrong in (0, 2.0)),
        ("a state head dim of -1", {"state_head_dim": -1}),
        ("an output size of None", {"output_size": None}),
        ("3 weight heads of 4", {"num_weight_heads": 3}),
        ("3 reset input heads of 4", {"num_reset_input_heads": 3}),
        ("1 for a bias", {"add_bias": 1}),
        ("1 for the form of the reset gate", {"reset_after": 1}),
        ("a word for the clipping", {"gradient_clipping": "1"}),
    ]
    inputs = (("an input of other features", (2, 3, 6)), ("an input without steps", (2, 5)))

    def made(changes: dict[str, Any], implementation: Any) -> Any:
        return implementation.layer("GRU", {**good.settings(), **changes}, 0)

    def called(shape: tuple[int, ...], implementation: Any) -> Any:
        layer = implementation.layer("GRU", good.settings(), 0)
        return layer.call(good.parameters("float32"), {"input": array(np.ones(shape), "float32")}, {})

    return [
        *(BadUse("GRU", label, partial(made, changes)) for label, changes in sizes),
        *(BadUse("GRU", label, partial(called, shape)) for label, shape in inputs),
    ]


register_uses(
    "GRU",
    "Invalid sizes and head counts, and inputs that do not fit the layer, raise the reference's error.",
    _gru_bad_uses,
)


def _fwbw_cases(limits: Limits) -> st.SearchStrategy:
    if limits.eager:
        return cases.fwbw(limits)
    inner = MLSTMCase(2, 5, 1, 3, 2, state="random", seed=1)
    only = FwbwCase(inner, 2, use_initial_state=True, stabilize_correctly=True, flat_gates=False)
    return st.just(only) if limits.pin in ("", PINS[limits.stratum][0]) else st.nothing()


@law("mLSTMBackendFwbw", "definition", cases=_fwbw_cases, strata=SMALL, dtypes=WIDE, compiled_dtypes=SINGLE, share=0.5)
def function(checker: Checker, case: FwbwCase) -> None:
    """The layer is the custom-gradient function, whether its configuration is the dataclass or its dict, and returns
    the final state if the configuration or the call asks for it.

    mLSTMBackendFwbw(config)(q, k, v, i, f, …) = mlstm_fwbw_custom_grad(config)(q, k, v, i, f, …)
    """
    config_class = checker.implementation.functions["mLSTMBackendFwbw"].config_class
    as_dict = case.config()
    told = replace(case, return_state=True)
    ways: list[tuple[Any, FwbwCase, dict[str, Any]]] = [(config_class(**as_dict), told, {"return_last_states": True})]
    if checker.implementation.eager:
        ways += [(as_dict, case, {}), (config_class(**as_dict), case, {})]
    for config, returned, options in ways:
        layer = checker.implementation.layer("mLSTMBackendFwbw", {"config": config}, 0)
        _agrees_with_function(checker, layer, returned, options)


def _agrees_with_function(checker: Checker, layer: Layer, case: FwbwCase, options: dict[str, Any]) -> None:
    arrays, cotangents = case.arrays(checker.dtype), case.cotangent_arrays(checker.dtype)
    given = {_ARGUMENTS.get(name, name): x for name, x in arrays.items()}
    values, precision, names = oracle.values(arrays), checker.precision(case.steps), tuple(cotangents)
    if checker.implementation.lacks("layer gradient"):
        outputs = layer.call({}, given, options)
    else:
        outputs, gradients = layer.vjp({}, given, options, list(cotangents.values()))
        of_arrays = {name: gradients[_ARGUMENTS.get(name, name)] for name in arrays}
        expected = oracle.fwbw_gradient(values, case.config(), oracle.values(cotangents), precision)
        checker.agree(of_arrays, expected, case.steps, of="gradient of ", only=tuple(arrays))
    checker.agree(_named(outputs, names), oracle.fwbw(values, case.config(), precision), case.steps, only=names)


_ARGUMENTS = {"C0": "c_initial", "n0": "n_initial", "m0": "m_initial"}


@law("mLSTMBackendFwbw", "contract", rows=lambda: [LayerCase(1, 1, 1, 1, 1, (1, 1, 1, 1, 1, 1))])
def configuration(checker: Checker, case: LayerCase) -> None:
    """The configuration has the contract's fields and defaults and copies those of a model's configuration with the
    same names; the layer says that heads may be mapped over.

    config = mLSTMBackendFwbwConfig()
    """
    layer = checker.implementation.functions["mLSTMBackendFwbw"]
    expected: Mapping[str, Any] = vars(reference.mLSTMBackendFwbwConfig())
    config = layer.config_class()
    if vars(config) != expected:
        raise LawError("config", f"is {vars(config)}, expected {dict(expected)}")
    config.assign_model_config_params(SimpleNamespace(chunk_size=7, keep_c=True, embedding_dim=3))
    if vars(config) != {**expected, "chunk_size": 7, "keep_c": True}:
        raise LawError("config", f"took {vars(config)} from a model's chunk_size=7 and keep_c=True")
    if layer(layer.config_class()).can_vmap_over_heads is not True:
        raise LawError("can_vmap_over_heads", "is not True")
