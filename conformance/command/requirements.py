"""The packages that the suite needs in addition to NumPy, and the message for a missing one."""

from importlib.util import find_spec

PACKAGES = ("click", "hypothesis", "jinja2", "msgspec", "rich", "safetensors")
"""The packages of the extra ``conformance``; it includes pytest too, but only the laws as tests need that."""


def complaint(program: str) -> str | None:
    """A sentence that says what `program` lacks and how to install it; None if nothing is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{program} needs {', '.join(missing)}, which {verb} not installed: pip install 'gatespec[conformance]'"
