"""The tolerance of products that are summed over many features."""

import math
from dataclasses import dataclass, fields
from functools import cache

from conformance.tolerance.budget import KAPPA, Precision

FEW_TERMS = 16
"""Number of terms up to which a sum is off by no more than `KAPPA` roundoffs of its magnitude."""


def of_sums(precision: Precision, terms: int) -> Precision:
    """The precision of a computation whose products are summed over so many features.

    Added one after the other, n terms are off by √n/4 roundoffs of their magnitude in the root mean square.
    """
    if terms <= FEW_TERMS:
        return precision
    given = {field.name: getattr(precision, field.name) for field in fields(precision)}
    return _of_many_terms(type(precision))(**given, terms=terms)


@cache
def _of_many_terms(kind: type) -> type:
    @dataclass(frozen=True)
    class ManyTerms(kind):
        terms: int = FEW_TERMS

        @property
        def cancellation(self) -> float:
            return super().cancellation + KAPPA * self.roundoff * (math.sqrt(self.terms / FEW_TERMS) - 1)

    return ManyTerms
