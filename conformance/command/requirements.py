"""The packages that the suite needs in addition to NumPy, and what to say where one is missing."""

from importlib.util import find_spec

PACKAGES = ("click", "hypothesis", "jinja2", "msgspec", "rich", "safetensors")
"""The packages of the extra ``conformance``; it includes pytest too, but only the laws as tests need that."""

EXTRA = 'the extra "conformance" has what it needs; from a checkout: pip install ".[conformance]"'

HELP = f"""\
Usage: gatespec [OPTIONS] COMMAND [ARGS]...

  The laws of gatespec's operations, and the suite that tries to break them.

  `reference` works as it is. This command has only these two options here,
  because {{lack}}:
  {EXTRA}

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.
"""


def lack() -> str | None:
    """A clause that says which packages are not installed; None if all are."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed" if missing else None


def complaint(program: str) -> str | None:
    """A sentence that says what `program` lacks and which extra has it; None if nothing is missing."""
    missing = lack()
    return missing and f"{program} cannot run, because {missing}: {EXTRA}"
