"""The specification run in other ways: on a tape, and with a row changed."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from conformance.base.call import Call
from conformance.base.options import RunOptions
from conformance.cases import Limits
from conformance.diagnosis.diagnose import diagnose
from conformance.formulas.formula import formulas_of
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.draws import sampled
from conformance.judge.runner import run
from conformance.operations import OPERATIONS, Operation
from conformance.rows import ROWS, taped
from conformance.rows.row import Row
from conformance.specification import traced
from conformance.specification.changed import changed
from conformance.specification.rounded import Copies, Rounding

CASES = 12
ROUNDING = 1e-11
"""Of float64, relative to the largest element; the largest that was seen is 2e-12, in gates of the sLSTM."""


def _calls(operation: Operation) -> list[Call]:
    drawn = [
        operation.call_of(case, "float64")
        for stratum in ("small", "chunk")
        for case in sampled(operation.cases["dense"](Limits(stratum, True, "float64", 130)), 0, CASES)
    ]
    return [call for call in drawn if not _decided(call)]


def _decided(call: Call) -> bool:
    """Whether the gradient is a decision, and not that of the value: clipped, at infinite gates, or of a simpler m."""
    simpler = not call.options.get("config", {"stabilize_correctly": True})["stabilize_correctly"]
    infinite = not all(np.isfinite(x.values).all() for x in call.arrays.values())
    return infinite or simpler or call.options.get("gradient_clipping") is not None


def _values(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(x.values) for name, x in arrays.items()}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_tape_gives_the_gradient_that_the_backward_pass_is_written_for(name: str) -> None:
    operation, specification = OPERATIONS[name], changed()
    calls = _calls(operation)
    assert len(calls) >= 3
    for call in calls:
        arrays, cotangents = _values(call.arrays), _values(call.cotangents)
        if name == "dtilde_matrix":
            # Elements above the diagonal are −∞ whatever the gates are; that they pass a cotangent on is a decision.
            cotangents["y"] = np.tril(cotangents["y"])
        given = {each: traced.made(x) if x.dtype.kind == "f" else x for each, x in arrays.items()}
        with traced.tracing(specification.modules):
            outputs = operation.call(specification.function(name), given, call.options)
        got = traced.gradients(outputs, cotangents, given)
        function = specification.function(operation.backward_name)
        with np.errstate(all="ignore"):
            written = operation.differentiate(function, arrays, call.options, cotangents)
        largest = max(np.abs(x).max(initial=0.0) for x in written.values() if x is not None)
        for each, x in written.items():
            if x is not None:
                assert np.abs(got[each] - x).max(initial=0.0) <= ROUNDING * largest, each


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_tape_loses_no_gradient_at_infinite_gates_and_empty_memories(name: str) -> None:
    """A NaN there would be no way to compute it, and the tolerance would silently do without that way."""
    operation = OPERATIONS[name]
    specification = changed(*(row for row in taped.CONSTANT if row.op == operation.about))
    limits = Limits("small", True, "float64", 130)
    for strategy in (operation.cases["dense"], *([operation.extremes] if operation.extremes else [])):
        for case in sampled(strategy(limits), 0, CASES):
            call = operation.call_of(case, "float64")
            arrays, cotangents = _values(call.arrays), _values(call.cotangents)
            rounding = Rounding(2, 1e-9)
            copies = {each: rounding.copies_of(x) if x.dtype.kind == "f" else x for each, x in arrays.items()}
            for numpy, given in ((np, arrays), (rounding.numpy, copies)):
                leaves = {each: x if x.dtype.kind == "i" else traced.made(x.copy()) for each, x in given.items()}
                with np.errstate(all="ignore"):
                    with traced.tracing(specification.modules, numpy):
                        outputs = operation.call(specification.function(name), leaves, call.options)
                    reached = {each: rounding.copies_of(d) if numpy is not np else d for each, d in cotangents.items()}
                    found = traced.gradients(outputs, reached, leaves)
                for each, x in found.items():
                    assert np.isfinite(x.data if isinstance(x, Copies) else x).all(), (each, case.describe())


def test_what_the_tape_cannot_follow_raises() -> None:
    x = traced.made(np.ones((2, 3)))
    for lost in (lambda: np.arcsin(x), lambda: np.sort(x), lambda: np.multiply.reduce(x), lambda: x.T + 1):
        with pytest.raises((NotImplementedError, AttributeError), match=r"no derivative of|no attribute"):
            lost()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.sum(x, axis=-1),
        lambda x: np.mean(x, axis=(0, 2), keepdims=True),
        lambda x: np.max(x, axis=1),
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    ],
    ids=["sum", "mean", "max", "norm"],
)
def test_reductions_as_functions_of_numpy_are_rounded_and_followed(function: Any) -> None:
    rng = np.random.default_rng(0)
    x, direction = rng.normal(size=(2, 2, 3, 4))
    copies = Rounding(8, 1e-9).copies_of(x)
    assert np.abs(function(copies).data - function(x)).max() < 1e-7
    for given in (x, copies):
        leaf = traced.made(given)
        y = function(leaf)
        gradient = traced.gradients({"y": y}, {"y": np.ones(y.shape)}, {"x": leaf})["x"]
        slope = (function(x + 1e-6 * direction).sum() - function(x - 1e-6 * direction).sum()) / 2e-6
        found = gradient.data[0] if isinstance(gradient, Copies) else gradient
        assert (found * direction).sum() == pytest.approx(slope, abs=1e-6)


def test_the_tape_follows_what_is_written_into_an_array() -> None:
    x = traced.made(np.arange(3.0))
    y = traced.made(np.zeros((2, 3)))
    y[0] = 2 * x
    y[1] = y[0] * x
    y[0, 0] = 7.0
    total = y.sum()
    assert np.array_equal(traced.raw(traced.gradients({"y": total}, {"y": np.ones(())}, {"x": x})["x"]), [0, 6, 10])


def test_nothing_of_a_copy_stays_imported() -> None:
    changed()
    assert not any(name.startswith("changed_reference") for name in sys.modules)


def _of_row(operation: Operation, row: Row, call: Call) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the first formula of a row computes on a call, and what the specification does."""
    arrays, cotangents = _values(call.arrays), _values(call.cotangents)
    got = next(formulas_of(operation, (row,))).compute(arrays, call.options, cotangents)
    for given, x in ((arrays, call.arrays), (cotangents, call.cotangents)):
        assert all(np.array_equal(given[each], x[each].values) for each in given), "a formula changed what it was given"
    outputs = operation.call(changed().function(operation.name), _values(call.arrays), call.options)
    backward = changed().function(operation.backward_name)
    gradients = operation.differentiate(backward, _values(call.arrays), call.options, _values(call.cotangents))
    return got, outputs | {f"gradient of {each}": x for each, x in gradients.items() if x is not None}


