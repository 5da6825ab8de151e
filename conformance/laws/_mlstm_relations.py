"""Laws about several calls of `mlstm`: its three forms, and its linearity in the values."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import cases, oracle
from conformance.base.dtypes import Array
from conformance.base.result_form import named
from conformance.cases import MLSTMCase
from conformance.laws._answers import expected_value
from conformance.laws._recurrence import Arrays, nothing_of, rounding_of
from conformance.laws._relations import alike, close, results_of
from conformance.laws.checker import Checker
from conformance.operations.mlstm import FORMS, MLSTM
from conformance.tolerance.budget import Expected
from reference.arguments import MLSTMState


def forms(checker: Checker, case: MLSTMCase) -> None:
    """The recurrent, the parallel and the chunkwise form are the same function.

    mlstm_recurrent(x) = mlstm_parallel(x) = mlstm_chunkwise(x)
    """
    expected, call = expected_value(MLSTM, checker, case), MLSTM.call_of(case, checker.dtype)
    own = checker.call(replace(call, options={"eps": case.eps} if case.eps else {}))
    for name in FORMS:
        options = {"chunk_size": case.chunk_size} if name == "mlstm_chunkwise" and case.chunk_size else {}
        function = checker.implementation.functions[name]

        def run(
            given: dict[str, Any], name: str = name, function: Any = function, options: dict[str, Any] = options
        ) -> dict[str, Any]:
            state = MLSTMState(given["C0"], given["n0"], given["m0"]) if "C0" in given else None
            result = function(*(given[name] for name in "qkvif"), initial_state=state, eps=case.eps, **options)
            return named(name, MLSTM.returns, result, checker.implementation.kind)

        results = checker.implementation.run((name, case.eps, repr(options)), run, call.arrays)
        alike(checker, results, own, expected, case.steps)


def linearity(checker: Checker, case: MLSTMCase) -> None:
    """h is linear in the values (and the memory of values, C₀), and so is its gradient with respect to every other
    argument.

    h(v + v′) = h(v) + h(v′),  dx(v + v′) = dx(v) + dx(v′) for x other than v, C₀
    """
    call, precision = MLSTM.call_of(case, checker.dtype), checker.precision(case.steps)
    arrays, rng = call.arrays, cases.generator(case.seed, 20)
    parts: list[Arrays] = []
    for _ in range(2):
        # Eighths, whose sums are exact in any dtype.
        shapes = {name: x.shape for name, x in arrays.items() if name in ("v", "C0")}
        parts.append({name: replace(arrays[name], values=rng.integers(-16, 17, at) / 8) for name, at in shapes.items()})
    parts.append({name: replace(x, values=x.values + parts[1][name].values) for name, x in parts[0].items()})
    dh = replace(case, cotangents="dense").cotangent_arrays(checker.dtype)["h"]
    cotangents = {**nothing_of(call.cotangents), "h": dh}
    given = [replace(call.with_arrays(**part), cotangents=cotangents) for part in parts]

    def additive(where: str, results: list[Array], name: str, expected: list[Expected]) -> None:
        slack = sum(each.slack[name] for each in expected) + rounding_of(*results[:2])
        own = replace(results[2], values=results[0].values + results[1].values)
        close(checker, where, results[2], own, expected[2].values[name], np.asarray(slack), case.steps, times=1)

    results = [results_of(checker, each) for each in given]
    expected = [oracle.mlstm(oracle.values(each.arrays), call.options, precision) for each in given]
    additive("h", [outputs["h"] for outputs, _ in results], "h", expected)
    gradients = [each for _, each in results if each is not None]
    of = oracle.values(cotangents)
    expected = [
        oracle.mlstm_gradient(oracle.values(each.arrays), call.options, of, precision) for each in given if gradients
    ]
    for name in MLSTM.differentiable(arrays) if gradients else ():
        if name not in ("v", "C0"):
            additive(f"gradient of {name}", [each[name] for each in gradients], name, expected)
