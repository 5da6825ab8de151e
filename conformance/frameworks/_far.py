"""Arrays whose elements lie more than 2³¹ elements apart, in memory of which next to nothing is used.

An index that a kernel multiplies by a stride in 32 bits wraps round there. It then points as far below the array as it
should point above it, which is memory of the same buffer: what it reads is wrong, and the process lives to say so.
"""

import mmap
import sys
from dataclasses import dataclass

BEYOND = 2**31
"""The first offset that a signed 32-bit integer does not hold."""
_GRAIN = 2**20
"""Strides are multiples of it, and arrays share the elements between two of them."""
_MOST = 48
"""The longest axis that is laid out so."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Python has the name of the flag from 3.13 on; its value on Linux is older."""


def axis_of(layout: str) -> int | None:
    """The axis whose elements a layout of the name ``far 0`` sets apart, None for other layouts."""
    return int(layout.removeprefix("far ")) if layout.startswith("far ") else None


def bytes_needed(itemsize: int) -> int:
    """The size of a buffer for arrays of at most so many bytes an element."""
    return (2 * BEYOND + (_MOST + 1) * _GRAIN) * itemsize


@dataclass(frozen=True)
class Place:
    """Where an array lies: the offset of its first element in the buffer, and its strides, both in elements."""

    offset: int
    strides: tuple[int, ...]


class FarBuffer:
    """Gives every array of a call a place of its own in one buffer.

    Args:
        itemsize: of the widest elements.
    """

    def __init__(self, itemsize: int):
        self.itemsize = itemsize
        self._used = 0

    def place(self, shape: tuple[int, ...], axis: int, itemsize: int) -> Place | None:
        """A place where the last element along ``axis`` lies 2³¹ elements or more from the first.

        Returns:
            None where the array has no two elements along that axis, or too many.
        """
        if axis >= len(shape) or not 2 <= shape[axis] <= _MOST or 0 in shape:
            return None
        inner = tuple(size for at, size in enumerate(shape) if at != axis)
        strides, block = [], 1
        for size in reversed(inner):
            strides.insert(0, block)
            block *= size
        if (self._used + block) * self.itemsize > _GRAIN:
            self._used = 0  # The arrays of earlier calls are gone.
        if block * self.itemsize > _GRAIN:
            return None
        # In elements of any width, no two arrays of a call overlap: the widest are counted.
        offset = BEYOND * self.itemsize // itemsize + self._used * self.itemsize // itemsize
        self._used += block
        strides.insert(axis, -(-BEYOND // (shape[axis] - 1) // _GRAIN) * _GRAIN)
        return Place(offset, tuple(strides))


def reserved(size: int) -> mmap.mmap:
    """So many bytes of zeros, of which the operating system provides those that are touched.

    Raises:
        OSError: it does not even promise them.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # One element in a page of 2 MiB would provide all of it.
    return memory


def why_no_memory(size: int) -> str | None:
    """Why so many bytes cannot be reserved here, None where they can."""
    if not _NO_RESERVE:
        return "this operating system reserves no memory without providing it"
    try:
        reserved(size).close()
    except OSError as error:
        return f"{size / 2**30:.0f} GiB of address space cannot be reserved here ({error.strerror})"
    return None
