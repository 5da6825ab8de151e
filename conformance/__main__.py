"""``python -m conformance``, which is also installed as the command ``gatespec``."""

import sys

from conformance.requirements import complaint


def main() -> None:
    """Run the command line; if a package that it needs is missing or hidden, exit with status 2 and a message."""
    missing = complaint("python -m conformance")
    if missing is not None:
        print(f"Error: {missing}", file=sys.stderr)
        raise SystemExit(2)
    try:
        from conformance import _clash  # noqa: F401  # before `reference` is imported
    except ImportError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    from conformance.cli import main as command
    from conformance.streams import keep_writable

    keep_writable()
    command()


if __name__ == "__main__":
    main()
