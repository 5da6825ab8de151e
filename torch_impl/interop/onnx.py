"""`gru`, `slstm` and `mlstm` in ONNX: the translations that ``torch.onnx.export`` is given.

A `gru` becomes ONNX's operator ``GRU``, one node for each head, which is 2 to 14 times as fast in ONNX Runtime as one
node whose matrix has the heads as blocks. `slstm` and `mlstm` become a ``Scan`` over their steps. Everything is
computed in float32. ONNX Runtime fails where there are no steps or no sequences, and in a ``GRU`` ends the process; an
``If`` keeps such arrays from it, which the exporter removes where the sizes are fixed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnxscript import BOOL, FLOAT, graph, ir, opset18, script

from torch_impl._gru.arguments import Arguments as GRUArguments
from torch_impl._mlstm.arguments import Arguments as MLSTMArguments
from torch_impl._mlstm.arguments import StepArguments
from torch_impl._mlstm.normaliser import LARGEST_M
from torch_impl._slstm.arguments import Arguments as SLSTMArguments

__all__ = ["translation_table"]

op: Any = opset18
"""ONNX's operators. They take more types than they declare."""

_Float = FLOAT[...]
"""A float32 array of any shape."""

_SINGLE = ir.DataType.FLOAT
_LARGEST = float(np.finfo(np.float32).max)
_TINY = float(np.finfo(np.float32).tiny)
_LAST = np.iinfo(np.int64).max


def translation_table() -> dict[Callable, Callable]:
    """The argument ``custom_translation_table`` of ``torch.onnx.export(dynamo=True)``.

    With it, models are exported that contain layers of this package or call `gru`, `slstm`, `mlstm`, or a step of
    these. Batch size and number of steps may be dynamic, and states may be inputs and outputs. Which backend the calls
    take makes no difference. Gradients are not exported.

    Returns:
        A new dictionary, from PyTorch operators to functions of ONNX Script. Other entries may be added.

    Raises:
        TypeError, ValueError: by the export, for float64, packed sequences and `dtilde_matrix`. PyTorch raises its own
            error from it, with this one first in the summary.
    """
    operators = torch.ops.gatespec
    return {
        operators.dtilde_matrix.default: _dtilde_matrix,
        operators.gru.default: _gru,
        operators.mlstm.default: _mlstm,
        operators.mlstm_step.default: _mlstm_step,
        operators.slstm.default: _slstm,
    }


def _dtilde_matrix(*call: Any) -> Any:
    raise ValueError(
        "dtilde_matrix: it cannot be exported to ONNX; call ``causal_forget_matrix(logsigmoid(f)) + i`` with gates "
        "``f (…, S)`` and ``i (…, 1, S)`` instead"
    )


def _check(operation: str, values: Any, cu_seqlens: Any = None) -> ir.DataType:
    """The dtype of the values. Raises for calls that cannot be exported."""
    if values.dtype is ir.DataType.DOUBLE:
        raise TypeError(f"{operation}: float64 is not exported to ONNX; export ``model.float()`` instead")
    if cu_seqlens is not None:
        raise ValueError(
            f"{operation}: `cu_seqlens` cannot be exported to ONNX; export the model for dense sequences, "
            "``(B, S, ...)``, and run sequences of one length together instead"
        )
    return values.dtype


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=values)


def _filled(value: float, *shape: Any) -> Any:
    """An array of one value; its shape is the concatenation of arrays of integers."""
    return op.Expand(op.Constant(value_float=value), op.Concat(*shape, axis=0))


def _size(x: Any, axis: int) -> Any:
    return op.Shape(x, start=axis, end=axis + 1)


@script(default_opset=op)
def _gru_head(
    x: _Float, identity: _Float, weight: _Float, bias: _Float, state: _Float, hidden_size: int, linear_before_reset: int
) -> tuple[_Float, _Float]:
    """``(S, B, 3H)`` → ``(S, 1, B, H)``, ``(1, B, H)``."""
    if op.Size(x) > 0:
        y, last = op.GRU(
            x, identity, weight, bias, None, state, hidden_size=hidden_size, linear_before_reset=linear_before_reset
        )
    else:
        empty, _reset, _candidate = op.Split(x, num_outputs=3, axis=2)
        y = op.Unsqueeze(empty, [1])
        last = op.Identity(state)
    return y, last


