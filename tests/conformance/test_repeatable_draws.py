"""Cases depend on the seed alone: not on the process, and not on what has been imported in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.judge import draws

DRAWN = """
import json
from conformance import cases
from conformance.judge.draws import sampled
limits = cases.Limits("small", True, "float32", 130, ("contiguous", "strided"))
print(json.dumps([cases.to_json(case) for case in sampled(cases.mlstm(limits), 7, 40)]))
"""
CONSTANTS = (
    "numbers = [" + ", ".join(map(str, range(5000, 6000, 7))) + "]\nword = 'a word that no other module holds'\n"
)


def drawn(directory: Path, first: str = "") -> list[object]:
    """The draws of a new process that runs ``first`` before them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)])}
    command = [sys.executable, "-c", first + DRAWN]
    ended = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return json.loads(ended.stdout)


def test_two_processes_draw_the_same_whatever_they_have_imported(tmp_path: Path) -> None:
    # A module in the working directory counts as the tester's own: Hypothesis reads its constants.
    (tmp_path / "a_module_of_constants.py").write_text(CONSTANTS)
    plain = drawn(tmp_path)
    assert len(plain) >= 40
    assert drawn(tmp_path, "import a_module_of_constants\n") == plain


def test_hypothesis_has_what_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draws.missing() == []
    monkeypatch.delattr(draws.providers, "_get_local_constants")
    assert draws.missing() == ["_get_local_constants"]
    with pytest.raises(RuntimeError, match=r"lacks .*_get_local_constants.* install a version from"):
        with draws.the_same_everywhere():
            pass


def test_everything_is_put_back() -> None:
    before = draws.providers._get_local_constants
    with pytest.raises(KeyError), draws.the_same_everywhere():
        assert draws.providers._get_local_constants is not before
        raise KeyError
    assert draws.providers._get_local_constants is before
