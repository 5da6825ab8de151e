"""How a case becomes a call with cotangents, and what the oracle says of it: value and gradient with their slack."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.budget import Expected, Precision
from conformance.cases import FwbwCase, GRUCase, MLSTMCase, SumCase
from conformance.dtypes import Array

Named = dict[str, Array]


@dataclass(frozen=True)
class Call:
    """A call of one operation.

    Attributes:
        arguments: arrays in the order of the call.
        options: arguments that are no arrays, all that there are.
        cotangents: one for each output, by its name.
        value, gradient: what the oracle says; the gradient may name more than the arguments.
    """

    arguments: Named
    options: dict[str, Any]
    cotangents: Named
    value: Expected
    gradient: Expected


def _scan(operation: str, case: SumCase, dtype: str) -> Call:
    arguments, cotangents = case.scan(dtype), case.cotangent(dtype, square=False)
    return _summed(operation, case.steps, case.steps, arguments, cotangents, dtype)


def _forget(operation: str, case: SumCase, dtype: str) -> Call:
    arguments, cotangents = case.log_gates(dtype), case.cotangent(dtype, square=True)
    return _summed(operation, case.steps, case.steps**2, arguments, cotangents, dtype)


def _summed(operation: str, steps: int, terms: int, arguments: Named, cotangents: Named, dtype: str) -> Call:
    """``terms``: how many cotangents a gradient may add up."""
    x, dx = oracle.values(arguments), oracle.values(cotangents)
    value = oracle.sums(operation, x, Precision(dtype, steps))
    return Call(arguments, {}, cotangents, value, oracle.sums_gradient(operation, x, dx, Precision(dtype, terms)))


def _dtilde(operation: str, case: SumCase, dtype: str) -> Call:
    arguments, cotangents = case.preactivations(dtype), case.cotangent(dtype, square=True)
    x, dx = oracle.values(arguments), oracle.values(cotangents)
    value = oracle.dtilde(x, Precision(dtype, case.steps))
    return Call(arguments, {}, cotangents, value, oracle.dtilde_gradient(x, dx, Precision(dtype, case.steps**2)))


def _mlstm(operation: str, case: MLSTMCase, dtype: str) -> Call:
    arguments, cotangents = case.arrays(dtype), case.cotangent_arrays(dtype)
    options: dict[str, Any] = {"chunk_size": case.chunk_size, "eps": case.eps}
    x, dx, precision = oracle.values(arguments), oracle.values(cotangents), Precision(dtype, case.steps)
    calls = [(x, dx)] if case.lengths is None else oracle.each_sequence(x, dx, case.lengths)
    values = [oracle.mlstm(x, options, precision) for x, _ in calls]
    gradients = [oracle.mlstm_gradient(x, options, dx, precision) for x, dx in calls]
    if case.lengths is None:
        return Call(arguments, options, cotangents, values[0], gradients[0])
    return Call(arguments, options, cotangents, oracle.joined(values), oracle.joined(gradients))


def _step(operation: str, case: MLSTMCase, dtype: str) -> Call:
    """A sequence of one step, without its axis."""
    whole = _mlstm("mlstm", case, dtype)
    arguments = {name: _without_steps(x) if name in "qkvif" else x for name, x in whole.arguments.items()}
    cotangents = {name: _without_steps(x) if name == "h" else x for name, x in whole.cotangents.items()}
    value, gradient = (_squeezed(expected) for expected in (whole.value, whole.gradient))
    return Call(arguments, {"eps": case.eps}, cotangents, value, gradient)


def _without_steps(x: Array) -> Array:
    return replace(x, values=x.values[:, 0])


def _squeezed(expected: Expected) -> Expected:
    def squeeze(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: x[:, 0] if name in (*"qkvif", "h") else x for name, x in arrays.items()}

    return replace(expected, values=squeeze(expected.values), slack=squeeze(expected.slack))


def _fwbw(operation: str, case: FwbwCase, dtype: str) -> Call:
    arguments, cotangents, config = case.arrays(dtype), case.cotangent_arrays(dtype), case.config()
    x, dx, precision = oracle.values(arguments), oracle.values(cotangents), Precision(dtype, case.steps)
    value, gradient = oracle.fwbw(x, config, precision), oracle.fwbw_gradient(x, config, dx, precision)
    return Call(arguments, {"config": config}, cotangents, value, gradient)


def _gru(operation: str, case: GRUCase, dtype: str) -> Call:
    arguments, cotangents = case.arrays(dtype), case.cotangent_arrays(dtype)
    options = {"gradient_clipping": case.clipping}
    x, dx, precision = oracle.values(arguments), oracle.values(cotangents), Precision(dtype, case.steps)
    value, gradient = oracle.gru(x, {}, precision), oracle.gru_gradient(x, options, dx, precision)
    return Call(arguments, options, cotangents, value, gradient)


CALLS: dict[str, Callable[[str, Any, str], Call]] = {
    "rev_cumsum": _scan,
    "rev_cumsum_off": _scan,
    "causal_forget_matrix": _forget,
    "dtilde_matrix": _dtilde,
    "mlstm": _mlstm,
    "mlstm_step": _step,
    "mlstm_fwbw_custom_grad": _fwbw,
    "gru": _gru,
}
"""``(operation, case, dtype)`` → the call, for every operation that maps arrays to arrays."""
