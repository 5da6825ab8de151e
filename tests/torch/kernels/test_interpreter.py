"""Every test of this directory under Triton's interpreter, in a process that sets it before Triton is imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from torch_impl.kernels._interpret import interpreted

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(interpreted(), reason="this process interprets kernels already")
def test_kernels_under_the_interpreter() -> None:
    options = ["-q", "-p", "no:cacheprovider", "-k", "not aot"]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
