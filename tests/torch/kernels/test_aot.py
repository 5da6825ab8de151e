"""The default kernels compile for GPUs that are not there, spill nothing, and fit into shared memory."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.torch.kernels.aot import SHARED_MEMORY
from torch_impl.kernels._interpret import interpreted

ROOT = Path(__file__).resolve().parents[3]
KERNELS = {"gates", "stabilisers", "memories", "outputs", "normalisers", "returning", "gradients", "step"}


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(interpreted(), reason="this process interprets kernels")
def test_aot_default_mlstm_kernels_for_hopper() -> None:
    """At the benchmark's shape, bfloat16; ``python -m tests.torch.kernels.aot`` does the other targets and dtypes."""
    command = [sys.executable, "-m", "tests.torch.kernels.aot", "--dtype", "bfloat16", "sm_90"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["kernel"] for one in compiled} == KERNELS
    for one in compiled:
        assert one["spills"] == 0, one
        assert one["shared"] <= SHARED_MEMORY["sm_90"], one