@pytest.mark.parametrize("row", taped.ROWS, ids=lambda row: f"{row.op}: {row.name}")
def test_a_row_that_only_the_tape_follows_changes_the_gradient_alone(row: Row) -> None:
    operation = next(each for each in OPERATIONS.values() if each.about == row.op)
    differ = False
    for call in _calls(operation):
        got, expected = _of_row(operation, row, call)
        for name, x in expected.items():
            largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
            same = np.allclose(got[name], x, rtol=1e-9, atol=1e-9 * largest)
            assert same or name.startswith("gradient of ")
            differ |= not same
    assert differ


@pytest.mark.parametrize(
    ("name", "row"),
    [("mlstm", "input overwritten"), ("mlstm", "cotangent used as scratch space"), ("gru", "input overwritten")],
)
def test_a_row_that_overwrites_what_it_is_given_leaves_a_call_as_it_is(name: str, row: str) -> None:
    (planted,) = (each for each in ROWS if (each.op, each.name) == (name, row))
    _of_row(OPERATIONS[name], planted, _calls(OPERATIONS[name])[0])


def test_an_exponential_that_overflows_has_no_gradient_where_it_is_divided_by() -> None:
    x = traced.made(np.array([1e4, 0.0]))
    with np.errstate(over="ignore", invalid="ignore"):
        y = 1 / np.exp(x)
        got = traced.gradients({"y": y}, {"y": np.ones(2)}, {"x": x})["x"]
    assert np.array_equal(got, [0.0, -1.0])


def test_a_part_of_the_gradient_is_held_constant_or_clipped_by_the_tape_alone() -> None:
    x = traced.made(np.arange(1.0, 4.0))
    with traced.tracing(specification := changed().modules):
        numpy = next(module.np for module in specification.values() if hasattr(module, "np"))
        y = x * numpy.stop_gradient(x) + numpy.clip_gradient(x, -2)
    assert np.array_equal(traced.gradients({"y": y}, {"y": np.full(3, 5.0)}, {"x": x})["x"], [7.0, 12.0, 17.0])


def _gru(x: Any, W: Any, xf: Any, Wf: Any, xr: Any, Wr: Any) -> Any:
    """A GRU as a loop, differentiated by autograd, with another forget gate."""
    if len({array.shape[-2] for array in (x, xf, xr)} | {len(array) for array in (W, Wf, Wr)}) > 1 or not x.shape[1]:
        raise NotImplementedError("heads are not grouped, and there are steps")

    def times(h: Any, W: Any) -> Any:
        return torch.einsum("bni,nij->bnj", h, W)

    h, ys = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        f, r = torch.sigmoid(times(h, Wf) + xf[:, t] + 1), torch.sigmoid(times(h, Wr) + xr[:, t])
        h = f * h + (1 - f) * torch.tanh(times(r * h, W) + x[:, t])
        ys.append(h)
    return torch.stack(ys, 1), h


def test_a_row_names_what_a_target_computes_under_autograd() -> None:
    target = TorchImplementation("stranger", {"gru": _gru}, "cpu")
    options = RunOptions(ops=("gru",), laws=("value", "gradient"), dtypes=("float32",), shrink_seconds=2.0)
    causes = diagnose(target, options, list(run(target, options))).causes
    assert causes[0].sentence == "gru equals the specification with a fault: forget gate with a bias of its own"
