"""``python -m conformance``, which is also installed as the command ``gatespec``."""

import sys

from conformance.requirements import complaint


def main() -> None:
    """Run the command line, or exit with status 2 and one sentence where a package that it needs is missing."""
    missing = complaint("python -m conformance")
    if missing is not None:
        print(f"Error: {missing}", file=sys.stderr)
        raise SystemExit(2)
    from conformance.cli import main as command

    command()


if __name__ == "__main__":
    main()
