"""Memory is linear in the sequence and bounded: measured on the compiled programme and on a process that runs it."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import jax_impl
from tests.jax.tools import pull_back

ROOT = Path(__file__).resolve().parents[2]
S, N, K, V = 32768, 4, 128, 128
BUDGET = 2e9


def call(S: int):
    shapes = [(1, S, N, K), (1, S, N, K), (1, S, N, V), (1, S, N), (1, S, N), (1, S, N, V)]
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def both_passes(*x):
    return pull_back(jax_impl.mlstm, x[:5], x[5])


def test_what_lies_between_is_little_more_than_the_inputs():
    """Copies of them block by block, h, and only the memory at the start of each block: nothing of all chunks."""
    memory = jax.jit(both_passes).lower(*call(S)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1.25 * memory.argument_size_in_bytes


PROGRAMME = """
import jax, jax.numpy as jnp
from tests.memory import peak_bytes
from tests.jax.test_memory import both_passes, call, S
x = [jnp.full(part.shape, 0.1, part.dtype) for part in call(S)]
h, gradients = jax.block_until_ready(jax.jit(both_passes)(*x))
assert all(bool(jnp.isfinite(part).all()) for part in (h, *gradients))
print(peak_bytes())
"""


def test_a_process_stays_below_the_budget():
    """The whole process, Python and JAX included."""
    done = subprocess.run([sys.executable, "-c", PROGRAMME], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) < BUDGET
