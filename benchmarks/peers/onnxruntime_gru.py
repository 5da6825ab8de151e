"""ONNX's operator ``GRU`` with ``linear_before_reset=0``, run by ONNX Runtime on a CPU, head by head; no gradient."""

from functools import cache

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ._adapter import refuse


@cache
def _session(H):
    """A model of one node; its weights are inputs. ``Y (S, 1, B, H)``, ``Y_h (1, B, H)``."""
    taken = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in ("X", "W", "R", "h0")]
    given = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)]
    given.append(helper.make_tensor_value_info("Y_h", TensorProto.FLOAT, [None] * 3))
    node = helper.make_node("GRU", ["X", "W", "R", "", "", "h0"], ["Y", "Y_h"], hidden_size=H, linear_before_reset=0)
    graph = helper.make_graph([node], "gru", taken, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def gru(input, weight, forget_input, forget_weight, reset_input, reset_weight, input_state=None, **unserved):
    inputs, weights = (forget_input, reset_input, input), (forget_weight, reset_weight, weight)
    refuse(
        (unserved, ", ".join(unserved)),
        (input.shape[1] == 0, "sequences without steps"),
        (any(x.dtype != np.float32 for x in (*inputs, *weights)), "any dtype but float32"),
    )
    H, N = weight.shape[-1], max(*(x.shape[2] for x in inputs), *(w.shape[0] for w in weights))
    # Its gates are update (the forget gate), reset and candidate; its products are x Wᵀ and h Rᵀ.
    # Beyond 1e4 a gate is shut or open to the last bit, and no zero of the identity below meets an infinity.
    x = np.concatenate([np.repeat(x, N // x.shape[2], 2) for x in inputs], -1).clip(-1e4, 1e4)
    over = np.concatenate([np.repeat(w, N // w.shape[0], 0).swapaxes(1, 2) for w in weights], 1)
    h0 = np.zeros((x.shape[0], N, H), np.float32) if input_state is None else input_state
    # The gates' inputs are projected already: each takes its part of x as it is.
    into = np.eye(3 * H, dtype=np.float32)[None]
    heads = []
    for n in range(N):
        arrays = {"X": x[:, :, n].swapaxes(0, 1), "W": into, "R": over[n : n + 1], "h0": h0[None, :, n]}
        heads.append(_session(H).run(None, {name: np.ascontiguousarray(a) for name, a in arrays.items()}))
    return np.stack([y[:, 0].swapaxes(0, 1) for y, _ in heads], 2), np.stack([last[0] for _, last in heads], 1)
