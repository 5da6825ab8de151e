"""Large gates of the mLSTM on processors without fused multiply-add."""

import os
import subprocess
import sys


def test_a_reset_is_finite_without_fused_multiply_add():
    code = (
        "from tests.both import test_large_gates as t, with_torch\nfor row in t.RESETS: t.check_reset(with_torch, *row)"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
