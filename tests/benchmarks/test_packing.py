"""The splits of the packing benchmark, and its promise about memory: it follows the tokens, however they are split."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.command import main
from benchmarks.costs.packing import DENSE, SPLITS, call, planned_bytes

ROOT = Path(__file__).resolve().parents[2]

PROGRAMME = """
import sys
from benchmarks.costs.packing import SPLITS, call, peak_bytes
framework, op, tokens, *names = sys.argv[1:]
for name in names:
    print(peak_bytes(call(framework, op, SPLITS[name](int(tokens)), 2, 16, False)))
"""


def test_splits_divide_all_tokens():
    for name, split in SPLITS.items():
        for tokens in (1000, 30000):
            assert sum(split(tokens)) == tokens, name
    assert len(SPLITS) >= 8


@pytest.mark.parametrize(("framework", "op", "tokens"), [("torch", "mlstm", 30000), ("torch", "gru", 6000)])
def test_memory_follows_the_tokens(framework, op, tokens):
    words = [sys.executable, "-c", PROGRAMME, framework, op, str(tokens), *SPLITS]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    peaks = dict(zip(SPLITS, map(int, done.stdout.split()), strict=True))
    assert max(peaks.values()) < 2 * min(peaks.values()), peaks


def test_planned_memory_of_jax_follows_the_tokens():
    """Without running anything: what XLA plans depends on the number of sequences and not on their lengths."""
    counts = {len(split(30000)) for split in SPLITS.values()}
    fewest, most = (planned_bytes("mlstm", 30000, B, heads=2, dim=16) for B in (min(counts), max(counts)))
    assert (min(counts), max(counts)) == (1, 30000)
    assert max(fewest, most) < 1.1 * min(fewest, most), (fewest, most)


@pytest.mark.parametrize("op", ["mlstm", "gru"])
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_dense_call_takes_the_same_arrays(framework, op):
    call(framework, op, [7], heads=2, dim=3, states=False, dense=True)()
    assert planned_bytes(op, 7, None, heads=2, dim=3) > 0


def test_the_command_prints_a_row_for_every_split():
    words = "packing --framework torch --op mlstm --tokens 1000 --dim 4 --rounds 3".split()
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    for name in (*SPLITS, DENSE):
        assert name in done.output
