"""Kernels that are compiled for a GPU that is not there travel, and are found again elsewhere."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.gpu import baked

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc"),
]
BAKE = """
import sys
from pathlib import Path
from benchmarks.gpu.baked import bake
cache, folder = map(Path, sys.argv[1:])
print(bake(cache, folder, ("float32",), ("slstm_step",), mlstm=("step",), gru=(), slstm=(), sums=False))
"""


def bake(cache: Path, folder: Path) -> int:
    """The number of kernels in the cache afterwards; a process of its own, because it replaces Triton's driver."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", BAKE, str(cache), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.long
def test_kernels_travel_and_are_not_compiled_again(tmp_path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    count = bake(here, tmp_path)
    # A step of the mLSTM, and steps of the sLSTM of two widths.
    assert count == 3
    baked.pack(here, tmp_path / "compiled.tgz")
    shutil.rmtree(here)
    assert baked.unpack(tmp_path / "compiled.tgz", there) == count
    assert not [path for path in there.glob("*/*") if path.suffix in (".ttir", ".ptx")]
    names = {path.name for path in there.iterdir()}
    assert bake(there, tmp_path) == count
    assert {path.name for path in there.iterdir()} == names


def test_kernels_of_the_tests(tmp_path) -> None:
    """Tests that launch kernels compile them, and fail; a call that pytest cannot make is an error."""
    cache, stub = tmp_path / "cache", tmp_path / "stub"
    stub.mkdir()
    of_scans = str(baked.TESTS / "torch" / "kernels" / "test_scan_kernels.py")
    baked.bake_tests(cache, stub, of_scans, "-k", "infinities")
    assert baked.compiled(cache) > 0
    with pytest.raises(RuntimeError, match="did not run"):
        baked.bake_tests(cache, stub, of_scans, "-k", "no test has this name")
