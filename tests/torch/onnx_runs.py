"""Models exported to ONNX and run by ONNX Runtime, and the tolerances of their results."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime
import torch

from conformance import oracle
from conformance.base.dtypes import Array
from conformance.operations import OPERATIONS
from conformance.rows.row import changes
from conformance.specification.changed import changed
from conformance.tolerance import budget
from conformance.tolerance.budget import Precision
from torch_impl.interop.onnx import translation_table

RESULTS = {"mlstm": ("h", "C", "n", "m"), "slstm": ("h", "c", "n", "m", "last_h"), "gru": ("y", "state")}
"""Names of an operation's results in the oracle, in their order."""


class Function(torch.nn.Module):
    """A function of tensors, and of tuples of these, as a model."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested tuples."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if x is not None]


def export(
    model: torch.nn.Module, example: tuple[Any, ...], shapes: Any = None, **options: Any
) -> torch.onnx.ONNXProgram:
    """The program; with `shapes`, batch or steps are dynamic."""
    program = torch.onnx.export(
        model.eval(),
        example,
        dynamo=True,
        dynamic_shapes=shapes,
        custom_translation_table=translation_table(),
        verbose=False,
        **options,
    )
    assert program is not None
    return program


class Session:
    """A program in ONNX Runtime, called with the tensors of the example's structure."""

    def __init__(self, program: torch.onnx.ONNXProgram):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        model = program.model_proto.SerializeToString()
        self._session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])

    def __call__(self, *args: Any) -> list[np.ndarray]:
        names = [each.name for each in self._session.get_inputs()]
        feed = {name: x.numpy() for name, x in zip(names, leaves(args), strict=True)}
        return [np.asarray(y) for y in self._session.run(None, feed)]


(SIGMOID,) = changes("""
    @ gru _gates.py sigmoid

    every sigmoid less a roundoff of 1
    - np.exp(log_sigmoid(x))
    + np.exp(log_sigmoid(x)) - 2.0**-24
""")
"""ONNX Runtime's sigmoid is off by up to 4 roundoffs of 1, alike in all elements: in its `GRU`, a reset gate of −20 and
less is −2.4e-7, and σ(−8) has half of its digits. Its tanh is off by up to 10 roundoffs of itself."""


def assert_right(
    operation: str, arrays: Mapping[str, torch.Tensor], options: Mapping[str, Any], results: list[np.ndarray]
) -> None:
    """Compare every element with the oracle's answer for these arrays, in the tolerance of the conformance suite."""
    first = next(iter(arrays.values()))
    dtype = str(first.dtype).removeprefix("torch.")
    precision = Precision(dtype, steps=max(first.shape[1], 1))
    exact = {name: x.double().numpy() for name, x in arrays.items()}
    gru = OPERATIONS["gru"].stated
    assert gru is not None
    right = {"right": (*gru.recurrence.right, partial(changed, SIGMOID))}
    with patch.dict(vars(gru.recurrence), right):
        expected = OPERATIONS[operation].value(exact, options, precision)
    named = dict(zip(RESULTS[operation], results, strict=True))
    for name, x in named.items():
        values = x.astype(np.float64)
        if operation == "mlstm" and name in ("C", "n"):
            values = oracle.rescaled(values, named["m"].astype(np.float64), expected.values["m"])
        verdict = budget.judge(
            Array(values, str(x.dtype)), expected.values[name], np.asarray(expected.slack[name]), precision
        )
        assert verdict.worst <= 1, f"{name}: {verdict}"
