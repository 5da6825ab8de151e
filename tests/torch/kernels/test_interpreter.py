"""Every test of this directory under Triton's interpreter, in a process that sets it before Triton is imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from torch_impl.kernels._interpret import interpreted

HERE = Path(__file__).resolve().parent
# One process each, so that workers share them. The compiler has no part in this.
FILES = [
    path.name for path in sorted(HERE.glob("test_*.py")) if path.name not in ("test_interpreter.py", "test_aot.py")
]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(interpreted(), reason="this process interprets kernels already")
@pytest.mark.parametrize("file", FILES)
def test_kernels_under_the_interpreter(file) -> None:
    options = ["-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
