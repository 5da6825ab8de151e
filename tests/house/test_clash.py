"""Another distribution's `reference` or `conformance` is found at import and named."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORK = {"torch_impl": "torch", "jax_impl": "jax"}
IMPORTS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(needs) is None, reason=f"{needs} is not installed here"))
    for name, needs in FRAMEWORK.items()
]


def other_distribution(directory: Path, package: str, name: str = "Citations") -> Path:
    """Another distribution, as installed, with a top-level package of this name."""
    (directory / package).mkdir()
    (directory / package / "__init__.py").write_text('__version__ = "0.1.0"\n')
    metadata = directory / f"{name.lower()}-3.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n")
    (metadata / "RECORD").write_text(f"{package}/__init__.py,,\n{metadata.name}/METADATA,,\n")
    return directory


def python(first: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A Python that finds what is in `first` before the packages of this repository."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(first), str(ROOT)]), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("package", IMPORTS)
def test_another_reference_is_refused_by_name(package: str, tmp_path: Path) -> None:
    done = python(other_distribution(tmp_path, "reference"), "-c", f"import {package}")
    origin = tmp_path / "reference" / "__init__.py"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: gatespec's package `reference` is hidden by {origin} of Citations. "
        "Use an environment where only one of the two is installed, or take the directory off sys.path."
    )


@pytest.mark.parametrize("package", IMPORTS)
def test_a_reference_that_was_imported_before_is_refused_too(package: str, tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text("")
    done = python(tmp_path, "-c", f"import reference, {package}")
    assert f"is hidden by {tmp_path / 'reference.py'}. Use" in done.stderr


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    done = python(other_distribution(tmp_path, "reference"), "-m", "conformance", "laws")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: gatespec's package `reference` is hidden by ")
    assert " of Citations. " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("package", IMPORTS)
def test_another_conformance_is_a_warning(package: str, tmp_path: Path) -> None:
    done = python(other_distribution(tmp_path, "conformance"), "-c", f"import {package}; print('imported')")
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr
    assert f"RuntimeWarning: gatespec's package `conformance` is hidden by {tmp_path}" in done.stderr
    assert "of Citations" in done.stderr


@pytest.mark.parametrize("package", IMPORTS)
def test_a_directory_of_ones_own_is_no_clash(package: str, tmp_path: Path) -> None:
    # Of one's own conformance folder only the suite would notice; a folder without code hides nothing.
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "__init__.py").write_text("")
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "paper.pdf").write_text("")
    done = python(tmp_path, "-W", "error", "-c", f"import {package}")
    assert (done.returncode, done.stderr) == (0, "")


def test_pytests_rewriting_of_assertions_is_no_clash(tmp_path: Path) -> None:
    # What pytest does with every package of an installed distribution that brings a plugin.
    (tmp_path / "test_rewritten.py").write_text(
        "import pytest\n\npytest.register_assert_rewrite('reference')\n\n\n"
        "def test_rewritten():\n    from importlib.util import find_spec\n"
        "    assert not hasattr(find_spec('reference').loader, 'get_source')\n"
        "    import _gatespec_clash\n"
    )
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
