"""Named arrays to safetensors and back, including bfloat16 where NumPy does not have it.

The library reads the files and checks them. They are written here, because the library cannot write bfloat16 from NumPy
and because the same arrays must give the same bytes with any version of it.
"""

import json
from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError, deserialize

from conformance.base.dtypes import Array

CODES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32", "int64": "I64"}
"""The names of dtypes in safetensors."""

_STORED = {"F64": "<f8", "F32": "<f4", "BF16": "<u2", "F16": "<f2", "I32": "<i4", "I64": "<i8"}
_NAMES = {code: name for name, code in CODES.items()}


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a safetensors file, ordered by dtype, widest first, then by name, so that all arrays are aligned."""
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
        ValueError: it is not such a file, or holds an array of a dtype that no operation takes or returns.
    """
    try:
        found = deserialize(data)
    except SafetensorError as error:
        raise ValueError(f"is not a safetensors file ({error})") from error
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
        # The values are exactly representable: the lower half of the float32 is empty, except for a NaN's payload.
        with np.errstate(invalid="ignore"):
            bits = array.values.astype("<f4").view("<u4") >> 16
        return np.where(np.isnan(array.values), 0x7FC0, bits).astype("<u2")
    return array.values.astype(_STORED[code])


def _values(stored: np.ndarray, code: str) -> np.ndarray:
    if code == "BF16":
        return (stored.astype("<u4") << 16).view("<f4").astype(np.float64)
    return stored.astype(np.int64 if code == "I64" else np.int32 if code == "I32" else np.float64)
