"""Draws that depend only on the seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import hypothesis
from hypothesis.internal.conjecture import providers


def missing() -> list[str]:
    """The names that `the_same_everywhere` needs and does not find in Hypothesis's module of providers."""
    return [name for name in ("_get_local_constants", "Constants", "CONSTANTS_CACHE") if not hasattr(providers, name)]


@contextmanager
def the_same_everywhere() -> Iterator[None]:
    """Make Hypothesis draw without the constants that it finds in the source of the modules imported so far.

    It mixes them into every twentieth draw. That is good for tests that compare with literals, but not for cases that
    are sizes and words. With them, the same seed draws different cases in another process, or after an edit of any
    module, and a failure cannot be run again by its seed. There is no setting for this, and the part that is replaced
    is private: hence the range of versions in ``pyproject.toml``.

    Raises:
        RuntimeError: this version of Hypothesis does not have the part that is replaced.
    """
    if missing():
        raise RuntimeError(
            f"Hypothesis {hypothesis.__version__} lacks {', '.join(missing())} in {providers.__name__}, so that "
            "cases would depend on what was imported; install a version from the range in gatespec's pyproject.toml"
        )
    found = providers._get_local_constants
    nothing = providers.Constants()
    # Permitted constants are cached by type and bounds only: entries made with the constants are removed and restored.
    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = lambda: nothing  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        providers._get_local_constants = found  # pyright: ignore[reportAttributeAccessIssue]
        providers.CONSTANTS_CACHE.cache.clear()
