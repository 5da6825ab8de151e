"""Laws of every operation as its framework transforms it: compiled, mapped, sharded, differentiated twice."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import FLOATING, ROUNDOFF, Array
from conformance.base.exceptions import text_of
from conformance.base.result_form import WrongResultError, expect_shapes
from conformance.cases import generator
from conformance.frameworks.implementation import (
    BrokenGraphError,
    Named,
    NotShardedError,
    NotTransformedError,
    RefusedError,
    Results,
)
from conformance.laws import SINGLE, law
from conformance.laws._answers import lacking, of_rows, transformed
from conformance.laws._relations import results_of, same_results
from conformance.laws.checker import Checker
from conformance.operations import Operation
from conformance.tolerance.budget import KAPPA

_SENTENCES = {
    "compile": (
        "Value and gradient are the same whether the call is compiled (torch.compile with fullgraph, jax.jit) or not.",
        "compile(f)(x) = f(x), d compile(f) = df",
    ),
    "compile gradient": (
        "A compiled gradient (torch.compile of torch.func.vjp) is the whole gradient; no part of it is missing.",
        "compile(vjp(f))(x) = vjp(f)(x)",
    ),
    "functional": ("torch.func.vjp gives the value and the gradient that torch.autograd gives.", "vjp(f)(x) = (f, df)"),
    "vmap": (
        "Mapped over a new axis, the call gives the value and the gradient of each element of the axis.",
        "vmap(f)(x)_b = f(x_b), vmap(vjp(f))(x)_b = vjp(f)(x_b)",
    ),
    "checkpoint": (
        "The gradient is the same under checkpointing, which keeps no residuals and runs the forward pass again.",
        "d checkpoint(f) = df",
    ),
    "sharding": (
        "Arrays that are sharded over batch and heads give the value and the gradient of the whole arrays.",
        "f(shard(x)) = f(x), df(shard(x)) = df(x)",
    ),
    "sharding by explicit axes": (
        "So do arrays that are sharded by explicit mesh axes, as jax.make_mesh makes them by default.",
        "f(shard(x)) = f(x), df(shard(x)) = df(x)",
    ),
}

_DECISIONS = ("sharding by explicit axes",)
"""Kinds that gatespec's packages support by decision: in JAX, few functions take arrays with explicit axes."""


def register(operation: Operation) -> None:
    """Register these laws for one operation."""
    rows: dict[str, Any] = {"cases": of_rows(operation), "gradient": operation.name, "share": 0.1}
    for kind, (sentence, equation) in _SENTENCES.items():
        law(
            operation,
            "contract" if kind in _DECISIONS else "behaviour",
            name=kind.replace(" ", "_"),
            sentence=sentence,
            equation=equation,
            dtypes=SINGLE,
            skip=partial(lacking, kind),
            **rows,
        )(partial(_CHECKS.get(kind, _alike), kind, operation))
    skip = partial(lacking, "second derivative")
    law(operation, "behaviour", dtypes=("float64",), skip=skip, **rows)(partial(second_derivative, operation))


def served(kind: str, checker: Checker, call: Call) -> tuple[Results, Results]:
    """Outputs and gradients of a call under a transformation that others than gatespec's packages need not support."""
    try:
        return transformed(kind, checker, call)
    except NotShardedError as error:
        if checker.contract and "`kernel_backend`" not in str(error):
            raise
        raise RefusedError(f"{call.operation} does not take sharded arrays: {error}") from error
    except (BrokenGraphError, NotTransformedError) as error:
        if checker.contract:
            raise error.__cause__ or error from None
        # Nothing wrong was computed: whether a function leaves the graph, or has a rule, is its author's choice.
        broken = isinstance(error, BrokenGraphError)
        cannot = "cannot be compiled as one graph" if broken else f"has no rule for this ({kind})"
        raise RefusedError(f"{call.operation} {cannot}: {error}") from error


def _alike(kind: str, operation: Operation, checker: Checker, case: Any) -> None:
    call = operation.call_of(case, checker.dtype)
    own = results_of(checker, call)
    same_results(operation, checker, case, call, served(kind, checker, call), own)


def _sharded(kind: str, operation: Operation, checker: Checker, case: Any) -> None:
    try:
        _alike(kind, operation, checker, case)
    except RefusedError:
        # It may be the gradient alone that is refused, and a wrong value is wrong without it.
        call = operation.call_of(case, checker.dtype)
        own = checker.served(checker.implementation.call, checker.on_backend(call))
        outputs, _ = served(kind, checker, replace(call, cotangents={}))
        same_results(operation, checker, case, call, (outputs, None), (own, None))
        raise


