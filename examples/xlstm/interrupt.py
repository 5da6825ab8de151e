"""Ctrl-C as a wish to stop: a text ends after the token that is being computed, so that its state can be saved."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C is only noted; a second one raises `KeyboardInterrupt` as usual.

    Yields:
        Whether there was one.
    """
    if threading.current_thread() is not threading.main_thread():
        # Signals reach the main thread alone.
        yield lambda: False
        return
    noted = False
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler

    def note(number: int, frame: object) -> None:
        nonlocal noted
        noted = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        signal.signal(signal.SIGINT, before)
