"""Named arrays as safetensors and back, bfloat16 included where NumPy has none.

Files are read by the library, which checks them. They are written here: the library's writer has no bfloat16 for NumPy,
and the same arrays shall give the same bytes whatever its version.
"""

import json
from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError, deserialize

from conformance.dtypes import Array

CODES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32", "int64": "I64"}
"""What safetensors calls a dtype."""

_STORED = {"F64": "<f8", "F32": "<f4", "BF16": "<u2", "F16": "<f2", "I32": "<i4", "I64": "<i8"}
_NAMES = {code: name for name, code in CODES.items()}


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a safetensors file, the widest dtype first and then by name, so that every array is aligned."""
    header, parts, end = {}, [], 0
    for name in sorted(arrays, key=lambda name: (-_itemsize(arrays[name]), name)):
        array = arrays[name]
        parts.append(_stored(array).tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {"dtype": CODES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))


def unpack(data: bytes) -> dict[str, Array]:
    """The arrays of a safetensors file.

    Raises:
        ValueError: it is no such file, or holds an array of a dtype that no operation takes or gives.
    """
    try:
        found = deserialize(data)
    except SafetensorError as error:
        raise ValueError(f"is no safetensors file ({error})") from error
    arrays = {}
    for name, tensor in sorted(found):
        code = str(tensor["dtype"])
        if code not in _STORED:
            raise ValueError(f"holds `{name}` in {code}; expected one of {', '.join(_STORED)}")
        values = np.frombuffer(tensor["data"], _STORED[code]).reshape(tensor["shape"])
        arrays[name] = Array(_values(values, code), _NAMES[code])
    return arrays


def _itemsize(array: Array) -> int:
    return np.dtype(_STORED[CODES[array.dtype]]).itemsize


def _stored(array: Array) -> np.ndarray:
    code = CODES[array.dtype]
    if code == "BF16":
        # The values are exactly representable: the lower half of the float32 is empty, but for a NaN's payload.
        with np.errstate(invalid="ignore"):
            bits = array.values.astype("<f4").view("<u4") >> 16
        return np.where(np.isnan(array.values), 0x7FC0, bits).astype("<u2")
    return array.values.astype(_STORED[code])


def _values(stored: np.ndarray, code: str) -> np.ndarray:
    if code == "BF16":
        return (stored.astype("<u4") << 16).view("<f4").astype(np.float64)
    return stored.astype(np.int64 if code == "I64" else np.int32 if code == "I32" else np.float64)
