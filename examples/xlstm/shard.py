"""One file in the safetensors format: its header, its tensors as views of the mapped file, and writing it.

The header is eight bytes with its length and a JSON object that gives dtype, shape and byte offsets of every tensor;
the data follows without gaps. The package `safetensors` writes a file from all its tensors at once. Here only one
tensor at a time is in memory, and a header can be written again unchanged.
"""

import contextlib
import fcntl
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import safetensors

from examples.xlstm.config import read_json
from examples.xlstm.tensors import CheckpointError

_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_LENGTH = 8
_ALIGNMENT = 64
"""Alignment in bytes. On a CPU, JAX shares the memory of a NumPy array with this alignment, and copies any other."""


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
    """Read the header of a file. The package `safetensors` checks it, so what it refuses is refused here.

    Raises:
        CheckpointError: the file is not a complete safetensors file, its header has a key twice, or a tensor has a
            dtype that no model here has.
        OSError: the file cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            shards = {name: file.get_slice(name) for name in file.keys()}
            kinds = {name: (shard.get_dtype(), tuple(shard.get_shape())) for name, shard in shards.items()}
        with path.open("rb") as file:
            text = file.read(int.from_bytes(file.read(_LENGTH), "little"))
        document = read_json(text)
        spans = {name: document[name]["data_offsets"] for name in kinds}
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: not a complete safetensors file: {error}") from None
    for name, (code, _) in kinds.items():
        if code not in _DTYPES:
            raise CheckpointError(f"{path.name}: `{name}` has dtype {code}; expected one of {', '.join(_DTYPES)}")
    entries = {
        name: Entry(dtype=_DTYPES[kinds[name][0]], shape=kinds[name][1], start=start, end=end)
        for name, (start, end) in sorted(spans.items(), key=lambda pair: pair[1])
    }
    return Header(text=text, entries=entries, metadata=metadata)


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
        with _opened(path.parent) as directory:
            os.fsync(directory)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keep other processes and threads from writing a checkpoint to a directory; the lock ends with the process.

    Raises:
        CheckpointError: another one is writing to it.
    """
    with _opened(directory) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{directory}: another process or thread is writing to it") from None
        yield


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name; that of bfloat16 is from `ml_dtypes`."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
