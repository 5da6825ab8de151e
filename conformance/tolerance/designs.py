"""The tolerances of other correct designs: products of TF32 operands, and any correct way to compute."""

from dataclasses import dataclass

from conformance.tolerance.budget import KAPPA, OMEGA, Precision

TF32_ROUNDOFF = 2.0**-11
"""Unit roundoff of TF32: 11 significant bits, including the leading one."""


@dataclass(frozen=True)
class TensorFloat32(Precision):
    """float32 values whose products round their operands to TF32; everything else is float32.

    Operands of products, intermediate results among them, may then be off by `OMEGA` roundoffs of TF32, as 16-bit
    values may be off by `OMEGA` roundoffs of 16 bits.
    """

    @property
    def operand(self) -> float:
        return self.growth + OMEGA * TF32_ROUNDOFF

    @property
    def cancellation(self) -> float:
        return KAPPA * self.roundoff + OMEGA * TF32_ROUNDOFF


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
