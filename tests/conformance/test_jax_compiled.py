"""Compiled programs of JAX are dropped before there are more than a process can hold."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from conformance.frameworks import _jax_compiled
from conformance.frameworks._jax_compiled import Compiled, crowded, drop_programs

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


def test_a_process_is_crowded_from_half_of_what_linux_allows(tmp_path, monkeypatch) -> None:
    mappings, allowed = tmp_path / "maps", tmp_path / "max_map_count"
    monkeypatch.setattr(_jax_compiled, "MAPPINGS", mappings)
    monkeypatch.setattr(_jax_compiled, "ALLOWED", allowed)
    assert not crowded()
    allowed.write_text("8\n")
    for lines, expected in ((4, False), (5, True)):
        mappings.write_text("00400000-00401000 r-xp\n" * lines)
        assert crowded() == expected


def test_programs_are_compiled_again_after_they_were_dropped(monkeypatch) -> None:
    compilations, states = [], iter([False, False, True, False])
    monkeypatch.setattr(_jax_compiled, "crowded", lambda: next(states))
    first, second = (Compiled(lambda x, by=by: x * by, compilations.append) for by in (2.0, 3.0))
    one, two = np.ones(1, np.float32), np.ones(2, np.float32)
    assert first(one) == 2 and first(one) == 2 and second(one) == 3
    assert compilations == [True, False] * 2
    # The third compilation comes after all programs were dropped, also those of the other function.
    assert first(two).tolist() == [2, 2] and second(one) == 3
    assert compilations == [True, False] * 4
    drop_programs()


@pytest.mark.skipif(not _jax_compiled.MAPPINGS.exists(), reason="the system has no /proc")
def test_a_process_with_any_number_of_shapes_keeps_its_number_of_mappings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
