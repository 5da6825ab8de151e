"""A pytest plugin: Triton's interpreter with the arithmetic of an H100 where that differs from NumPy's.

``TRITON_INTERPRET=1 python -m pytest -p tests.torch.kernels.hopper tests/torch/kernels/test_hopper_arithmetic.py``

- A product reads float32 operands as TF32: it drops their low 13 bits.
- `tl.maximum` and `tl.minimum` drop a NaN (``max.f32``) unless they are told to pass it on.
- A new NaN has all bits set but the sign. Its bits, moved to integers, are not those of NumPy's NaN.
- exp is 2^x of a rounded product with log₂e. It is off by up to 2 ulp, as 2^x and a division are.
"""

import os
from typing import Any

import numpy as np

assert os.environ.get("TRITON_INTERPRET") == "1", "it changes Triton's interpreter: set TRITON_INTERPRET=1"

from triton.runtime import interpreter  # noqa: E402  # pyright: ignore[reportMissingImports]

Builder: Any = interpreter.InterpreterBuilder
LOG2_E = np.float32(1.4426950408889634)
NAN = np.uint32(0x7FFFFFFF)
_divide, _dot, _bitcast = Builder.create_fdiv, Builder.create_dot, Builder.create_bitcast


def approximate(x: np.ndarray) -> np.ndarray:
    """The numbers, each off by up to 2 ulp: by a hash of itself, so that the same call gives the same bits."""
    if x.dtype != np.float32:
        return x
    hashed = (np.ascontiguousarray(x).view(np.uint32) * np.uint32(2654435761)) >> np.uint32(30)
    return np.where(np.isfinite(x), x * (1 + (hashed.astype(np.float32) - 1) * np.float32(2.0**-23)), x)


def exp(x: np.ndarray) -> np.ndarray:
    return approximate(np.exp2(x * LOG2_E)) if x.dtype == np.float32 else np.exp(x)


def truncated(x: np.ndarray) -> np.ndarray:
    """float32 numbers as tensor cores read them."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def fdiv(self, x, y):
    result = _divide(self, x, y)
    result.data = approximate(result.data)
    return result


def dot(self, a, b, d, precision, *rest):
    # A product that Triton splits into three (TF32x3) is exact to float32.
    if str(precision).endswith("TF32") and a.data.dtype == np.float32:
        a, b = (interpreter.TensorHandle(truncated(x.data), x.dtype) for x in (a, b))
    return _dot(self, a, b, d, precision, *rest)


def bitcast(self, x, to):
    if x.data.dtype == np.float32:
        bits = np.where(np.isnan(x.data), NAN, np.ascontiguousarray(x.data).view(np.uint32))
        x = interpreter.TensorHandle(bits.view(np.float32), x.dtype)
    return _bitcast(self, x, to)


Builder.create_exp = lambda self, x: self.unary_op(x, exp)
Builder.create_exp2 = lambda self, x: self.unary_op(x, lambda of: approximate(np.exp2(of)))
Builder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)
Builder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
Builder.create_fdiv = fdiv
Builder.create_dot = dot
Builder.create_bitcast = bitcast
