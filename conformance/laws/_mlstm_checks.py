"""Identities of the mLSTM that hold independently of the oracle: checks of the laws in `mlstm`."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import cases, oracle
from conformance.budget import Expected
from conformance.cases import MLSTMCase
from conformance.checker import Checker, LawError
from conformance.dtypes import Array, accumulation
from conformance.laws._answers import expected_gradient, expected_value
from conformance.laws._recurrence import Arrays, rounding_of
from conformance.laws._relations import alike, close, results_of_call
from conformance.operations.mlstm import FORMS, MLSTM
from reference.arguments import MLSTMState


def forms(checker: Checker, case: MLSTMCase) -> None:
    expected, arrays = expected_value(MLSTM, checker, case), case.arrays(checker.dtype)
    own = checker.call("mlstm", arrays, {"eps": case.eps} if case.eps else {})
    for name in FORMS:
        options = {"chunk_size": case.chunk_size} if name == "mlstm_chunkwise" and case.chunk_size else {}
        function = checker.implementation.functions[name]

        def run(given: dict[str, Any], function: Any = function, options: dict[str, Any] = options) -> dict[str, Any]:
            state = MLSTMState(given["C0"], given["n0"], given["m0"]) if "C0" in given else None
            h, last = function(*(given[name] for name in "qkvif"), initial_state=state, eps=case.eps, **options)
            return {"h": h, **dict(zip(MLSTM.states, last, strict=True))}

        results = checker.implementation.run((name, case.eps, repr(options)), run, arrays)
        alike(checker, results, own, expected, case.steps)


def linearity(checker: Checker, case: MLSTMCase) -> None:
    arrays, options, precision = case.arrays(checker.dtype), case.options(), checker.precision(case.steps)
    rng = cases.generator(case.seed, 20)
    parts: list[Arrays] = []
    for _ in range(2):
        # Eighths, whose sums are exact in any dtype.
        shapes = {name: x.shape for name, x in arrays.items() if name in ("v", "C0")}
        parts.append({name: replace(arrays[name], values=rng.integers(-16, 17, at) / 8) for name, at in shapes.items()})
    parts.append({name: replace(x, values=x.values + parts[1][name].values) for name, x in parts[0].items()})
    given = [{**arrays, **part} for part in parts]
    zero = {name: replace(x, values=0 * x.values) for name, x in case.cotangent_arrays(checker.dtype).items()}
    cotangents = {**zero, "h": replace(case, cotangents="dense").cotangent_arrays(checker.dtype)["h"]}

    def additive(where: str, results: list[Array], name: str, expected: list[Expected]) -> None:
        slack = sum(each.slack[name] for each in expected) + rounding_of(*results[:2])
        own = replace(results[2], values=results[0].values + results[1].values)
        close(checker, where, results[2], own, expected[2].values[name], np.asarray(slack), case.steps, times=1)

    if checker.implementation.no_gradient("mlstm") is not None:
        outputs, gradients = [checker.call("mlstm", each, options) for each in given], None
    else:
        pairs = [checker.vjp("mlstm", each, cotangents, options) for each in given]
        outputs, gradients = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    expected = [oracle.mlstm(oracle.values(each), options, precision) for each in given]
    additive("h", [each["h"] for each in outputs], "h", expected)
    if gradients is not None:
        of = oracle.values(cotangents)
        expected = [oracle.mlstm_gradient(oracle.values(each), options, of, precision) for each in given]
        for name in MLSTM.differentiable(arrays):
            if name not in ("v", "C0"):
                additive(f"gradient of {name}", [each[name] for each in gradients], name, expected)


def floor(checker: Checker, case: MLSTMCase) -> None:
    # The square of exp(m), which a quotient's gradient forms, stays within float32.
    _on_the_floor(checker, case, (-3.0, 0.0, 5.0, 20.0, 30.0))


def cap(checker: Checker, case: MLSTMCase) -> None:
    _on_the_floor(checker, case, (60.0, 66.0, 70.0, 75.0))


def gate_dtypes(checker: Checker, case: MLSTMCase) -> None:
    call = MLSTM.call_of(case, checker.dtype)
    outputs, gradients = results_of_call(MLSTM, checker, call)
    checker.agree(outputs, expected_value(MLSTM, checker, case), case.steps, only=tuple(call.cotangents))
    if gradients is None:
        return
    names = MLSTM.differentiable(call.arrays)
    of_gradient = expected_gradient(MLSTM, checker, case)
    checker.agree(gradients, of_gradient, case.steps, of="gradient of ", only=names)
    of_gates = {name: gradients[name] for name in "if"}
    checker.expect_dtypes({}, of_gates, call.arrays, ())


def _on_the_floor(checker: Checker, case: MLSTMCase, stabilisers: tuple[float, ...]) -> None:
    # Nothing is written and no normaliser is carried, so ν = 0 exactly, for any m.
    case = replace(case, state="random")
    arrays = dict(case.arrays(checker.dtype))
    rng = cases.generator(case.seed, 22)
    arrays["i"] = replace(arrays["i"], values=np.full(arrays["i"].shape, -np.inf))
    arrays["n0"] = replace(arrays["n0"], values=np.zeros(arrays["n0"].shape))
    arrays["m0"] = replace(arrays["m0"], values=rng.choice(stabilisers, arrays["m0"].shape))
    precision = checker.precision(case.steps)
    expected = oracle.mlstm(oracle.values(arrays), case.options(), precision)
    cotangents = case.cotangent_arrays(checker.dtype)
    checker.agree(checker.call("mlstm", arrays, case.options()), expected, case.steps, only=tuple(cotangents))
    if checker.implementation.no_gradient("mlstm") is None:
        _, gradients = checker.vjp("mlstm", arrays, cotangents, case.options())
        of_gradient = oracle.mlstm_gradient(oracle.values(arrays), case.options(), oracle.values(cotangents), precision)
        checker.agree(gradients, of_gradient, case.steps, of="gradient of ", only=MLSTM.differentiable(arrays))


def ties(checker: Checker, case: MLSTMCase) -> None:
    # log σ(+∞) = 0 and the input gates are small integers, so m is exact in any order of computation, and mostly tied.
    # Only zeros are written or carried, so the cotangent of m is all that is left, and its path is exact too.
    arrays, cotangents = dict(case.arrays(checker.dtype)), dict(case.cotangent_arrays(checker.dtype))
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
    _, gradients = checker.vjp("mlstm", arrays, cotangents, case.options())
    for name in MLSTM.differentiable(arrays):
        if name in expected and not np.array_equal(gradients[name].values, expected[name]):
            at = tuple(int(n) for n in np.argwhere(gradients[name].values != expected[name])[0])
            got, wanted = gradients[name].values[at], expected[name][at]
            raise LawError(f"gradient of {name}", f"at {list(at)} is {got}, expected exactly {wanted}")


def state_accumulation(checker: Checker, case: MLSTMCase) -> None:
    # Powers of two are exact operands in any dtype, so the rounding of operands does not affect the state.
    rng = cases.generator(case.seed, 21)
    arrays = dict(case.arrays(checker.dtype))
    for name in "kv":
        shape = arrays[name].shape
        arrays[name] = replace(arrays[name], values=2.0 ** rng.integers(-2, 2, shape) * rng.choice([-1.0, 1.0], shape))
    wide = accumulation(checker.dtype)
    precise = replace(checker.precision(case.steps), dtype=wide)
    expected = oracle.mlstm(oracle.values(arrays), case.options(), precise)
    got = checker.call("mlstm", arrays, case.options())
    checker.agree(got, expected, case.steps, only=tuple(MLSTM.states))
