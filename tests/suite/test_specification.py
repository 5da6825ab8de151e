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
from conformance.formulas import formula_named
from conformance.formulas.rows import formulas_of_rows
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.draws import sampled
from conformance.judge.runner import run
from conformance.operations import OPERATIONS, Operation
from conformance.specification import traced
from conformance.specification.changed import changed

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


def test_what_the_tape_cannot_follow_raises() -> None:
    x = traced.made(np.ones((2, 3)))
    for lost in (lambda: np.arcsin(x), lambda: np.sort(x), lambda: np.multiply.reduce(x), lambda: x.T + 1):
        with pytest.raises((NotImplementedError, AttributeError), match=r"no derivative of|no attribute"):
            lost()


def test_the_tape_follows_what_is_written_into_an_array() -> None:
    x = traced.made(np.arange(3.0))
    y = traced.made(np.zeros((2, 3)))
    y[0] = 2 * x
    y[1] = y[0] * x
    y[0, 0] = 7.0
    total = y.sum()
    assert np.array_equal(traced.raw(traced.gradients({"y": total}, {"y": np.ones(())}, {"x": x})["x"]), [0, 6, 10])


def test_every_row_of_an_answer_is_found_by_its_name_and_nothing_of_the_copy_stays_imported() -> None:
    for operation in OPERATIONS.values():
        for formula in formulas_of_rows(operation):
            assert formula_named(operation, formula.name) is not None
    changed()
    assert not any(name.startswith("changed_reference") for name in sys.modules)


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
