"""The tolerance of targets that are not held to gatespec's contract: every correct way to compute has to pass."""

from dataclasses import dataclass

from conformance.budget import Precision
from conformance.tensor_float import TensorFloat32


@dataclass(frozen=True)
class AnyDesign(Precision):
    """The outputs and gradients of an mLSTM may also have the errors of some correct ways to compute them.

    - Weights may be differences of cumulative sums (`oracle._weight_sums`), which are as inexact as the sums.
    - Forget gates' gradients may be running sums of terms that cancel (`oracle._gate_sums`). They are then not 0 across
      a hard reset, and lose digits over long sequences. gatespec's contract rules out both.
    - Products with a small weight may be below the smallest normal number during the computation (`oracle._flushed`).

    gatespec's own packages need neither and are held to `Precision`.
    """


@dataclass(frozen=True)
class TensorFloat32AnyDesign(AnyDesign, TensorFloat32):
    """`AnyDesign` with products of TF32 operands."""
