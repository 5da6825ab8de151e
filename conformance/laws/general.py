"""The laws that all operations share."""

from conformance.laws import _general_arrays, _general_device, _general_transforms
from conformance.operations import OPERATIONS

for _operation in OPERATIONS.values():
    for _family in (_general_arrays, _general_transforms, _general_device):
        _family.register(_operation)
