"""Draws that depend on the seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture import providers


@contextmanager
def the_same_everywhere() -> Iterator[None]:
    """Let Hypothesis draw without the constants that it finds in the source of modules imported so far.

    It mixes them into every twentieth draw: good for tests that compare with literals, and no help to cases that are
    sizes and words. With them one seed drew other cases in another process, and other ones again after an edit of any
    module: a failure could not be run again by its seed. There is no setting for it; a version of Hypothesis without
    this function has nothing to leave out.
    """
    found = getattr(providers, "_get_local_constants", None)
    if found is None:
        yield
        return
    nothing = providers.Constants()
    # What is permitted is kept by type and bounds alone: what was kept with the constants goes, and comes back after.
    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = lambda: nothing  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        providers._get_local_constants = found  # pyright: ignore[reportAttributeAccessIssue]
        providers.CONSTANTS_CACHE.cache.clear()
