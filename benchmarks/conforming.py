"""The check, before anything is timed, that a contender computes the operation, by the suite's oracle and budgets.

A contender runs on a smaller case with the same head dims and dtype. Within its budgets, which for a peer's mLSTM are
those of any correct design, it *conforms*. Beyond them, but closer to the oracle than `SAME`, it is the same function
computed less accurately. Anything else is *wrong* and is not timed unless its row states beforehand how it differs.
"""

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function
from conformance import oracle
from conformance.base.dtypes import Array, rounded
from conformance.cases import GRUCase, MLSTMCase
from conformance.tolerance.budget import Expected, Precision, judge
from conformance.tolerance.designs import AnyDesign

SAME = {"float64": 1e-6, "float32": 1e-2, "bfloat16": 1e-1, "float16": 1e-1}
"""Largest error, over the largest element, of another way to compute the same; a wrong formula is off by order 1."""

STEPS = 130


@dataclass(frozen=True)
class Conformity:
    """The comparison of a contender with the oracle.

    Attributes:
        verdict: ``conforms``, ``same function`` or ``wrong``.
        worst: its largest error over the budget of that error.
        where: the array with that error.
        relative: its largest error over the largest element of the same array.
    """

    verdict: str
    worst: float
    where: str
    relative: float


def smaller(case: Case) -> Case:
    """The case for the check: the same head dims, a few sequences and heads, at most `STEPS` steps.

    The length is a multiple of 32 if possible, because some peers require that their chunk divides it.
    """
    steps = min(case.S, STEPS - STEPS % 32 if case.S >= 32 else case.S)
    return replace(case, B=min(case.B, 2), N=min(case.N, 2), S=steps)


def examined(contender: Contender, case: Case, function: Function, driver: object) -> Conformity:
    """Judge ``function``, which was loaded for ``case``; the case should come from `smaller`."""
    compare = {"mlstm": _mlstm, "mlstm_step": _step, "gru": _gru}[case.op]
    worst, where, relative = 0.0, "", 0.0
    for name, got, values, slack, precision in compare(contender, case, function, driver):
        ratio = judge(got, values, slack, precision).worst
        size = float(np.abs(values).max(initial=0.0)) or 1.0
        error = float(np.abs(got.values - values).max(initial=0.0)) / size if got.shape == values.shape else np.inf
        error = np.inf if np.isnan(error) else error
        if ratio >= worst:
            worst, where = ratio, name
        relative = max(relative, error)
    verdict = "conforms" if worst <= 1 else "same function" if relative <= SAME[case.dtype] else "wrong"
    return Conformity(verdict, worst, where, relative)


def _compared(case: Case, got: list, gradients: dict, value: Expected, gradient: Expected | None, outputs: tuple):
    precision = Precision(case.dtype, case.S)
    for name, y in zip(outputs, got, strict=True):
        yield name, Array(y, _dtype(name, case)), value.values[name], value.slack[name], precision
    if gradient is not None:
        for name, x in gradients.items():
            label = f"gradient of {name}"
            yield label, Array(x, case.dtype), gradient.values[name], gradient.slack[name], precision


def _dtype(name: str, case: Case) -> str:
    return "float32" if name in "Cnm" and case.dtype != "float64" else case.dtype


def _mlstm(contender: Contender, case: Case, function: Function, driver):
    drawn = MLSTMCase(case.B, case.S, case.N, case.K, case.V, gates="ordinary", eps=contender.eps)
    arrays = {name: x.values for name, x in drawn.arrays(case.dtype).items()}
    cotangents = {name: x.values for name, x in drawn.cotangent_arrays(case.dtype).items()}
    cotangents |= {name: 0 * cotangents[name] for name in "Cnm"}
    # A peer has the tolerance that the suite gives to strangers.
    precision = (Precision if contender.own else AnyDesign)(case.dtype, case.S)
    value = oracle.mlstm(arrays, drawn.options(), precision)
    gradient = None
    given = arrays
    if contender.head_first:
        given = {name: x.swapaxes(1, 2) for name, x in arrays.items()}
    dh = cotangents["h"].swapaxes(1, 2) if contender.head_first else cotangents["h"]
    both = case.direction == "both"
    got, gradients = driver.values(function, driver.natives(given), [dh] if both else None)
    if both:
        gradient = oracle.mlstm_gradient(arrays, drawn.options(), cotangents, precision)
    if contender.head_first:
        got = [y.swapaxes(1, 2) for y in got]
        gradients = {name: x.swapaxes(1, 2) for name, x in gradients.items()}
    return _compared(case, got, gradients, value, gradient, ("h",))


