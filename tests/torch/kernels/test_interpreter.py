"""Every test of this directory under Triton's interpreter, in a process that sets it before Triton is imported."""

import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from torch_impl._triton.interpreter import interpreted

HERE = Path(__file__).resolve().parent
# One process each, so that workers share them. The compiler has no part in this.
FILES = [
    path.name
    for path in sorted(HERE.glob("test_*.py"))
    if path.name not in ("test_interpreter.py", "test_aot.py", "test_launch.py")
]


needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
compiles = pytest.mark.skipif(interpreted(), reason="this process interprets kernels already")


@needs_triton
@compiles
@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_kernels_under_the_interpreter(file, request) -> None:
    """Only the tests that launch kernels: the others run without the interpreter, with the rest of this directory."""
    options = ["-q", "-p", "no:cacheprovider", "-m", "on_device", "--grids", request.config.getoption("grids")]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@needs_triton
@compiles
@pytest.mark.long
def test_the_suite_under_the_interpreter(tmp_path) -> None:
    """A little of it. The whole is
    ``TRITON_INTERPRET=1 python -m conformance run torch_impl --kernel-backend triton --max-steps 130``."""
    ops = [word for op in ("mlstm", "mlstm_step", "slstm", "slstm_step", "gru") for word in ("--op", op)]
    dtypes = ["--dtype", "float32", "--dtype", "bfloat16"]
    few = ["--examples", "1", "--max-steps", "20", "--jobs", "1", "--failures", str(tmp_path)]
    command = [sys.executable, "-m", "conformance", "run", "torch_impl", "--kernel-backend", "triton"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [*command, *ops, "--law", "gradient", *dtypes, *few],
        cwd=HERE.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " 0 failed" in done.stdout and " 0 skipped" in done.stdout


@needs_triton
@compiles
def test_the_suite_sees_a_launch_that_is_compiled() -> None:
    """Before a driver is asked for, so that a machine without a GPU can tell."""
    import torch

    from tests.calls.torch_launches import launches
    from torch_impl._scan.triton.launch import rev_cumsum

    gpu = torch.cuda.is_available()
    with launches() as seen, nullcontext() if gpu else pytest.raises(RuntimeError, match="active drivers"):
        rev_cumsum(torch.ones(4, device="cuda" if gpu else "cpu"))
    assert seen == ["cumulative"]
