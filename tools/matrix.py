"""Run the tests that depend on the frameworks' versions, with the oldest and with the newest supported versions.

    tools/matrix.py                                     both ends, all parts
    tools/matrix.py --end newest --part kernels         one of them
    tools/matrix.py --dry-run                           the commands, which are not run

An end is an environment: ``.venv-oldest`` has the exact versions of ``constraints/oldest.txt``, ``.venv-newest`` the
newest that pip finds, without any constraint, as a user gets them. The parts: ``kernels`` (Triton's kernels under its
interpreter, and compiled ahead of time), ``torch``, ``jax`` (with the tests that both frameworks share), and
``laws`` (the conformance suite in its quick form). Every part runs, even if an earlier one failed; at the end, one line
for each says whether it passed. Run by any Python from 3.11 on; imports the standard library alone.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from environments import ROOT, Environment, SetupError, find_python, installed, is_usable, make, python_in, version_of
from versions import NAMES, numbers, pinned

CONSTRAINTS = ROOT / "constraints"
PARTS = {
    "kernels": ("pytest", "tests/torch/kernels"),
    "torch": ("pytest", "tests/torch", "--ignore", "tests/torch/kernels"),
    "jax": ("pytest", "tests/jax", "tests/both", "tests/calls"),
    "laws": ("conformance", "run", "torch_impl", "jax_impl", "--quick"),
}
FRAMEWORKS = ("torch", "jax", "flax", "triton")
NEWEST_PYTHONS = ("3.14", "3.13", "3.12")


@dataclass(frozen=True, kw_only=True)
class End(Environment):
    """One end of the supported versions.

    Attributes:
        exact: the file with all its versions; None for the newest versions.
    """

    exact: Path | None

    def installs(self) -> list[list[str]]:
        """The arguments of pip, call by call."""
        how = ["--constraint", str(self.exact.relative_to(ROOT))] if self.exact else ["--upgrade"]
        # The second call keeps what the first one chose.
        keep = how if self.exact else []
        return [
            ["install", "--quiet", *how, "hatchling", *FRAMEWORKS],
            ["install", "--quiet", *keep, "--no-build-isolation", "--editable", f".[{','.join(self.extras)}]"],
        ]


def end(name: str) -> End:
    """The environment of an end, ``oldest`` or ``newest``."""
    exact = CONSTRAINTS / "oldest.txt" if name == "oldest" else None
    pythons = (pinned(exact)["python"],) if exact else NEWEST_PYTHONS
    directory = f".venv-{name}"
    python = python_in(directory) if is_usable(directory) else find_python(*pythons)
    version = version_of(python) if python else None
    if python is None or version is None:
        raise SetupError(f"the {name} versions need Python {' or '.join(pythons)}, which was not found")
    return End(
        directory=directory, python=python, version=version, torch=None, jax=True,
        extras=("torch", "jax", "test"), exact=exact,
    )  # fmt: skip


def command(chosen: End, part: str) -> list[str]:
    """The command of a part."""
    module, *arguments = PARTS[part]
    return [python_in(chosen.directory), "-m", module, *arguments]


def ran(chosen: End, parts: list[str], say: Callable[[str], None]) -> list[tuple[str, bool]]:
    """Run the parts and return which of them passed."""
    results = []
    for part in parts:
        line = command(chosen, part)
        say(" ".join(line))
        results.append((part, subprocess.run(line, cwd=ROOT).returncode == 0))
    return results


def news(versions: dict[str, str], tested: dict[str, str]) -> list[str]:
    """The packages that are newer in an environment than the newest that was tried."""
    return [f"{name}=={version}" for name, version in versions.items() if numbers(version) > numbers(tested[name])]


def main() -> None:
    """Make the environments, run the parts, and say what passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--end", choices=("oldest", "newest"), action="append", help="may be repeated; default: both")
    parser.add_argument("--part", choices=tuple(PARTS), action="append", help="may be repeated; default: all")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    passed = True
    try:
        for name in arguments.end or ("oldest", "newest"):
            chosen, parts = end(name), arguments.part or list(PARTS)
            make(chosen, arguments.dry_run, say)
            if arguments.dry_run:
                for part in parts:
                    say(" ".join(command(chosen, part)))
                continue
            found = {each: installed(chosen.directory, each) for each in NAMES}
            versions = {each: version for each, version in found.items() if version is not None}
            results = ran(chosen, parts, say)
            passed &= all(good for _, good in results)
            words = ", ".join(f"{each} {version}" for each, version in versions.items())
            say(f"{name}: Python {chosen.version}, {words}")
            for part, good in results:
                say(f"{name}: {part} {'passed' if good else 'FAILED'}")
            newer = news(versions, pinned(CONSTRAINTS / "newest.txt")) if name == "newest" else []
            if newer:
                say(f"newest: constraints/newest.txt has older versions than {', '.join(newer)}")
    except SetupError as error:
        print(f"matrix: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
