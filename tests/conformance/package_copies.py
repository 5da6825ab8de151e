"""Copies of the packages in which an operation or an option is added, and the suite in such a copy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("reference", "conformance", "torch_impl", "jax_impl")


def listed(section: str) -> list[str]:
    """The files of the table in a section of CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text.partition(f"## {section}\n")[2].partition("\n## ")[0], re.MULTILINE)


def copy_packages(folder: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


def python(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def conformance(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the suite of a copy on its packages."""
    return python(folder, "-m", "conformance", *arguments)
