"""Exceptions that a target raises: which are its own, and their texts."""

import signal


def raised_by_target() -> tuple[type[BaseException], ...]:
    """The exceptions of a target's call; an interrupt is its own if those of the terminal are ignored."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return (BaseException,) if ignored else (Exception, SystemExit, GeneratorExit)


def text_of(error: BaseException) -> str:
    """The text of an exception; a target's own class may raise an exception in place of one."""
    try:
        return str(error)
    except Exception as other:
        return f"(its text cannot be shown: {type(other).__name__})"
