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
    """What is computed in ways that are right, but lose digits which gatespec's contract keeps (`rows.foreign`).

    gatespec's own packages may use none of them and are held to `Precision`.
    """


@dataclass(frozen=True)
class TensorFloat32AnyDesign(AnyDesign, TensorFloat32):
    """`AnyDesign` with products of TF32 operands."""
