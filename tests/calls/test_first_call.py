"""The first call of a process is made in a process of its own."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.frameworks.targets import load
from conformance.laws.checker import LawError
from conformance.operations.scan import REV_CUMSUM
from tests.calls.first_call import first_call_of, in_new_process

pytest.importorskip("torch")
SCANS = """
import sys

def rev_cumsum(x):
    {first}
    return x.flip(-1).cumsum(-1).flip(-1)
"""


def test_the_first_call_is_made_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "scans.py"
    call = REV_CUMSUM.call_of(REV_CUMSUM.rows[0], "float32")

    def found(first: str) -> Any:
        path.write_text(SCANS.format(first=first))
        return in_new_process(load(str(path), "torch", "cpu"), "checkpoint", call)

    results = found("pass")
    assert np.allclose(results[0]["y"].values, np.flip(np.flip(call.arrays["x"].values, -1).cumsum(-1), -1))
    with pytest.raises(LawError, match="status 7"):
        found("sys.exit(7)")


def test_a_first_call_may_raise(tmp_path: Path) -> None:
    path, given, results = (tmp_path / name for name in ("scans.py", "given", "results"))
    path.write_text(SCANS.format(first="raise RuntimeError('not while a graph is captured')"))
    call = REV_CUMSUM.call_of(REV_CUMSUM.rows[0], "float32")
    target = (str(path), "torch", "cpu")
    given.write_bytes(pickle.dumps((target, "checkpoint", call)))
    first_call_of(given, results)
    assert pickle.loads(results.read_bytes()) is None
