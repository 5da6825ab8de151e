"""The result of a law on functions, or on a file, that a test plants a fault in."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from pytest import MonkeyPatch

from conformance.base.options import RunOptions
from conformance.frameworks.targets import load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import law_of


def judged(
    law: str,
    dtype: str = "float32",
    options: RunOptions | None = None,
    *,
    framework: str = "torch",
    own: bool = False,
    **functions: Callable,
) -> LawResult:
    """Judge functions, given by their public names, in this process.

    Args:
        own: whether they count as gatespec's own.
    """
    target = import_module(f"conformance.frameworks.{framework}").adapter("planted", functions, "cpu")
    target.keeps_contract = own
    return run_law(target, law_of(law), dtype, options or RunOptions())


def judged_file(
    directory: Path,
    text: str,
    law: str,
    dtype: str = "float64",
    options: RunOptions | None = None,
    framework: str | None = None,
) -> LawResult:
    """Judge a file ``target.py`` with that text in this process."""
    path = directory / "target.py"
    path.write_text(text)
    return run_law(load(str(path), framework, "cpu"), law_of(law), dtype, options or RunOptions())


def in_terminal(monkeypatch: MonkeyPatch, columns: int) -> None:
    """Let the command print as in a terminal of so many columns, without colours."""
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": str(columns), "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
