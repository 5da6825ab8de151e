"""Weights of an ONNX GRU in the layers of all three packages."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from reference.interop.gru import GRUWeights
from tests.interop.layers import PACKAGES, Inputs
from tests.interop.rounding import assert_rounding
from tests.interop.test_documents import BLOCKS


def value(name: str, rank: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * rank)


def model(features: int, H: int, bias: bool, **attributes: Any) -> onnx.ModelProto:
    """A graph of one GRU node with random weights, as an exporter would write it."""
    rng = np.random.default_rng(0)
    arrays = {"W": rng.normal(size=(1, 3 * H, features)), "R": rng.normal(size=(1, 3 * H, H)) / H**0.5}
    if bias:
        arrays["B"] = rng.normal(size=(1, 6 * H))
    inputs = ["X", "W", "R", "B" if bias else "", "", "h0"]
    node = helper.make_node("GRU", inputs, ["Y", "Y_h"], hidden_size=H, **attributes)
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "g", [value("X", 3), value("h0", 3)], [value("Y", 4), value("Y_h", 3)])
    graph.initializer.extend(initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def read(found: onnx.ModelProto) -> GRUWeights:
    """The weights of the graph's GRU, by the lines of docs/interop.md."""
    (block,) = (block for block in BLOCKS if "def load(" in block)
    names: dict[str, Any] = {}
    exec(block, names)
    names["gru_from_weights"] = lambda weights: weights
    return names["load"](found, next(node for node in found.graph.node if node.op_type == "GRU"))


def run(found: onnx.ModelProto, **feed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``Y`` as ``(B, S, H)`` and ``Y_h`` as ``(B, 1, H)`` from ONNX Runtime."""
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    y, last = session.run(None, {name: np.ascontiguousarray(array) for name, array in feed.items()})
    return np.asarray(y)[:, 0].swapaxes(0, 1), np.asarray(last).swapaxes(0, 1)


@pytest.mark.parametrize(
    ("bias", "attributes"),
    [
        (True, {}),
        (False, {"linear_before_reset": 0, "direction": "forward", "layout": 0}),
        (True, {"activations": ["Sigmoid", "Tanh"]}),
        (True, {"linear_before_reset": 1}),
        (False, {"linear_before_reset": 1}),
    ],
)
def test_a_node_agrees_with_onnx_runtime(bias: bool, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    found = model(5, 6, bias, **attributes)
    x, h0 = rng.normal(size=(3, 13, 5)).astype("f4"), rng.normal(size=(3, 1, 6)).astype("f4")
    weights = read(found)
    results = {name: PACKAGES[name](weights, Inputs(x=x, h0=h0)) for name in PACKAGES}
    truth = results["reference"]
    pairs = {name: (result.output.astype("f4"), result.state.astype("f4")) for name, result in results.items()}
    pairs["ONNX Runtime"] = run(found, X=x.swapaxes(0, 1), h0=h0.swapaxes(0, 1))
    for name, (output, state) in pairs.items():
        assert_rounding(output, truth.output, f"{name}: output")
        assert_rounding(state, truth.state, f"{name}: state")


def test_lengths_become_a_packing() -> None:
    """ONNX pads a batch and takes its lengths; `gru` takes the sequences one after the other."""
    lengths = [7, 1, 4]
    found = model(4, 5, True)
    found.graph.node[0].input[4] = "lengths"
    found.graph.input.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, [None]))
    x = np.random.default_rng(2).normal(size=(3, max(lengths), 4)).astype("f4")
    y, last = run(found, X=x.swapaxes(0, 1), h0=np.zeros((1, 3, 5), "f4"), lengths=np.array(lengths, "i4"))
    packed = np.concatenate([x[b, :length] for b, length in enumerate(lengths)])
    expected = np.concatenate([y[b, :length] for b, length in enumerate(lengths)])
    weights, cu_seqlens = read(found), np.cumsum([0, *lengths])
    for name, run_package in PACKAGES.items():
        ours = run_package(weights, Inputs(x=packed, cu_seqlens=cu_seqlens))
        assert_rounding(expected, ours.output, f"{name}: output")
        assert_rounding(last, ours.state, f"{name}: state")


@pytest.mark.parametrize("bias", [True, False])
def test_a_node_without_later_inputs_and_with_weights_in_constants_is_read(bias: bool) -> None:
    found = model(5, 6, bias, linear_before_reset=1)
    expected = read(found)
    (node,) = found.graph.node
    del node.input[4 if bias else 3 :]
    constants = [helper.make_node("Constant", [], [each.name], value=each) for each in found.graph.initializer]
    nodes = [*constants, node]
    del found.graph.initializer[:]
    rebuilt = helper.make_graph(nodes, "g", list(found.graph.input)[:1], list(found.graph.output))
    weights = read(helper.make_model(rebuilt, opset_imports=found.opset_import, ir_version=8))
    assert weights.has_bias == bias
    for name in ("input_kernel", "state_weight", "forget_weight", "reset_weight"):
        np.testing.assert_array_equal(getattr(weights, name), getattr(expected, name))
