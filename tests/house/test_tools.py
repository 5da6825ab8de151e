"""The set-up: the search for a Python, and the pins that make an environment reproducible."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIND_PYTHON = ROOT / "tools" / "find_python.sh"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Which extras are installed with each file of constraints.
ENVIRONMENTS = {
    "py311": ("torch", "jax", "conformance", "docs", "figures", "test", "dev"),
    "py312": ("torch", "jax", "conformance", "docs", "figures", "test", "dev"),
    "py313": ("torch", "jax", "conformance", "docs", "figures", "test", "dev"),
    "py314": ("torch", "jax", "conformance", "docs", "figures", "test", "dev"),
    "peers": ("torch", "jax", "conformance"),
}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the Makefile needs bash")


def find_python(*versions: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(FIND_PYTHON), *versions]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


def test_find_python_passes_over_a_shim_that_does_not_run(tmp_path: Path) -> None:
    version = "{}.{}".format(*sys.version_info)
    script(tmp_path / "shims" / f"python{version}", "exit 127")
    real = script(tmp_path / "pyenv" / "versions" / f"{version}.9" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    path = f"{tmp_path / 'shims'}{os.pathsep}{os.environ['PATH']}"
    found = find_python(version, PATH=path, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.strip() == sys.executable, f"expected what {real} is"


def test_find_python_says_plainly_that_there_is_none() -> None:
    found = find_python("3.99")
    assert (found.returncode, found.stdout) == (1, "")
    assert "no working Python 3.99" in found.stderr
    assert "make setup PYTHON399=" in found.stderr


def test_find_python_takes_the_first_version_that_there_is() -> None:
    version = "{}.{}".format(*sys.version_info)
    found = find_python("3.98", version, "3.99")
    assert (found.returncode, found.stderr) == (0, "")
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([found.stdout.strip(), "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == version
    nothing = find_python("3.98", "3.99")
    assert "no working Python 3.98, 3.99. Tried" in nothing.stderr


def test_find_python_takes_no_other_version_by_override() -> None:
    found = find_python("3.99", PYTHON399=sys.executable)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == f"find_python: PYTHON399={sys.executable} is not a Python 3.99 with venv and ensurepip\n"


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9A-Za-z.]+)", line) for line in lines if not line.startswith("#")]
    assert all(found), "a constraints file holds comments and `name==version` lines"
    return {match[1].lower().replace("_", "-"): match[2] for match in found if match}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_direct_dependency_is_pinned(name: str) -> None:
    wanted = PROJECT["dependencies"] + [line for extra in ENVIRONMENTS[name] for line in EXTRAS[extra]]
    names = {re.split(r"[<>=\[ ;]", line)[0].lower().replace("_", "-") for line in wanted} - {"gatespec"}
    assert not names - pins(name).keys()