def _step(contender: Contender, case: Case, function: Function, driver):
    drawn = MLSTMCase(case.B, 1, case.N, case.K, case.V, state="random", eps=contender.eps)
    arrays = {name: x.values for name, x in drawn.arrays(case.dtype).items()}
    value = oracle.mlstm(arrays, drawn.options(), Precision(case.dtype, 1))
    given = {name: x[:, 0] for name, x in arrays.items() if name in "qkvif"}
    given |= {name: arrays[f"{name}0"] for name in "Cnm"}
    (h, C, n, m), _ = driver.values(function, driver.natives(given), None)
    same_units = {name: oracle.rescaled(part, m, value.values["m"]) for name, part in (("C", C), ("n", n))}
    got = [h[:, None], same_units["C"], same_units["n"], m]
    return _compared(case, got, {}, value, None, ("h", "C", "n", "m"))


def _gru(contender: Contender, case: Case, function: Function, driver):
    """Judge a GRU with the identity as its projections, so that their rounding does not count."""
    drawn = GRUCase(case.B, case.S, case.K, (case.N, case.N, case.N, case.N, case.N, case.N))
    arrays = {name: x.values for name, x in drawn.arrays(case.dtype).items()}
    shared = arrays["input"]
    arrays |= {"forget_input": shared, "reset_input": shared}
    eye = np.broadcast_to(np.eye(case.K), (case.N, case.K, case.K))
    if contender.reset_after:
        arrays["weight"] = arrays["weight"] * eye
    dy = rounded(drawn.cotangent_arrays(case.dtype)["y"].values, case.dtype)
    precision = Precision(case.dtype, case.S)
    weights = ("weight", "forget_weight", "reset_weight")
    given = {"x": shared, **{f"{name}_projection": eye for name in ("input", "forget", "reset")}}
    given |= {name: arrays[name] for name in weights}
    full = oracle.gru(arrays, {}, precision)
    value = Expected({"y": full.values["y"]}, {"y": full.slack["y"]})
    both = case.direction == "both"
    got, gradients = driver.values(function, driver.natives(given), [dy] if both else None)
    gradient = None
    if both:
        cotangents = {"y": dy, "state": np.zeros(full.values["state"].shape)}
        parts = oracle.gru_gradient(arrays, {}, cotangents, precision)
        inputs = ("input", "forget_input", "reset_input")
        totals = [np.sum([each[name] for name in inputs], axis=0) for each in (parts.values, parts.slack)]
        gradient = Expected(
            {"x": totals[0], **{name: parts.values[name] for name in weights}},
            {"x": totals[1] + _sum_of_rounded(parts, inputs, case), **{name: parts.slack[name] for name in weights}},
        )
        # Off the diagonal the gradients of the two forms differ.
        kept = ("x", "forget_weight", "reset_weight") if contender.reset_after else ("x", *weights)
        gradients = {name: gradients[name] for name in kept}
    return _compared(case, got, gradients, value, gradient, ("y",))


def _sum_of_rounded(parts: Expected, names: tuple[str, ...], case: Case) -> np.ndarray:
    """Rounding error of a sum of three gradients, each rounded to its dtype by the projection that follows it."""
    unit = Precision(case.dtype).operand
    return np.asarray(unit * sum(np.abs(parts.values[name]) for name in names))
