"""Make the environments for `make test` and `make conformance`, from the Pythons that the machine has.

One Python from 3.11 on is enough: `.venv` holds both frameworks, in the versions that `constraints/` has for this
Python, or the newest that have wheels. The newest JAX for Python 3.11 is too old for the Pallas kernels; if `.venv` has
Python 3.11 and a later Python is found, `.venv-jax` holds the newest JAX without PyTorch. One line says what is left
out; with ``GATESPEC_REQUIRE_ALL=1``, as in CI, that is an error.

    tools/environments.py setup [--dry-run]   make what is missing; --dry-run says what that would be
    tools/environments.py left-out            the line, or nothing
    tools/environments.py targets             what `make conformance` judges in .venv
    tools/environments.py tests               the tests that `make test` runs in .venv
    tools/environments.py type-check          "yes" where pyright runs, or nothing
    tools/environments.py pallas              the Python whose JAX takes the Pallas kernels, or nothing
    tools/environments.py quick-tests         the variables with which JAX compiles the tests in .venv quickly
    tools/environments.py quick-laws          the same for the laws, if those of .venv-jax run with all optimisations

``WITHOUT=torch`` or ``WITHOUT=jax`` leaves a framework out. Run by the Python that `.venv` is to be made with; imports
the standard library alone.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAIN, NEWEST_JAX = ".venv", ".venv-jax"
# The Pallas kernels need JAX 0.11.2, and that Python 3.12.
PALLAS_JAX, PALLAS_PYTHONS = (0, 11, 2), ("3.12", "3.13", "3.14")
OLDEST_TORCH = (2, 11)
OFFLINE = re.compile(r"Retrying|Connection|timed out|Could not fetch|Temporary failure", re.IGNORECASE)


class SetupError(Exception):
    """The set-up cannot go on; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment to be made.

    Attributes:
        directory: its directory, below the root.
        python: the interpreter that it is made with.
        version: the version of the interpreter, ``3.12``.
        torch: the requirement on PyTorch; None if it is left out.
        jax: whether JAX is installed.
        extras: the extras of gatespec, apart from those of the frameworks.
    """

    directory: str
    python: str
    version: str
    torch: str | None
    jax: bool
    extras: tuple[str, ...]

    @property
    def constraints(self) -> Path | None:
        """The exact versions for this Python; None if no file has them, so that the newest are installed."""
        path = ROOT / "constraints" / f"py{self.version.replace('.', '')}.txt"
        return path if path.exists() else None

    def installs(self) -> list[list[str]]:
        """The arguments of pip, call by call."""
        constraint = ["--constraint", str(self.constraints.relative_to(ROOT))] if self.constraints else []
        frameworks = [*(["torch"] if self.torch else []), *(["jax"] if self.jax else [])]
        extras = ",".join((*frameworks, *self.extras))
        calls = []
        if self.torch:
            # First and alone: the largest, and its build (CPU, CUDA) depends on where pip is pointed.
            calls.append([*constraint, self.torch])
        calls.append([*constraint, "hatchling", *(["jax", "flax"] if self.jax else [])])
        # PyTorch is not chosen a second time.
        keep = [self.torch] if self.torch else []
        calls.append([*constraint, "--no-build-isolation", "--editable", f".[{extras}]", *keep])
        return [["install", "--quiet", *call] for call in calls]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The contents of the environments.

    Attributes:
        python: version of `.venv`.
        torch, jax: versions in `.venv`; None if it has none.
        newest_jax: version in `.venv-jax`; None if there is no such environment.
        reasons: framework → why it was left out.
    """

    python: str
    torch: str | None
    jax: str | None
    newest_jax: str | None
    reasons: Mapping[str, str]


def numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` as (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def left_out(facts: Facts) -> str | None:
    """The parts that the commands omit on this machine, in one line."""
    parts = []
    if facts.torch is None:
        parts.append(f"torch_impl ({facts.reasons.get('torch', 'PyTorch is not installed')})")
    if facts.jax is None:
        parts.append(f"jax_impl ({facts.reasons.get('jax', 'JAX is not installed')})")
    if facts.torch is None or facts.jax is None:
        parts.append("the suite's own tests (they need both frameworks)")
    if facts.python == "3.11" and facts.jax is not None and facts.newest_jax is None:
        parts.append("the newest JAX and the Pallas kernels (no Python from 3.12 on was found)")
    if facts.python != "3.11":
        parts.append(f"JAX 0.10 (.venv has Python {facts.python}, and it needs 3.11)")
    if not is_type_checked(facts):
        parts.append("the type check (it needs both frameworks)")
    return f"left out: {'; '.join(parts)}" if parts else None


def is_type_checked(facts: Facts) -> bool:
    """Whether pyright runs: it follows imports, and would not know the arrays of a framework that is not installed."""
    return facts.torch is not None and facts.jax is not None


def targets(facts: Facts) -> list[str]:
    """The packages that can be judged."""
    return ["reference", *(["torch_impl"] * bool(facts.torch)), *(["jax_impl"] * bool(facts.jax))]


def tests(facts: Facts) -> list[str]:
    """The folders of tests that can run: the suite's own, and the benchmarks', import both frameworks."""
    if facts.torch and facts.jax:
        return ["tests"]
    frameworks = [*(["tests/torch"] * bool(facts.torch)), *(["tests/jax"] * bool(facts.jax))]
    both = ["tests/both"] if frameworks else []
    return ["tests/reference", "tests/calls", "tests/house", *both, *frameworks]


def few_optimisations(facts: Facts) -> list[str]:
    """Variables with which the JAX of `.venv` compiles in a sixth of the time (0.10) or two thirds of it.

    Without its newest emitter, XLA of 0.10 leaves out what JAX's variable does not. Later ones have no other, and end
    the process because of a flag that they do not know. Flags that are set already are kept as they are.
    """
    if facts.jax is None:
        return []
    flags = numbers(facts.jax) < (0, 11) and "XLA_FLAGS" not in os.environ
    return ["JAX_DISABLE_MOST_OPTIMIZATIONS=1", *["XLA_FLAGS=--xla_cpu_use_fusion_emitters=false"] * flags]


def pallas_environment(facts: Facts) -> str | None:
    """The directory of the environment whose JAX takes the Pallas kernels."""
    for directory, version in ((NEWEST_JAX, facts.newest_jax), (MAIN, facts.jax)):
        if version is not None and numbers(version) >= PALLAS_JAX:
            return directory
    return None


def torch_requirement(listed: str, pinned: bool) -> str:
    """The requirement on PyTorch, from what ``pip index versions torch`` prints.

    The newest, unless the index has a build for the CPU alone: those are a tenth of the size, and all that the tests
    use. Where the constraints pin a version, that version; pip itself prefers its CPU build.
    """
    if pinned:
        return "torch"
    line = re.search(r"^Available versions: (.*)$", listed, re.MULTILINE)
    versions = line[1].split(", ") if line else []
    for version in versions:
        if version.endswith("+cpu") and numbers(version) >= OLDEST_TORCH:
            return f"torch=={version}"
    return "torch"


def has_no_wheel(complaint: str) -> bool:
    """Whether pip reports that no wheel fits, and not that it could not reach an index."""
    return "No matching distribution found" in complaint and not OFFLINE.search(complaint)


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command and keep its output."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def version_of(python: str) -> str | None:
    """The version of an interpreter, ``3.12``; None if it does not run."""
    try:
        done = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def has_pip(python: str) -> bool:
    """Whether an interpreter runs and has pip."""
    try:
        return run([python, "-c", "import pip"]).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def with_pip(python: str) -> Iterator[str]:
    """A Python of the same version that has pip, to ask the index with: many a system's Python has none."""
    if has_pip(python):
        yield python
        return
    with tempfile.TemporaryDirectory() as directory:
        _call([python, "-m", "venv", directory])
        yield str(Path(directory, "bin", "python"))


def python_in(directory: str) -> str:
    """The interpreter of an environment."""
    return str(ROOT / directory / "bin" / "python")


def find_python(*versions: str) -> str | None:
    """The first Python of these versions that the machine has."""
    done = run(["bash", "tools/find_python.sh", *versions])
    return done.stdout.strip() if done.returncode == 0 else None


def unfinished(directory: str) -> Path:
    """The file that says that the set-up of an environment has begun and not ended."""
    return ROOT / directory / ".unfinished"


def is_usable(directory: str) -> bool:
    """Whether an environment exists, is complete, and works."""
    whole = (ROOT / directory).exists() and not unfinished(directory).exists()
    return whole and has_pip(python_in(directory))


def planned(without: Sequence[str], say: Callable[[str], None]) -> tuple[list[Environment], dict[str, str]]:
    """The environments to make, and the reasons why frameworks are left out."""
    python = python_in(MAIN) if is_usable(MAIN) else sys.executable
    version = version_of(python)
    if version is None:
        raise SetupError(f"{python} does not run")
    reasons = {name: f"asked for with WITHOUT={name}" for name in without}
    with with_pip(python) as asks:
        torch = None if "torch" in without else wanted_torch(asks, version, reasons)
        jax = "jax" not in without and has_wheel(asks, version, "jax", reasons)
    plan = [Environment(directory=MAIN, python=python, version=version, torch=torch, jax=jax, extras=("dev",))]
    if version == "3.11" and jax:
        newer = python_in(NEWEST_JAX) if is_usable(NEWEST_JAX) else find_python(*PALLAS_PYTHONS)
        if newer is not None:
            newer_version = version_of(newer)
            if newer_version is None:
                raise SetupError(f"{newer} does not run")
            plan.append(
                Environment(
                    directory=NEWEST_JAX, python=newer, version=newer_version, torch=None, jax=True, extras=("test",)
                )
            )
    if plan[0].constraints is None:
        say(f"constraints/ has no versions for Python {version}: the newest are installed")
    return plan, reasons


def wanted_torch(python: str, version: str, reasons: dict[str, str]) -> str | None:
    """The requirement on PyTorch; if no wheel fits, None, and the reason is noted."""
    if not has_wheel(python, version, "torch", reasons):
        return None
    path = ROOT / "constraints" / f"py{version.replace('.', '')}.txt"
    pinned = path.exists() and re.search(r"^torch==", path.read_text(), re.MULTILINE) is not None
    return torch_requirement(run([python, "-m", "pip", "index", "versions", "torch"]).stdout, pinned)


def has_wheel(python: str, version: str, name: str, reasons: dict[str, str]) -> bool:
    """Whether pip finds a package for this Python."""
    done = run([python, "-m", "pip", "index", "versions", name])
    if done.returncode == 0:
        return True
    if not has_no_wheel(done.stderr):
        raise SetupError(f"pip cannot ask for {name}:\n{done.stderr.strip()}")
    reasons[name] = f"no wheel for Python {version} where pip looks"
    return False


def make(environment: Environment, dry: bool, say: Callable[[str], None]) -> None:
    """Make one environment, after removing an incomplete one of an earlier run."""
    directory = ROOT / environment.directory
    python = python_in(environment.directory)
    start = time.monotonic()
    if not is_usable(environment.directory):
        if dry:
            say(f"{environment.python} -m venv {environment.directory}")
        else:
            _remove(directory)
            directory.mkdir()
            unfinished(environment.directory).touch()
            _call([environment.python, "-m", "venv", str(directory)])
    for arguments in environment.installs():
        if dry:
            say(f"{environment.directory}/bin/python -m pip {' '.join(arguments)}")
        else:
            unfinished(environment.directory).touch()
            _call([python, "-m", "pip", *arguments])
    if not dry:
        unfinished(environment.directory).unlink(missing_ok=True)
        say(f"{environment.directory}: set up in {time.monotonic() - start:.0f} s (Python {environment.version})")


def _remove(directory: Path) -> None:
    """Remove an environment, complete or not; refuse to remove anything else."""
    if not directory.exists():
        return
    ours = any((directory / name).exists() for name in (".unfinished", "pyvenv.cfg", ".stamp"))
    if any(directory.iterdir()) and not ours:
        raise SetupError(f"{directory} is not an environment; move it away and run make again")
    shutil.rmtree(directory)


def _call(command: Sequence[str]) -> None:
    """Run a command without its output, which only a failure shows: pip warns dozens of times where all is well.

    Raises:
        SetupError: the command failed; the text ends with its output.
    """
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        failed = f"failed with status {done.returncode}: {' '.join(command)}"
        raise SetupError(f"{failed}\n{done.stdout.strip()}\nThe same command tries again.")


def installed(directory: str, name: str) -> str | None:
    """The version of a package in an environment."""
    done = run([python_in(directory), "-c", f"import importlib.metadata as m; print(m.version({name!r}))"])
    return done.stdout.strip() if done.returncode == 0 else None


def facts() -> Facts:
    """The present contents of the environments."""
    stamp = ROOT / MAIN / ".stamp"
    text = stamp.read_text() if stamp.exists() else ""
    python = version_of(python_in(MAIN))
    if python is None:
        raise SetupError("there is no .venv yet; run `make setup`")
    finished = (ROOT / NEWEST_JAX / ".stamp").exists()
    return Facts(
        python=python,
        torch=installed(MAIN, "torch"),
        jax=installed(MAIN, "jax"),
        newest_jax=installed(NEWEST_JAX, "jax") if finished else None,
        reasons=json.loads(text) if text.strip() else {},
    )


def setup(dry: bool, say: Callable[[str], None]) -> None:
    """Make every environment that this machine allows, and note that it is done."""
    without = os.environ.get("WITHOUT", "").replace(",", " ").split()
    if unknown := set(without) - {"torch", "jax"}:
        raise SetupError(f"WITHOUT={' '.join(sorted(unknown))}: only torch and jax can be left out")
    plan, reasons = planned(without, say)
    for environment in plan:
        make(environment, dry, say)
    if dry:
        return
    for environment in reversed(plan):
        text = json.dumps(reasons) if environment.directory == MAIN and reasons else ""
        (ROOT / environment.directory / ".stamp").write_text(text)


def complain_or_say(line: str | None, say: Callable[[str], None]) -> None:
    """Print what is left out; if everything is required, that is an error."""
    if line is None:
        return
    if os.environ.get("GATESPEC_REQUIRE_ALL"):
        raise SetupError(f"GATESPEC_REQUIRE_ALL is set, and this is {line}")
    say(line)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup").add_argument("--dry-run", action="store_true")
    for name in ("left-out", "targets", "tests", "type-check", "pallas", "quick-tests", "quick-laws"):
        commands.add_parser(name)
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        if arguments.command == "setup":
            setup(arguments.dry_run, say)
            if not arguments.dry_run:
                complain_or_say(left_out(facts()), say)
            return
        now = facts()
        if arguments.command == "left-out":
            complain_or_say(left_out(now), say)
        elif arguments.command == "pallas":
            directory = pallas_environment(now)
            say(f"{directory}/bin/python" if directory else "")
        elif arguments.command == "type-check":
            say("yes" if is_type_checked(now) else "")
        elif arguments.command in ("quick-tests", "quick-laws"):
            wanted = arguments.command == "quick-tests" or now.newest_jax is not None
            say(" ".join(few_optimisations(now) if wanted else []))
        else:
            say(" ".join(targets(now) if arguments.command == "targets" else tests(now)))
    except SetupError as error:
        print(f"environments: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
