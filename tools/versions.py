"""Print the versions that the project is tried with, and the newest that the package index has.

    tools/versions.py            a table; exit status 0
    tools/versions.py --check    exit status 1 if the index has a newer version than the newest that was tried

``constraints/oldest.txt`` and ``constraints/newest.txt`` hold the two ends of what is supported; `make matrix` runs
both, and reports newer versions. The other files of ``constraints/`` are what `make test` installs for one
version of Python. Imports the standard library alone.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("torch", "triton", "jax", "flax", "numpy", "hypothesis")
COLUMNS = ("package", "oldest", "make test", "newest tried", "newest on the index")


def pinned(path: Path) -> dict[str, str]:
    """Package → version of a constraints file; ``python`` is that of its first line, ``# Python 3.12: …``."""
    lines = path.read_text().splitlines()
    found = dict(line.lower().split("==") for line in lines if "==" in line and not line.startswith("#"))
    python = re.match(r"# .*?Python (3\.\d+)", lines[0])
    return found | ({"python": python[1]} if python else {})


def newest(name: str) -> str:
    """The newest version of a package for the running Python; ``?`` if no index is reachable."""
    done = subprocess.run([sys.executable, "-m", "pip", "index", "versions", name], capture_output=True, text=True)
    found = re.search(r"^\S+ \(([^)+]+)", done.stdout, re.MULTILINE)
    return found[1] if found else "?"


def newest_python() -> str:
    """The newest Python on this machine, because pip has no list of Pythons."""
    versions = [f"3.{minor}" for minor in range(30, 10, -1)]
    done = subprocess.run(["bash", "tools/find_python.sh", *versions], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return "?"
    code = "import sys; print('%d.%d (here)' % sys.version_info[:2])"
    return subprocess.run([done.stdout.strip(), "-c", code], capture_output=True, text=True).stdout.strip()


def rows(constraints: Path, index: Callable[[str], str], python: Callable[[], str]) -> list[tuple[str, ...]]:
    """A row for Python and one for every package of `NAMES`, in the order of `COLUMNS`."""
    oldest, last = (pinned(constraints / f"{end}.txt") for end in ("oldest", "newest"))
    daily = [pinned(path) for path in sorted(constraints.glob("py3*.txt"))]

    def used(name: str) -> str:
        return ", ".join(dict.fromkeys(versions[name] for versions in daily if name in versions))

    found = [("python", oldest["python"], used("python"), last["python"], python())]
    return found + [(name, oldest[name], used(name), last[name], index(name)) for name in NAMES]


def numbers(version: str) -> tuple[int, ...]:
    """``2.15.0`` as (2, 15, 0)."""
    return tuple(map(int, re.findall(r"\d+", version)))


def moved_on(found: list[tuple[str, ...]]) -> list[str]:
    """The packages with a newer version on the index than the newest that was tried."""
    return [row[0] for row in found if row[0] != "python" and numbers(row[-1]) > numbers(row[-2])]


def table(found: list[tuple[str, ...]]) -> str:
    """The rows as a text table with headings."""
    lines = [COLUMNS, *found]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with status 1 if the index has a newer version")
    arguments = parser.parse_args()
    found = rows(ROOT / "constraints", newest, newest_python)
    print(table(found))
    if newer := moved_on(found):
        print(f"newer than what was tried: {', '.join(newer)}; `make matrix END=newest` tries them")
        raise SystemExit(1 if arguments.check else 0)


if __name__ == "__main__":
    main()
