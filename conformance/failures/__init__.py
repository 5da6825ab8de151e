"""Scripts that show one failure: a script and its arrays, saved and run once to make sure that it fails again."""

from typing import Any


def save(*args: Any, **options: Any) -> Any:
    """See `conformance.failures._save.save`, which is imported where there is a failure to save."""
    from conformance.failures._save import save

    return save(*args, **options)
