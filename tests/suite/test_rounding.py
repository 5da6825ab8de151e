"""The specification with every operation rounded at random, and tolerances that are computed as far as needed."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from conformance.cases import RecurrenceCase
from conformance.operations import OPERATIONS, Operation
from conformance.operations.gru import GRU, gru_case
from conformance.operations.slstm import SLSTM
from conformance.oracle import values as values_of
from conformance.specification import traced
from conformance.specification.changed import changed, using
from conformance.specification.rounded import Copies, Rounding
from conformance.tolerance.budget import Precision
from conformance.tolerance.staged import Staged, stages
from tests.suite.test_specification import _calls, _values

UNIT = 2.0**-36
BEYOND = 1e300
"""Larger numbers may round to infinity."""


def _of(x: Copies) -> np.ndarray:
    return x.data


def _deviation(copies: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    """The largest deviation of all arrays, in roundoffs of the largest element."""
    right = {name: x for name, x in exact.items() if x is not None}
    with np.errstate(invalid="ignore"):
        off = [np.where(np.abs(x) < BEYOND, copies[name].data - x, 0.0) for name, x in right.items()]
    largest = max(np.abs(x[np.abs(x) < BEYOND]).max(initial=0.0) for x in right.values())
    return float(max(np.abs(x).max(initial=0.0) for x in off) / largest / UNIT) if largest else 0.0


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_runs_with_errors_and_every_copy_is_near_the_exact_result(name: str) -> None:
    operation, specification = OPERATIONS[name], changed()
    largest = 0.0
    full = [call for call in _calls(operation) if all(x.values.size for x in call.arrays.values())]
    for call in full[:4]:
        arrays, cotangents = _values(call.arrays), _values(call.cotangents)
        if name == "dtilde_matrix":
            cotangents["y"] = np.tril(cotangents["y"])
        forward, backward = (specification.function(each) for each in (name, operation.backward_name))
        with np.errstate(all="ignore"):
            exact = operation.call(forward, arrays, call.options)
            of_exact = operation.differentiate(backward, arrays, call.options, cotangents)
        rounding = Rounding(16, UNIT)
        with using(specification.modules, rounding.numpy):
            found = operation.call(forward, arrays, call.options)
            of_found = operation.differentiate(backward, arrays, call.options, cotangents)
        largest = max(largest, _deviation(found, exact), _deviation(of_found, of_exact))
    assert 0.5 < largest < 1e7


@pytest.mark.parametrize("name", ["gru", "slstm", "mlstm"])
def test_gradients_by_the_tape_are_rounded_as_well(name: str) -> None:
    operation, specification, rounding = OPERATIONS[name], changed(), Rounding(16, UNIT)
    call = next(call for call in _calls(operation) if call.arrays[next(iter(call.arrays))].values.size)
    arrays, cotangents = _values(call.arrays), _values(call.cotangents)
    given = {each: traced.made(rounding.copies_of(x)) if x.dtype.kind == "f" else x for each, x in arrays.items()}
    with traced.tracing(specification.modules, rounding.numpy):
        results = operation.call(specification.function(name), given, call.options)
    got = traced.gradients(results, {each: rounding.copies_of(x) for each, x in cotangents.items()}, given)
    right = _written(operation, arrays, call.options, cotangents)
    for each, x in right.items():
        assert 0 < np.ptp(got[each].data, axis=0).max(initial=0.0) or not np.any(x), each
        assert got[each].data.shape[1:] == x.shape


def _written(operation: Operation, arrays: dict, options: dict, cotangents: dict) -> dict:
    function = changed().function(operation.backward_name)
    with np.errstate(all="ignore"):
        found = operation.differentiate(function, arrays, options, cotangents)
    return {name: x for name, x in found.items() if x is not None}


def test_an_operation_alone_is_off_by_its_roundoffs_in_every_copy() -> None:
    rounding = Rounding(8, UNIT)
    x = rounding.copies_of(np.array([3.0, -0.5]))
    for result, exact, roundoffs in (
        (x * 7.0, np.array([21.0, -3.5]), 1),
        (np.exp(x), np.exp([3.0, -0.5]), 1),
        (np.tanh(x), np.tanh([3.0, -0.5]), 4 / 3),
    ):
        off = np.abs(_of(result) / exact - 1) / UNIT / roundoffs
        assert off.min() > 0.48 and off.max() < 1.45
        assert off.std() > 0.1
    assert np.array_equal(_of(np.maximum(x, 0.0)), [[3.0, 0.0]]), "what is exact has no error"


def test_two_errors_of_one_size_cancel_in_no_copy() -> None:
    rounding = Rounding(16, UNIT)
    x = rounding.copies_of(np.full(4096, 3.0))
    off = np.abs(_of(x * 7.0) - _of(x * 7.0)) / (21 * UNIT)
    assert np.sqrt(np.square(off).mean(axis=0)).min() > 0.1


def test_a_sum_of_many_terms_is_off_by_the_root_of_their_number() -> None:
    rounding = Rounding(8, UNIT)
    x, y = (rounding.copies_of(np.full((999, 144), each)) for each in (1.0, -1.0))
    total = np.einsum("bi,bi->b", x, y)
    assert np.std(_of(total)) == pytest.approx(144 * 4 * UNIT, rel=0.03)
    # What is added to it may be rounded 144 times.
    carried = total + rounding.copies_of(np.full(999, 1e6))
    assert np.std(_of(carried)) == pytest.approx(12 * 1e6 * UNIT, rel=0.03)


def test_operands_are_rounded_to_16_bits_unless_they_are_such_numbers() -> None:
    rounding = Rounding(8, UNIT, operand=2.0**-9)
    x = rounding.copies_of(np.ones((1, 2)))
    once = np.einsum("bi,bi->b", x, x)
    assert np.abs(_of(once) - 2).max() < 1e-9
    computed = x * 1.1
    twice = np.einsum("bi,bi->b", computed, x)
    assert np.abs(_of(twice) - 2.2).max() > 2.0**-9
    # In half of the copies an operand has the same error at every step.
    again = np.einsum("bi,bi->b", computed, x)
    assert _of(again)[:4] == pytest.approx(_of(twice)[:4], abs=1e-9)


def test_what_is_below_the_smallest_number_is_0_in_half_of_the_copies() -> None:
    rounding = Rounding(8, UNIT, smallest=1e-38)
    product = _of(rounding.copies_of(np.array([1e-20, 1.0])) * 1e-20)
    assert (product[:, 0] == 0).sum() == 4
    assert product[:, 1] == pytest.approx(1e-20, rel=1e-3)


def test_what_is_not_rounded_raises() -> None:
    x = Rounding(4, UNIT).copies_of(np.ones(3))
    for lost in (lambda: np.arcsin(x), lambda: np.sort(x), lambda: np.multiply.accumulate(x)):
        with pytest.raises(NotImplementedError, match="is not rounded"):
            lost()


def test_a_tolerance_is_computed_as_far_as_it_is_asked_for() -> None:
    asked = []

    def compute() -> Iterator[np.ndarray]:
        for number in range(3):
            asked.append(number)
            yield np.full(2, float(number))

    slack = (2 * Staged(compute) + 1)[:1]
    assert isinstance(slack, Staged) and not asked
    each = stages(slack)
    assert next(each) == 1 and asked == [0]
    assert np.array_equal(np.asarray(slack), [5.0])
    assert [x.tolist() for x in stages(np.ones(1))] == [[1.0]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gru", "slstm"])
def test_a_gradient_is_tight_where_it_is_well_conditioned_and_nothing_is_allowed_where_it_is_0(
    name: str, dtype: str
) -> None:
    precision = Precision(dtype, 13)
    if name == "gru":
        case, of = gru_case(2, 13, 16, (2, 2, 2, 2, 2, 2), state=True, cotangents="one step"), GRU.gradient
    else:
        case, of = slstm_case(S=13, H=16, cotangents="one step"), SLSTM.gradient
    arrays, cotangents = (values_of(each) for each in (case.arrays(dtype), case.cotangent_arrays(dtype)))
    expected = of(arrays, {}, cotangents, precision)
    for each, x in expected.values.items():
        slack = np.asarray(expected.slack[each])
        assert (slack[x == 0] == 0).all(), each
        relative = np.median(slack[x != 0] / np.abs(x[x != 0]))
        assert relative < (300 * 2.0**-24 if dtype == "float32" else 60 * 2.0**-9), each


def slstm_case(**fields: Any) -> RecurrenceCase:
    assert SLSTM.stated is not None
    return SLSTM.stated.kind(B=2, N=2, state=True, **fields)


@pytest.mark.parametrize("clipping", [None, 0.05, -0.5])
def test_the_ways_to_compute_the_gradient_of_the_slstm_agree(clipping: float | None) -> None:
    """Otherwise the tolerance would be the difference between two gradients."""
    case = slstm_case(S=9, H=5, with_gradient_clipping=clipping)
    arrays, cotangents = (values_of(each) for each in (case.arrays("float64"), case.cotangent_arrays("float64")))
    expected = SLSTM.gradient(arrays, case.options(), cotangents, Precision("float64", 9))
    for each, x in expected.values.items():
        assert np.asarray(expected.slack[each]).max() <= 1e-11 * np.abs(x).max(), each
