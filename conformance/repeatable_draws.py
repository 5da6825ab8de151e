"""Draws that depend on the seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import hypothesis
from hypothesis.internal.conjecture import providers


def missing() -> list[str]:
    """The names in Hypothesis's module of providers that `the_same_everywhere` needs and does not find."""
    return [name for name in ("_get_local_constants", "Constants", "CONSTANTS_CACHE") if not hasattr(providers, name)]


@contextmanager
def the_same_everywhere() -> Iterator[None]:
    """Let Hypothesis draw without the constants that it finds in the source of modules imported so far.

    It mixes them into every twentieth draw: good for tests that compare with literals, and no help to cases that are
    sizes and words. With them one seed drew other cases in another process, and other ones again after an edit of any
    module: a failure could not be run again by its seed. There is no setting for it, and what is replaced is private:
    hence the range of versions in ``pyproject.toml``.

    Raises:
        RuntimeError: this version of Hypothesis does not have what is replaced.
    """
    if missing():
        raise RuntimeError(
            f"Hypothesis {hypothesis.__version__} lacks {', '.join(missing())} in {providers.__name__}, so that "
            "cases would depend on what was imported; install a version from the range in gatespec's pyproject.toml"
        )
    found = providers._get_local_constants
    nothing = providers.Constants()
    # What is permitted is kept by type and bounds alone: what was kept with the constants goes, and comes back after.
    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = lambda: nothing  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        providers._get_local_constants = found  # pyright: ignore[reportAttributeAccessIssue]
        providers.CONSTANTS_CACHE.cache.clear()
