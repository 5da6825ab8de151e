"""One file in the safetensors format: its header, its tensors as views of the mapped file, and writing it.

The header is eight bytes with its length and a JSON object that gives dtype, shape and byte offsets of every tensor;
the data follows without gaps. The package `safetensors` writes a file from all its tensors at once. Here only one
tensor at a time is in memory, and a header can be written again unchanged.
"""

import contextlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from examples.xlstm.tensors import CheckpointError

_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_LENGTH = 8
_ALIGNMENT = 64
"""Alignment in bytes. On a CPU, JAX shares the memory of a NumPy array with this alignment, and copies any other."""
_LONGEST = 100_000_000
"""Maximum number of bytes of a header in this format."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor: its dtype's name, its shape, and its position in the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a file.

    Attributes:
        text: the JSON as bytes, padding included.
        entries: the tensors in the order of their data.
        metadata: the file's own strings.
    """

    text: bytes
    entries: dict[str, Entry]
    metadata: dict[str, str]

    @property
    def data_start(self) -> int:
        return _LENGTH + len(self.text)

    @property
    def file_size(self) -> int:
        return self.data_start + max((entry.end for entry in self.entries.values()), default=0)


def make_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> Header:
    """A header for tensors, name → (dtype, shape), in the order in which the package `safetensors` writes them."""
    entries: dict[str, Entry] = {}
    document: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in sorted(tensors, key=lambda each: (-_BYTES[tensors[each][0]], each)):
        dtype, shape = tensors[name]
        end = start + math.prod(shape) * _BYTES[dtype]
        entries[name] = Entry(dtype=dtype, shape=shape, start=start, end=end)
        document[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return Header(text=text + b" " * (-len(text) % 8), entries=entries, metadata=dict(metadata))


def read_header(path: Path) -> Header:
    """Read and check the header of a file.

    Raises:
        CheckpointError: the file is truncated, or its header is malformed or does not fit the length of the file.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or length > min(size - _LENGTH, _LONGEST):
            raise CheckpointError(f"{path.name}: {size} bytes; its header alone needs {_LENGTH + length}")
        text = file.read(length)
    try:
        document = json.loads(text)
        metadata = {str(key): str(value) for key, value in document.pop("__metadata__", {}).items()}
        found = {
            str(name): Entry(
                dtype=_DTYPES.get(each["dtype"], str(each["dtype"])),
                shape=tuple(int(length) for length in each["shape"]),
                start=int(each["data_offsets"][0]),
                end=int(each["data_offsets"][1]),
            )
            for name, each in document.items()
        }
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: its header is malformed: {error!r}") from None
    header = Header(text=text, entries=dict(sorted(found.items(), key=lambda pair: pair[1].start)), metadata=metadata)
    _check_offsets(path.name, header, size)
    return header


def _check_offsets(name: str, header: Header, size: int) -> None:
    end = 0
    for tensor, entry in header.entries.items():
        if entry.dtype not in _BYTES:
            raise CheckpointError(f"{name}: `{tensor}` has dtype {entry.dtype}; expected one of {', '.join(_DTYPES)}")
        length = math.prod(entry.shape) * _BYTES[entry.dtype]
        if entry.start != end or entry.end - entry.start != length or min(entry.shape, default=0) < 0:
            received = f"lies at bytes {entry.start} to {entry.end}"
            raise CheckpointError(f"{name}: `{tensor}` {received}; expected {end} to {end + length}")
        end = entry.end
    if header.file_size != size:
        raise CheckpointError(f"{name}: {size} bytes; its header describes {header.file_size}")


class MappedShard:
    """The tensors of a file as arrays in its mapped memory.

    The mapping is private: writing to an array changes it in memory and never in the file.
    """

    def __init__(self, path: Path) -> None:
        self.header = read_header(path)
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if len(self._memory) != self.header.file_size:
            raise CheckpointError(f"{path.name}: changed while it was read")

    def array(self, name: str) -> np.ndarray:
        """A writable view of a tensor. Its pages are read from the disk when they are first used."""
        entry = self.header.entries[name]
        start = self.header.data_start + entry.start
        flat = np.frombuffer(self._memory, np.uint8, entry.end - entry.start, start)
        return flat.view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    def moved(self, name: str) -> np.ndarray:
        """A copy of a tensor, aligned for JAX; the mapped memory is released.

        Values that were written to the view of the tensor are lost.
        """
        view = self.array(name)
        room = np.empty(view.nbytes + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        copy = room[start : start + view.nbytes].view(view.dtype).reshape(view.shape)
        copy[...] = view
        self._release(name)
        return copy

    def _release(self, name: str) -> None:
        entry = self.header.entries[name]
        page = mmap.PAGESIZE
        start = -(-(self.header.data_start + entry.start) // page) * page
        end = (self.header.data_start + entry.end) // page * page
        if start < end and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)


def write_shard(path: Path, header: Header, array: Callable[[str], np.ndarray]) -> None:
    """Write a file, tensor by tensor.

    An existing file is replaced when the new one is complete, and is unchanged if anything fails.

    Raises:
        CheckpointError: an array does not have the shape and dtype that the header gives.
    """
    with replacing(path) as file:
        file.write(len(header.text).to_bytes(_LENGTH, "little") + header.text)
        for name, entry in header.entries.items():
            x = array(name)
            if tuple(x.shape) != entry.shape or str(x.dtype) != entry.dtype:
                received = f"{x.dtype}{list(x.shape)}"
                raise CheckpointError(f"{path.name}: `{name}` is {received}; expected {entry.dtype}{list(entry.shape)}")
            file.write(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends without an error."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name; that of bfloat16 is from `ml_dtypes`."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
