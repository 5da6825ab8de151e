"""The suite catches faults: each row of `faults.FAULTS`, put into a copy of the reference, breaks a law."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

import reference
from conformance.runner import Result, Settings, run
from conformance.targets import load

sys.path.insert(0, str(Path(__file__).parent))
FAULTS = importlib.import_module("faults").FAULTS


def copy_of_reference(directory: Path, name: str) -> Path:
    """A package that is the reference under another name."""
    package = directory / name
    shutil.copytree(Path(reference.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in package.glob("*.py"):
        path.write_text(path.read_text().replace("from reference", f"from {name}"))
    return package


def first_broken(name: str, settings: Settings) -> Result | None:
    return next((result for result in run(load(name, "numpy", "cpu"), settings) if result.status == "failed"), None)


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_a_fault_breaks_a_law(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, name = FAULTS[number], f"faulty_{number}"
    fault.apply(copy_of_reference(tmp_path, name))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("conformance.hunt.SHRINK_SECONDS", 0.0)
    broken = first_broken(name, Settings(ops=(fault.op,)))
    assert broken is not None, f"no law of {fault.op} breaks: {fault.name}"
    assert broken.counterexample is not None


def test_the_copy_without_a_fault_breaks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_reference(tmp_path, "faultless")
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = first_broken("faultless", Settings(examples=6))
    assert broken is None, broken
