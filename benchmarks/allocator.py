"""The memory allocator under a timing on a CPU: memory that was freed stays with the process."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of glibc's ``mallopt`` (``malloc.h``)."""


def keep_freed_memory() -> bool:
    """Make the C allocator keep freed memory of any size for the next call, as a training run's own pool would.

    glibc gives a block of 32 MiB or more back to the system when it is freed, and smaller ones now and then. The next
    call then waits for the system to hand it zeroed pages again: about 10 ms for 56 MB, depending on what ran before.
    This setting holds for the whole process, and so for all contenders alike.

    Returns:
        Whether the allocator has these settings; one that is not glibc's is left as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
