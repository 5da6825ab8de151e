"""The packages that the suite needs in addition to NumPy, and what to say where one of them is missing."""

from importlib.util import find_spec

PACKAGES = ("click", "hypothesis", "jinja2", "markupsafe", "msgspec", "rich", "safetensors")
"""What the extra ``conformance`` installs; pytest comes with it too, but only the laws as tests need that."""


def complaint(program: str) -> str | None:
    """A sentence that says what `program` lacks and how to install it; None where nothing is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{program} needs {', '.join(missing)}, which {verb} not installed: pip install 'gatespec[conformance]'"
