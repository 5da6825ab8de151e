"""The tolerance of float32 calls whose products may take their operands as TF32."""

from dataclasses import dataclass

from conformance.budget import KAPPA, OMEGA, Precision

TF32_ROUNDOFF = 2.0**-11
"""Unit roundoff of TF32: 11 significant bits, the leading one included."""


@dataclass(frozen=True)
class TensorFloat32(Precision):
    """float32 values whose operands of products are rounded to TF32; everything else is float32.

    An operand, and an intermediate that becomes one, may then be off by `OMEGA` roundoffs of TF32, as those of 16-bit
    values may be off by roundoffs of theirs.
    """

    @property
    def operand(self) -> float:
        return self.growth + OMEGA * TF32_ROUNDOFF

    @property
    def cancellation(self) -> float:
        return KAPPA * self.roundoff + OMEGA * TF32_ROUNDOFF
