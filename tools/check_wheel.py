"""Build the distributions, check them, and try the wheel in environments with nothing but its own requirements.

    tools/check_wheel.py                              every environment
    tools/check_wheel.py --environment numpy          one of them
    tools/check_wheel.py --python python3.13 --dist dist --environment numpy --environment jax

The environments: ``numpy`` (no extra: NumPy alone), ``conformance`` (the suite, without a framework), ``torch`` and
``jax``. An environment without a wheel for a Python, or that cannot be installed because no package index is reachable,
is named and left out; ``--require``, or ``GATESPEC_REQUIRE_ALL=1``, makes that an error. The versions are those of
``constraints/``, if it has a file for the Python version. Needs build and twine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from environments import OFFLINE, ROOT, Environment, SetupError, has_wheel, wanted_torch, with_pip

PACKAGES = ("reference", "torch_impl", "jax_impl", "conformance")
# Extra → the package that needs it, and how an array is made.
FRAMEWORKS = {"torch": ("torch_impl", "torch.zeros"), "jax": ("jax_impl", "jax.numpy.zeros")}
ENVIRONMENTS = ("numpy", "conformance", *FRAMEWORKS)

CALL = """
import {module}, {package}
x, gates = {zeros}((1, 5, 2, 4)), {zeros}((1, 5, 2))
h, state = {package}.mlstm(x, x, x, gates, gates, return_state=True)
assert h.shape == (1, 5, 2, 4) and state.C.shape == (1, 2, 4, 4)
assert {package}.rev_cumsum({zeros}((1, 3))).shape == (1, 3)
"""
GRADIENT = {
    "torch": "x.requires_grad_(); torch_impl.mlstm(x, x, x, gates, gates).sum().backward(); assert x.grad is not None",
    "jax": "jax.grad(lambda x: jax_impl.mlstm(x, x, x, gates, gates).sum())(x)",
}
ALONE = """
from importlib.metadata import distributions
names = sorted(each.metadata["Name"].lower() for each in distributions())
assert names == ["gatespec", "numpy"], names
"""
EVERY_PACKAGE = """
import importlib, pathlib, sys
for name in {packages}:
    module = importlib.import_module(name)
    assert module.__version__ == {version!r} and pathlib.Path(module.__file__).is_relative_to(sys.prefix), module
    assert pathlib.Path(module.__file__).with_name("py.typed").exists(), name
for name in {absent}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name in ("torch", "jax"), error
    else:
        raise AssertionError(f"{{name}} was imported without its framework")
"""


class WheelError(Exception):
    """The wheel, or an environment with it, is faulty."""


def call(command: Sequence[str], cwd: Path = ROOT, status: int = 0) -> str:
    """Run a command and return its output if its exit status is the expected one.

    Raises:
        WheelError: the status differs.
    """
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode != status:
        raise WheelError(f"status {done.returncode}, expected {status}: {' '.join(command)}\n{said}")
    return said


def build(dist: Path) -> Path:
    """Build the source distribution and the wheel, check both, and return the wheel's path."""
    if dist.exists() and any(dist.iterdir()):
        raise WheelError(f"{dist} is not empty; remove what is in it")
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)])
    made = sorted(dist.iterdir())
    (wheel,) = (path for path in made if path.suffix == ".whl")
    if len(made) != 2:
        raise WheelError(f"a wheel and a source distribution are expected, not {[path.name for path in made]}")
    call([sys.executable, "-m", "twine", "check", "--strict", *map(str, made)])
    return wheel


def requirements(environment: str, python: str, version: str, wheel: Path) -> tuple[list[str], dict[str, str]]:
    """The packages that pip installs, and the reasons for frameworks that have to be left out."""
    reasons: dict[str, str] = {}
    extra = "" if environment == "numpy" else f"[{environment}]"
    wanted = [f"{wheel}{extra}"]
    with with_pip(python) as asks:
        if environment == "torch" and (torch := wanted_torch(asks, version, reasons)):
            wanted.append(torch)
        if environment == "jax":
            has_wheel(asks, version, "jax", reasons)
    constraints = Environment(
        directory="", python=python, version=version, torch=None, jax=False, extras=()
    ).constraints
    return [*(["--constraint", str(constraints)] if constraints else []), *wanted], reasons


