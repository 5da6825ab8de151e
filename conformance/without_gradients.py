"""A target that is never asked for a gradient."""

import copy
from functools import partial
from typing import TypeVar

from conformance.implementation import Implementation

Target = TypeVar("Target", bound=Implementation)


def without_gradients(implementation: Target, reason: str) -> Target:
    """Return the same target, of which every operation is said to have no gradient.

    Args:
        reason: why, in words.
    """
    other = copy.copy(implementation)
    # Its own methods ask these, too.
    other.no_gradient = lambda operation: reason
    other.lacks = partial(_lacks, implementation, reason)
    return other


def _lacks(implementation: Implementation, reason: str, feature: str) -> str | None:
    return reason if "gradient" in feature or "derivative" in feature else implementation.lacks(feature)
