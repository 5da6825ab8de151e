"""The laws that operations share, registered for each as its record says."""

from conformance.laws import _general_arrays, _general_backends, _general_device, _general_transforms
from conformance.operations import OPERATIONS

_FAMILIES = {
    "arrays": _general_arrays.register,
    "transforms": _general_transforms.register,
    "device": _general_device.register,
    "backends": _general_backends.register,
}

for _operation in OPERATIONS.values():
    for _family in _operation.shared_laws:
        _FAMILIES[_family](_operation)
