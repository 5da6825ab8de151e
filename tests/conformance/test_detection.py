"""Which framework a target's functions take is seen from imports, through packages that import it."""

import subprocess
import sys
from pathlib import Path

import pytest

import reference

ROOT = Path(reference.__file__).resolve().parents[1]
CODE = """
from conformance.frameworks.targets import detect, find

functions, home = find({path!r})
print(detect(functions, home, {path!r}))
"""
KERNEL = "import {framework}\n\ndef kernel(x):\n    return x\n"


def detected(directory: Path, text: str, package: str) -> str:
    (directory / "adapter.py").write_text(text)
    (directory / "kernels").mkdir()
    (directory / "kernels" / "__init__.py").write_text("")
    (directory / "kernels" / "scans.py").write_text(package)
    # In a process of its own: which modules are loaded is what is looked at.
    code = CODE.format(path=str(directory / "adapter.py"))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("framework", ["torch", "jax", "numpy"])
def test_a_target_that_imports_a_package_has_the_framework_of_the_package(tmp_path: Path, framework: str) -> None:
    text = "from kernels.scans import kernel\n\ndef rev_cumsum(x):\n    return kernel(x)\n"
    assert detected(tmp_path, text, KERNEL.format(framework=framework)) == framework


def test_a_numpy_target_is_none_of_the_others_wherever_they_are_loaded(tmp_path: Path) -> None:
    text = "import numpy as np\nimport kernels\n\ndef rev_cumsum(x):\n    return np.flip(np.cumsum(np.flip(x)))\n"
    assert detected(tmp_path, f"import sys\n__import__('torch')\n{text}", KERNEL.format(framework="torch")) == "numpy"


def test_annotations_decide_between_two(tmp_path: Path) -> None:
    text = "import torch\nimport jax\n\ndef rev_cumsum(x: torch.Tensor) -> torch.Tensor:\n    return x\n"
    assert detected(tmp_path, text, "") == "torch"