def _gru(*call: Any) -> tuple[Any, Any]:
    """`torch_impl.gru`. ONNX's gate z is our f, and its gates are in the order z, r, candidate."""
    x = GRUArguments(*call)
    dtype = _check("gru", x.input, x.cu_seqlens)
    N, H = x.heads, x.input.shape[-1]

    def of_all_heads(array: Any, axis: int) -> Any:
        heads = array.shape[axis]
        array = op.Cast(array, to=_SINGLE)
        return array if heads == N else op.Gather(array, _ints(*(n // (N // heads) for n in range(N))), axis=axis)

    def of_head(array: Any, n: int) -> Any:
        return op.Slice(array, _ints(n), _ints(n + 1), _ints(0))

    W, Wf, Wr = (of_all_heads(each, 0) for each in x.weights)
    weight = op.Transpose(op.Concat(Wf, Wr, W, axis=-1), perm=[0, 2, 1])
    tokens = op.Concat(*(of_all_heads(each, 2) for each in (x.forget_input, x.reset_input, x.input)), axis=-1)
    # The operator multiplies its input by a matrix, here the identity. An infinite element would make others NaN.
    tokens = op.Clip(tokens, -_LARGEST, _LARGEST)
    tokens = op.Transpose(tokens, perm=[2, 1, 0, 3])
    identity = op.Unsqueeze(op.EyeLike(_filled(0.0, _ints(3 * H), _ints(3 * H)), dtype=_SINGLE), _ints(0))
    bias = _filled(0.0, _ints(N), _ints(H))
    if x.recurrent_bias is not None:
        bias = of_all_heads(x.recurrent_bias, 0)
    bias = op.Concat(_filled(0.0, _ints(N), _ints(5 * H)), bias, axis=-1)
    state = _filled(0.0, _size(x.input, 0), _ints(N), _ints(H)) if x.input_state is None else x.input_state
    state = op.Transpose(state, perm=[1, 0, 2])
    options = {"hidden_size": H, "linear_before_reset": int(x.reset_after)}
    heads = []
    for n in range(N):
        of_n = (of_head(array, n) for array in (weight, bias, state))
        heads.append(_gru_head(op.Squeeze(of_head(tokens, n), _ints(0)), identity, *of_n, **options))
    outputs, states = zip(*heads, strict=True)
    y = op.Transpose(op.Concat(*outputs, axis=1), perm=[2, 0, 1, 3])
    return op.Cast(y, to=dtype), op.Transpose(op.Concat(*states, axis=0), perm=[1, 0, 2])


@script(default_opset=op)
def _slstm_steps(
    inputs: _Float,
    weight: _Float,
    exponential: BOOL,
    least: _Float,
    tiny: _Float,
    c: _Float,
    n: _Float,
    m: _Float,
    h: _Float,
) -> tuple[_Float, _Float, _Float, _Float, _Float]:
    """States ``(N, B, H)``; preactivations ``(S, N, B, 4H)`` and weights ``(N, H, 4H)``, in the order z, i, f, o."""

    @graph()
    def step(c, n, m, h, inputs):
        z, i, f, o = op.Split(inputs + op.MatMul(h, weight), num_outputs=4, axis=-1)
        a = op.Where(exponential, f, -op.Softplus(-f))
        m_new = op.Max(a + m, i)
        # With the least number in place of −∞, log weights are −∞ and not NaN.
        unit = op.Max(m_new, least)
        kept = op.Exp((m - unit) + a)
        written = op.Exp(i - unit)
        c_new = kept * c + written * op.Tanh(z)
        n_new = kept * n + written
        # Nothing was written where n is 0. ONNX Runtime's own sigmoid is 0 below −18.
        h_new = op.Where(n_new < tiny, 0.0, (c_new / n_new) / (1.0 + op.Exp(-o)))
        return c_new, n_new, m_new, h_new, op.Identity(h_new)

    if op.Size(inputs) > 0:
        c_last, n_last, m_last, h_last, y = op.Scan(c, n, m, h, inputs, body=step, num_scan_inputs=1)
    else:
        c_last = op.Identity(c)
        n_last = op.Identity(n)
        m_last = op.Identity(m)
        h_last = op.Identity(h)
        y, _i, _f, _o = op.Split(inputs, num_outputs=4, axis=-1)
    return c_last, n_last, m_last, h_last, y


def _slstm(*call: Any) -> tuple[Any, ...]:
    """`torch_impl.slstm`."""
    x = SLSTMArguments(*call)
    dtype = _check("slstm", x.z, x.cu_seqlens)
    inputs, weight = (op.Cast(op.Concat(*each, axis=-1), to=_SINGLE) for each in (x.inputs, x.weights))
    empty = [_filled(none, _size(x.z, 0), op.Shape(x.z, start=2)) for none in (0.0, 0.0, -np.inf, 0.0)]
    given = [x.c0, x.n0, x.m0, x.h0]
    states = [op.Transpose(state, perm=[1, 0, 2]) for state in (empty if x.c0 is None else given)]
    exponential = op.Constant(value=ir.tensor(x.forget_gate == "exp"))
    inputs = op.Transpose(inputs, perm=[1, 2, 0, 3])
    least, tiny = op.Constant(value_float=-_LARGEST), op.Constant(value_float=_TINY)
    *last, y = _slstm_steps(inputs, weight, exponential, least, tiny, *states)
    y = op.Cast(op.Transpose(y, perm=[2, 0, 1, 3]), to=dtype)
    return y, *(op.Transpose(state, perm=[1, 0, 2]) for state in last)


@script(default_opset=op)
def _mlstm_steps(
    memory: _Float, m: _Float, q: _Float, k: _Float, v: _Float, i: _Float, a: _Float, least: _Float
) -> tuple[_Float, _Float, _Float, _Float]:
    """Of a memory ``(B, N, K, V+1)`` with n as last column. The others have four axes too, with S as second in all but
    m; results are ``q·memory`` and m at every step."""

    @graph()
    def step(memory, m, q, k, v, i, a):
        m_new = op.Max(a + m, i)
        unit = op.Max(m_new, least)
        memory_new = op.Exp((m - unit) + a) * memory + (op.Exp(i - unit) * k) * v
        return memory_new, m_new, op.MatMul(q, memory_new), op.Identity(m_new)

    if op.Size(i) > 0:
        memory_last, m_last, y, ms = op.Scan(
            memory, m, q, k, v, i, a, body=step, num_scan_inputs=5, scan_input_axes=[1] * 5, scan_output_axes=[1, 1]
        )
    else:
        memory_last = op.Identity(memory)
        m_last = op.Identity(m)
        y = op.MatMul(q, op.MatMul(k, v))
        ms = op.Identity(i)
    return memory_last, m_last, y, ms


def _mlstm(*call: Any) -> tuple[Any, ...]:
    """`torch_impl.mlstm`."""
    x = MLSTMArguments(*call)
    return _mlstm_sequences(x, _check("mlstm", x.v, x.cu_seqlens))


def _mlstm_step(*call: Any) -> tuple[Any, ...]:
    """`torch_impl.mlstm_step`, as a sequence of one step."""
    x = StepArguments(*call)
    dtype = _check("mlstm_step", x.v)
    tokens = (op.Unsqueeze(part, _ints(1)) for part in (x.q, x.k, x.v, x.i, x.f))
    h, *state = _mlstm_sequences(MLSTMArguments(*tokens, C=x.C, n=x.n, m=x.m, eps=x.eps), dtype)
    return op.Squeeze(h, _ints(1)), *state


def _mlstm_sequences(x: MLSTMArguments, dtype: ir.DataType) -> tuple[Any, ...]:
    """h, in this dtype, and the state. The normaliser needs no steps: it is applied to all of them at once."""
    q, k, v, i, f = (op.Cast(part, to=_SINGLE) for part in (x.q, x.k, x.v, x.i, x.f))
    one = _ints(1)
    a = op.Neg(op.Softplus(op.Neg(f)))
    q = op.Div(q, op.Sqrt(op.Cast(_size(q, 3), to=_SINGLE)))
    v = op.Concat(v, _filled(1.0, op.Shape(v, end=3), one), axis=-1)
    if x.C is None:
        sizes = _size(k, 0), op.Shape(k, start=2), _size(v, 3)
        memory, m = _filled(0.0, *sizes), _filled(0.0, *(_size(k, axis) for axis in (0, 2)), one, one)
    else:
        memory, m = op.Concat(x.C, op.Unsqueeze(x.n, _ints(-1)), axis=-1), op.Unsqueeze(x.m, _ints(-2, -1))
    q, v, k = op.Unsqueeze(q, _ints(-2)), op.Unsqueeze(v, _ints(-2)), op.Unsqueeze(k, _ints(-1))
    i, a = (op.Unsqueeze(part, _ints(-2, -1)) for part in (i, a))
    memory, m, y, ms = _mlstm_steps(memory, m, q, k, v, i, a, op.Constant(value_float=-_LARGEST))
    floor = op.Exp(op.Neg(op.Min(ms, LARGEST_M))) if x.stabilize_correctly else op.Constant(value_float=1.0)
    numerator, denominator = _without_last(y, 4)
    h = op.Div(numerator, op.Add(op.Max(op.Abs(denominator), floor), x.eps))
    C, n = _without_last(memory, 3)
    return op.Cast(op.Squeeze(h, _ints(3)), to=dtype), C, op.Squeeze(n, _ints(3)), op.Squeeze(m, _ints(2, 3))


def _without_last(x: Any, axis: int) -> tuple[Any, Any]:
    """An array without its last element along an axis, and that element."""
    return op.Slice(x, _ints(0), _ints(-1), _ints(axis)), op.Slice(x, _ints(-1), _ints(_LAST), _ints(axis))