def _mapped(kind: str, operation: Operation, checker: Checker, case: Any) -> None:
    first = operation.call_of(case, checker.dtype)
    # These are other values of the same shapes, so that no element of the axis can replace another.
    second = first.changed(lambda name, x: x if x.dtype not in FLOATING else _reversed(x))
    arrays = {name: _stacked(first.arrays[name], second.arrays[name]) for name in first.primals}
    cotangents = {name: _stacked(d, second.cotangents[name]) for name, d in first.cotangents.items()}
    both = replace(first.with_arrays(**arrays), cotangents=cotangents)
    try:
        outputs, gradients = served(kind, checker, both)
        expect_shapes(operation.name, outputs, both.cotangents)
        expect_shapes(operation.name, gradients, arrays, "the gradient of ")
    except WrongResultError as error:
        raise WrongResultError(error.function, f"under {kind}, {error}") from error
    for b, call in enumerate((first, second)):
        form = f"element {b}" if b else ""
        own = results_of(checker, call)
        same_results(operation, checker, case, call, (_element(outputs, b), _element(gradients, b)), own, form)


_CHECKS = {"vmap": _mapped, "sharding": _sharded, "sharding by explicit axes": _sharded}
"""The checks of the kinds that are not `_alike`."""


def _reversed(x: Array) -> Array:
    return Array(x.values[::-1].copy() if x.values.ndim else x.values, x.dtype)


def _stacked(*parts: Array) -> Array:
    return Array(np.stack([part.values for part in parts]), parts[0].dtype)


def _element(results: Results, b: int) -> Results:
    return {name: Array(x.values[b], x.dtype) for name, x in results.items()}


def second_derivative(operation: Operation, checker: Checker, case: Any) -> None:
    """The second derivative is the derivative of the gradient, or the request for it is refused.

    ∂⟨df(x, d), u⟩/∂(x, d) = difference quotients of the reference's gradient, or a refusal
    """
    call = operation.call_of(case, checker.dtype)
    rng = generator(0, 50)
    along = {name: Array(rng.normal(size=call.arrays[name].shape), checker.dtype) for name in call.primals}
    try:
        got = checker.implementation.second_derivative(checker.on_backend(call), along)
    except NotImplementedError:
        # A target that refuses the call itself has said nothing about its second derivative.
        results_of(checker, call)
        return
    except ValueError as error:
        if checker.implementation.kernel_backend is not None and "`kernel_backend`" in text_of(error):
            raise RefusedError(text_of(error)) from error
        raise
    for name, (expected, slack) in _quotients(operation, call, along).items():
        checker.close(f"second derivative by {name}", got[name], expected, slack, call.steps)


def _quotients(operation: Operation, call: Call, along: Named) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Difference quotients of the reference's gradients and outputs along a direction, and the error of each.

    A central quotient D(w) of width w is off by a series in w², whose first term cancels in Richardson's extrapolation
    R(w) = (4·D(w/2) − D(w))/3, which leaves w⁴. Its rounding adds about u·|value|/w; w = u^⅕ balances the two. The
    error is taken from two widths: where R(w) and R(w/2) disagree, at a kink, that much may be off. To it comes the
    rounding, u^⅔ of the array's largest value: a hundred times that of R(w), as the value that is compared with it is
    rounded too. By a cotangent, the derivative is that of the outputs; it is not asked for where an output is infinite.
    """
    unit = ROUNDOFF["float64"]
    width = unit ** (1 / 5)
    at = [_quotient(operation, call, along, width / divisor) for divisor in (1, 2, 4)]
    quotients = {}
    for name, (_, largest) in at[0].items():
        wide, middle, narrow = (quotient[name][0] for quotient in at)
        with np.errstate(invalid="ignore"):
            first, second = (4 * middle - wide) / 3, (4 * narrow - middle) / 3
            slack = np.abs(first - second) + KAPPA * unit ** (2 / 3) * largest
        unknown = ~np.isfinite(first) | ~np.isfinite(second)
        quotients[name] = np.where(unknown, 0.0, second), np.where(unknown, np.inf, slack)
    return quotients


def _quotient(operation: Operation, call: Call, along: Named, width: float) -> dict[str, tuple[np.ndarray, float]]:
    """The quotient and the largest value in it, by name."""
    sides = []
    for sign in (1, -1):
        moved = {
            name: Array(call.arrays[name].values + sign * width * u.values, call.arrays[name].dtype)
            for name, u in along.items()
        }
        with np.errstate(all="ignore"):
            values = oracle.values({**call.arrays, **moved})
            outputs = operation.value(values, call.options, oracle.PRECISE).values
            gradients = operation.gradient(values, call.options, oracle.values(call.cotangents), oracle.PRECISE).values
        sides.append(
            {
                **{name: gradients[name] for name in call.primals},
                **{f"cotangent of {name}": outputs[name] for name in call.cotangents},
            }
        )
    plus, minus = sides
    with np.errstate(invalid="ignore"):
        return {name: ((x - minus[name]) / (2 * width), _largest(x)) for name, x in plus.items()}


def _largest(x: np.ndarray) -> float:
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
