"""Arrays whose elements are more than 2³¹ elements apart, in a buffer that is almost entirely unused.

If a kernel multiplies an index by a stride in 32 bits, the product wraps around there. It then points as far below the
array as it should point above it. That is memory of the same buffer, so that the kernel reads a wrong value and the
process survives to report it.
"""

import mmap
import sys
from dataclasses import dataclass

BEYOND = 2**31
"""The first offset that a signed 32-bit integer does not hold."""
_GRAIN = 2**20
"""Strides are multiples of this; arrays share the elements between two multiples."""
_MOST = 48
"""The longest axis that is laid out in this way."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""The flag has a name in Python from 3.13 on; its value on Linux is older."""


def axis_of(layout: str) -> int | None:
    """The axis whose elements the layout ``far 0`` (or another number) sets apart; None for other layouts."""
    return int(layout.removeprefix("far ")) if layout.startswith("far ") else None


def bytes_needed(itemsize: int) -> int:
    """The size of a buffer for arrays with at most ``itemsize`` bytes per element."""
    return (2 * BEYOND + (_MOST + 1) * _GRAIN) * itemsize


@dataclass(frozen=True)
class Place:
    """The location of an array: the offset of its first element in the buffer and its strides, both in elements."""

    offset: int
    strides: tuple[int, ...]


class FarBuffer:
    """Gives every array of a call its own place in one buffer.

    Args:
        itemsize: bytes of the widest elements.
    """

    def __init__(self, itemsize: int):
        self.itemsize = itemsize
        self._used = 0

    def place(self, shape: tuple[int, ...], axis: int, itemsize: int) -> Place | None:
        """A place in which the last element along ``axis`` is at least 2³¹ elements after the first.

        Returns:
            The place; None if the array has fewer than two elements along that axis, or too many.
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
        # Places are counted for the widest elements, so that no two arrays of a call overlap, whatever their elements.
        offset = BEYOND * self.itemsize // itemsize + self._used * self.itemsize // itemsize
        self._used += block
        strides.insert(axis, -(-BEYOND // (shape[axis] - 1) // _GRAIN) * _GRAIN)
        return Place(offset, tuple(strides))


def reserved(size: int) -> mmap.mmap:
    """Reserve ``size`` bytes of zeros, of which the operating system provides only those that are touched.

    Raises:
        OSError: the operating system does not even promise them.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # With pages of 2 MiB, touching one element would provide the whole page.
    return memory


def why_no_memory(size: int) -> str | None:
    """The reason why this many bytes cannot be reserved here; None if they can."""
    if not _NO_RESERVE:
        return "this operating system reserves no memory without providing it"
    try:
        reserved(size).close()
    except OSError as error:
        return f"{size / 2**30:.0f} GiB of address space cannot be reserved here ({error.strerror})"
    return None
