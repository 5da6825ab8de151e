"""The features of an operation's calls, by the name under which its laws stand."""

from conformance.diagnosis.features import Feature
from conformance.operations import OPERATIONS

_FEATURES = {operation.about: operation.features for operation in OPERATIONS.values()}


def features_of(op: str) -> tuple[Feature, ...]:
    """The features of an operation's calls; none where its calls are not described by features."""
    return _FEATURES.get(op, ())
