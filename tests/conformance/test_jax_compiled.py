"""Compiled programs of JAX are dropped before there are more than a process can hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

from conformance.frameworks import _jax_compiled

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import jax.numpy as jnp
from conformance.frameworks import _jax_compiled
from conformance.frameworks._jax_compiled import Compiled, MAPPINGS

count = lambda: MAPPINGS.read_bytes().count(b"\\n")
function = Compiled(lambda x: jnp.cumsum(jnp.sort(jnp.sin(x))) @ jnp.exp(x), lambda now: None)
function(jnp.ones(2))
allowed = count() + 150
_jax_compiled.ALLOWED = type("", (), {"read_text": staticmethod(lambda: str(2 * allowed))})
most = 0
for size in range(3, 60):
    function(jnp.ones(size))
    most = max(most, count())
assert len(function._ready) < 50, "no program was dropped"
assert most < allowed + 100, (most, allowed)
"""


@pytest.mark.skipif(not _jax_compiled.MAPPINGS.exists(), reason="the system has no /proc")
def test_a_process_with_any_number_of_shapes_keeps_its_number_of_mappings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
