"""Scripts that show one failure: a script and its arrays, saved and run once to make sure that it fails again."""

from conformance.failures._save import save

__all__ = ["save"]
