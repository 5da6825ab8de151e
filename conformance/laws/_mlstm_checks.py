"""Checks of `mlstm`: its three forms, linearity in the values, the stabiliser m and the normaliser's floor."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import cases, oracle
from conformance.base.dtypes import Array
from conformance.base.result_form import named
from conformance.cases import MLSTMCase
from conformance.laws._answers import expected_value
from conformance.laws._relations import Arrays, alike, close, nothing_of, results_of, rounding_of
from conformance.laws.checker import Checker, LawError
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
        close(checker, where, results[2], own, expected[2].values[name], slack, case.steps, times=1)

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


def _on_the_floor(checker: Checker, case: MLSTMCase, stabilisers: tuple[float, ...]) -> None:
    # Nothing is written and no normaliser is carried, so ν = 0 exactly, for any m.
    call = MLSTM.call_of(replace(case, state="random"), checker.dtype)
    i, n0, m0 = (call.arrays[name] for name in ("i", "n0", "m0"))
    m = cases.generator(case.seed, 22).choice(stabilisers, m0.shape)
    call = call.with_arrays(
        i=replace(i, values=np.full(i.shape, -np.inf)),
        n0=replace(n0, values=np.zeros(n0.shape)),
        m0=replace(m0, values=m),
    )
    arrays, precision = oracle.values(call.arrays), checker.precision(call.steps)
    expected = oracle.mlstm(arrays, call.options, precision)
    checker.agree(checker.call(call), expected, call.steps, only=tuple(call.cotangents))
    if checker.implementation.no_gradient("mlstm") is None:
        _, gradients = checker.vjp(call)
        of_gradient = oracle.mlstm_gradient(arrays, call.options, oracle.values(call.cotangents), precision)
        checker.agree(gradients, of_gradient, call.steps, of="gradient of ", only=MLSTM.differentiable(arrays))


def floor(checker: Checker, case: MLSTMCase) -> None:
    # The square of exp(m), which a quotient's gradient forms, stays within float32.
    _on_the_floor(checker, case, (-3.0, 0.0, 5.0, 20.0, 30.0))


def cap(checker: Checker, case: MLSTMCase) -> None:
    """The normaliser's floor falls with m until m = 64 and no further; above that, m counts as a constant in it.

    n·q̂ = 0, m > 64 ⇒ h = Cᵀq̂ / exp(−64)
    """
    _on_the_floor(checker, case, (60.0, 66.0, 70.0, 75.0))


def ties(checker: Checker, case: MLSTMCase) -> None:
    # log σ(+∞) = 0 and the input gates are small integers, so m is exact in any order of computation, and mostly tied.
    # Only zeros are written or carried, so the cotangent of m is all that is left, and its path is exact too.
    call = MLSTM.call_of(case, checker.dtype)
    arrays, cotangents = dict(call.arrays), dict(call.cotangents)
    rng = cases.generator(case.seed, 23)
    for name in ("k", "v", "C0", "n0"):
        if name in arrays:
            arrays[name] = replace(arrays[name], values=0 * arrays[name].values)
    arrays["f"] = replace(arrays["f"], values=np.full(arrays["f"].shape, np.inf))
    for name in ("i", "m0"):
        if name in arrays:
            arrays[name] = replace(arrays[name], values=rng.integers(-2, 3, arrays[name].shape).astype(np.float64))
    dm = rng.choice([-2.0, -0.5, 1.0, 3.0], cotangents["m"].shape)
    cotangents["m"] = replace(cotangents["m"], values=dm)
    i = arrays["i"].values
    m0 = arrays["m0"].values if "m0" in arrays else np.zeros(dm.shape)
    before = np.maximum.accumulate(np.concatenate([m0[:, None], i], axis=1), axis=1)
    # Step j (0: m₀) is the last that raised m.
    raised = np.concatenate([np.ones((len(i), 1, *i.shape[2:]), dtype=bool), i > before[:, :-1]], axis=1)
    attained = raised.shape[1] - 1 - np.argmax(raised[:, ::-1], axis=1)
    reached = dm[:, None] * (np.arange(raised.shape[1])[:, None] == attained[:, None])
    expected = {"i": reached[:, 1:], "f": 0 * i, "m0": reached[:, 0]}
    _, gradients = checker.vjp(replace(call, arrays=arrays, cotangents=cotangents))
    for name in MLSTM.differentiable(arrays):
        if name in expected and not np.array_equal(gradients[name].values, expected[name]):
            at = tuple(int(n) for n in np.argwhere(gradients[name].values != expected[name])[0])
            got, wanted = gradients[name].values[at], expected[name][at]
            raise LawError(f"gradient of {name}", f"at {list(at)} is {got}, expected exactly {wanted}")
