"""ONNX's operator ``GRU`` with both values of ``linear_before_reset``, run by ONNX Runtime on a CPU, head by head.

It has no gradient.
"""

from functools import cache

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ._adapter import recurrence, refuse


@cache
def _session(H, reset_after):
    """A model of one node; its weights are inputs. ``Y (S, 1, B, H)``, ``Y_h (1, B, H)``."""
    ranks = {"X": 3, "W": 3, "R": 3, "B": 2, "h0": 3}
    taken = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in ranks.items()]
    given = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)]
    given.append(helper.make_tensor_value_info("Y_h", TensorProto.FLOAT, [None] * 3))
    form = {"hidden_size": H, "linear_before_reset": int(reset_after)}
    node = helper.make_node("GRU", ["X", "W", "R", "B", "", "h0"], ["Y", "Y_h"], **form)
    graph = helper.make_graph([node], "gru", taken, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None, bias=None, reset_after=False):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    refuse((x.dtype != np.float32, "any dtype but float32"))
    (N, _, _, H), B = into.shape, len(x)
    h0 = np.zeros((B, N, H), x.dtype) if h0 is None else h0
    # Its rows are update (the forget gate), reset and candidate; of its six biases, the last is our recurrent one.
    W = np.concatenate([into[:, 1], into[:, 0], into[:, 2]], -1).swapaxes(1, 2)
    R = np.concatenate([forget_weight, reset_weight, weight], -1).swapaxes(1, 2)
    biases = np.zeros((N, 6 * H), x.dtype)
    biases[:, 5 * H :] = 0 if bias is None else bias
    heads = []
    for n in range(N):
        one = slice(n, n + 1)
        arrays = {"X": x[:, :, n].swapaxes(0, 1), "W": W[one], "R": R[one], "B": biases[one], "h0": h0[None, :, n]}
        arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        heads.append(_session(H, reset_after).run(None, arrays))
    return np.stack([y[:, 0].swapaxes(0, 1) for y, _ in heads], 2), np.stack([last[0] for _, last in heads], 1)


gru = recurrence(gru_layer, np, both=True)