def check(environment: str, python: str, wheel: Path, directory: Path) -> str | None:
    """Install the wheel into a new environment and try it there; or return why it cannot be installed."""
    version = call([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    wanted, reasons = requirements(environment, python, version, wheel)
    if reasons:
        return reasons[environment]
    # A folder of its own: what one environment writes must not be in the way of the next, and each is removed at once,
    # because a CUDA build of PyTorch takes gigabytes.
    with tempfile.TemporaryDirectory(dir=directory, prefix=f"{environment}-{version}-") as own:
        place = Path(own, "environment")
        call([python, "-m", "venv", "--without-pip", str(place)])
        inside = str(place / "bin" / "python")
        try:
            call([sys.executable, "-m", "pip", "--python", inside, "install", "--quiet", *wanted])
        except WheelError as error:
            if OFFLINE.search(str(error)):
                return "no index can be reached"
            raise
        _try(environment, inside, wheel.name.split("-")[1], Path(own))
    return None


def _try(environment: str, python: str, version: str, directory: Path) -> None:
    """Import every package, call the operations, and run the command line."""
    gatespec = str(Path(python).with_name("gatespec"))
    package, zeros = FRAMEWORKS.get(environment, ("reference", "numpy.zeros"))
    absent = [name for name, _ in FRAMEWORKS.values() if name != package]
    present = [name for name in PACKAGES if name not in absent]
    code = EVERY_PACKAGE.format(packages=present, absent=absent, version=version)
    module = "numpy" if package == "reference" else zeros.rpartition(".")[0]
    code += CALL.format(module=module, package=package, zeros=zeros) + GRADIENT.get(environment, "")
    call([python, "-I", "-c", code], directory)
    if environment != "conformance":
        for command in ([python, "-I", "-m", "conformance"], [gatespec]):
            said = call([*command, "laws"], directory, status=2)
            if said.count("\n") != 1 or 'the extra "conformance"' not in said:
                raise WheelError(f"a line with what to install is expected, not:\n{said}")
    if environment == "numpy":
        call([python, "-I", "-c", ALONE], directory)
    if environment == "conformance":
        call([gatespec, "run", "reference", "--quick", "--html", "laws.html"], directory)
        call([gatespec, "vectors", "export", "vectors", "--op", "rev_cumsum"], directory)
        tests = [python, "-I", "-m", "pytest", "-q", "--pyargs", "conformance"]
        call([*tests, "--conformance-implementation=reference", "--conformance-quick"], directory)


def main() -> None:
    """Run the checks that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", action="append", choices=ENVIRONMENTS, help="may be repeated; default: all")
    parser.add_argument("--python", action="append", help="may be repeated; default: the one that runs this")
    parser.add_argument("--dist", type=Path, help="where the distributions are kept; default: nowhere")
    parser.add_argument("--require", action="store_true", help="a missing wheel is an error")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        try:
            wheel = build(arguments.dist.resolve() if arguments.dist else directory / "dist")
            print(f"{wheel.name}: built, and checked by twine", flush=True)
            for python in arguments.python or [sys.executable]:
                for environment in arguments.environment or ENVIRONMENTS:
                    reason = check(environment, python, wheel, directory)
                    if reason and (arguments.require or os.environ.get("GATESPEC_REQUIRE_ALL")):
                        raise WheelError(f"{environment} with {python}: {reason}")
                    print(f"{environment} with {python}: {f'left out, {reason}' if reason else 'works'}", flush=True)
        except (WheelError, SetupError) as error:
            print(f"check_wheel: {error}", file=sys.stderr)
            raise SystemExit(1) from None


if __name__ == "__main__":
    main()
