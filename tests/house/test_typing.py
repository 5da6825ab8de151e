"""Public signatures are typed: a small program of a user passes pyright strict, and a wrong one does not."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("typed_program.py")

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("pyright", "torch", "jax")), reason="pyright, PyTorch or JAX is missing"
)


def complaints(directory: Path, source: str) -> list[str]:
    """Pyright's strict output for a program outside the repository, for which the packages are installed."""
    (directory / "program.py").write_text(source)
    settings = {"typeCheckingMode": "strict", "include": ["program.py"], "extraPaths": [str(ROOT)]}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [f"line {each['range']['start']['line'] + 1}: {each['message']}" for each in found]


def test_a_users_program_passes_pyright_strict(tmp_path: Path) -> None:
    assert complaints(tmp_path, PROGRAM.read_text()) == []


def test_a_wrong_program_does_not(tmp_path: Path) -> None:
    wrong = """
import torch
import torch_impl

x, gates = torch.zeros(1, 5, 2, 4), torch.zeros(1, 5, 2)
h: torch.Tensor = torch_impl.mlstm(x, x, x, gates, gates, return_state=True)
torch_impl.mlstm(x, x, x, gates, gates, chunk_size="16")
"""
    found = complaints(tmp_path, wrong)
    assert {text.partition(":")[0] for text in found} == {"line 6", "line 7"}
