"""The command ``gatespec``, also ``python -m conformance``, which a directory of that name would hide."""

import sys
import traceback

from conformance import __version__
from conformance.command.requirements import HELP, complaint, lack


def main() -> None:
    """Run the command line; if a package that it needs is missing or hidden, exit with status 2 and a message.

    Without the packages of the extra there are still ``--version`` and ``--help``, which says how to get them.

    Where a disk is full, output is dropped, a run still writes its reports, and the status is 2 instead of 0.
    """
    missing = lack()
    if missing is not None:
        given = sys.argv[1:2]
        if given == ["--version"]:
            print(f"gatespec, version {__version__}")
        elif given in ([], ["-h"], ["--help"]):
            print(HELP.format(lack=missing), end="")
        else:
            print(f"Error: {complaint('gatespec')}", file=sys.stderr)
            raise SystemExit(2)
        return
    try:
        import _gatespec_clash  # noqa: F401  # before `reference` is imported
    except ImportError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    from conformance.base.streams import keep_writable
    from conformance.cli import main as command

    why_lost = keep_writable()
    try:
        command()
    except Exception:
        # Python would exit with 1, which says that a law was broken.
        traceback.print_exc()
        print("Error: the suite itself failed, not the target; please report it", file=sys.stderr)
        raise SystemExit(3) from None
    except SystemExit as ended:
        why = why_lost()
        if why is None:
            raise
        print(f"Error: standard output is incomplete: {why}", file=sys.stderr)
        # Not 0, because nobody can read what was judged; not 1 either, unless a law was broken.
        raise SystemExit(ended.code or 2) from None


if __name__ == "__main__":
    main()
