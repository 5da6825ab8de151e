"""The tolerance of targets whose forget gates' gradients may be sums of terms that cancel."""

from dataclasses import dataclass

from conformance.budget import Precision
from conformance.tensor_float import TensorFloat32


@dataclass(frozen=True)
class RunningSums(Precision):
    """The forget gates' gradients of an mLSTM may be off by the roundoff of running sums (`oracle._gate_sums`).

    They are then no exact 0 across a hard reset, and lose digits over long sequences. gatespec's contract rules both
    out, so its own packages are held to `Precision`.
    """


@dataclass(frozen=True)
class TensorFloat32RunningSums(RunningSums, TensorFloat32):
    """`RunningSums`, with products of TF32 operands."""
