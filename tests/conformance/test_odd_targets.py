"""Whatever a target returns or raises, and whatever its module does, the command ends with a sentence and a status."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from conformance.base.exceptions import line_of, name_of, shortened, text_of
from conformance.base.options import RunOptions
from conformance.cli import main
from conformance.frameworks import numpy as of_numpy
from conformance.judge.outcome import LawResult
from conformance.tolerance import compared as self_check
from tests.conformance.judging import judged

FEW = RunOptions(examples=3, shrink_seconds=0.0, max_steps=5)


def of_array(change: Callable[[np.ndarray], Any], factor: int = 1) -> LawResult:
    def rev_cumsum(x: np.ndarray) -> Any:
        y = factor * np.flip(np.cumsum(np.flip(x, -1), -1, dtype=np.float64), -1)
        return change(np.asarray(y.astype(x.dtype)))

    return judged("rev_cumsum.value", "float32", FEW, framework="numpy", rev_cumsum=rev_cumsum)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        np.ma.masked_array,
        np.asfortranarray,
        lambda y: y.astype(y.dtype.newbyteorder(">")),
        lambda y: np.broadcast_to(y, y.shape),
        lambda y: np.flip(np.flip(y).copy()),
        lambda y: np.matrix(y) if y.ndim == 2 else y,
        lambda y: y.view(np.recarray),
        lambda y: y.astype(np.longdouble),
    ],
    ids=["masked", "Fortran", "big-endian", "read-only", "reversed", "matrix", "recarray", "longdouble"],
)
def test_a_result_of_an_odd_kind_is_judged_by_its_numbers(change: Callable[[np.ndarray], Any], factor: int) -> None:
    assert of_array(change, factor).status == ("passed" if factor == 1 else "failed")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: np.ma.masked_array(y, mask=True), "got nan"),
        (lambda y: y.astype(y.dtype).view(y.dtype.newbyteorder(">")), "worst error is"),
        (lambda y: np.rec.fromarrays([np.atleast_1d(y)]), "its result is y, a numpy.ndarray of real numbers"),
        (lambda y: np.zeros(y.shape, "V4"), "its result is y, a numpy.ndarray of real numbers"),
        (lambda y: y > 0, "returned a numpy.ndarray of bool; its result is y, a numpy.ndarray of real numbers"),
        (lambda y: 10**5000, "returned the number (an object that raises ValueError when it is printed)"),
        (lambda y: {_Unprintable(): y}, "the keys (an object that raises KeyError when it is printed)"),
        (lambda y: _Text("wrong"), "returned the string 'wrong'"),
    ],
)
def test_what_is_no_array_of_numbers_is_named(change: Callable[[np.ndarray], Any], said: str) -> None:
    found = of_array(change).counterexample
    assert found is not None and said in found.problem, found


def test_a_bfloat16_is_a_real_number_although_numpy_stores_it_like_a_structure() -> None:
    target = of_numpy.adapter("bfloat16", {}, "cpu")
    assert target.kind.includes(np.zeros(2, ml_dtypes.bfloat16)) and not target.kind.includes(np.zeros(2, "V2"))


class _Unprintable:
    def __repr__(self) -> str:
        raise KeyError


class _Text(str):
    def __getitem__(self, key: Any) -> Any:
        raise KeyError


TENSORS = {
    "meta": lambda y: y.to("meta"),
    "nested": lambda y: torch.nested.as_nested_tensor([y]),
    "quantized": lambda y: torch.quantize_per_tensor(y.detach(), 0.1, 0, torch.qint8),
    "mkldnn": lambda y: y.detach().to_mkldnn() if y.ndim and y.numel() else y.to("meta"),
}


@pytest.mark.parametrize("word", TENSORS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
def test_a_tensor_that_cannot_be_read_is_named(word: str) -> None:
    for law in ("value", "gradient"):
        result = judged(f"rev_cumsum.{law}", "float32", FEW, rev_cumsum=lambda x: TENSORS[word](x.cumsum(-1)))
        found = result.counterexample
        assert found is not None and f"{word} torch.Tensor of" in found.problem.replace("meta", word), found


def test_gradients_that_a_target_switched_off_are_named() -> None:
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(False)
        result = judged("rev_cumsum.gradient", "float32", FEW, rev_cumsum=lambda x: x.flip(-1).cumsum(-1).flip(-1))
        found = result.counterexample
    finally:
        torch.set_grad_enabled(before)
    assert found is not None and "the target has set torch.is_grad_enabled() to False" in found.problem


class _Meta(type):
    @property
    def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise KeyError


def test_exceptions_are_named_whatever_their_classes_do() -> None:
    class OddError(Exception, metaclass=_Meta):
        def __str__(self) -> str:
            raise SystemExit(0)

    class TextError(Exception):
        def __str__(self) -> str:
            return _Text("first\x1b[31m\udcff\nsecond")

    assert (name_of(OddError()), text_of(OddError())) == ("OddError", "(its text cannot be shown: SystemExit)")
    assert line_of(TextError(), 100) == r"first\x1b[31m\udcff" and type(text_of(TextError())) is str
    assert name_of(type("A\nB" * 50, (Exception,), {})()).startswith(r"A\nBA\nB")
    assert shortened("x" * 10**6).endswith("x… (998000 more characters)")


KERNEL = """
import sys
import numpy as np
{head}

def rev_cumsum(x):
    return {factor} * np.flip(np.cumsum(np.flip(x, -1), -1), -1)
"""


def run(directory: Path, head: str, factor: int = 1) -> tuple[int, str, list[str]]:
    path, report = directory / "kernel.py", directory / "report.json"
    path.write_text(KERNEL.format(head=head, factor=factor))
    selected = ("--law", "rev_cumsum.value", "--dtype", "float32", "--quick", "--jobs", "1")
    written = ("--failures", str(directory / "f"), "--json", str(report), "--html", str(directory / "report.html"))
    done = CliRunner().invoke(main, ["run", str(path), *selected, *written])
    causes = json.loads(report.read_text())[0]["causes"] if done.exit_code < 2 else []
    return done.exit_code, done.output, [cause["sentence"] + cause["problem"] for cause in causes]


ODD_MODULE = "sys.path.clear()\ndef __getattr__(name):\n    raise RuntimeError(name)\n"


def test_a_module_without_a_path_and_with_attributes_of_its_own(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, ODD_MODULE)
    assert status == 0, output
    status, _, causes = run(tmp_path, ODD_MODULE, 2)
    assert status == 1 and "is 2 × what it should be" in causes[0]


def test_an_import_that_raises_a_long_text_is_cut(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, "raise ValueError('x' * 10**6)")
    assert status == 2 and "more characters)" in output and len(output) < 4000


@pytest.mark.parametrize("change", ["np.abs = np.absolute = np.zeros_like", "np.isnan = lambda x: np.isfinite(x)"])
def test_a_target_that_disables_comparisons_is_not_accepted(tmp_path: Path, change: str) -> None:
    status, _, causes = run(tmp_path, change, 2)
    assert status == 1 and causes, "a wrong target passed"


def test_comparisons_are_sound_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_check.comparisons_are_sound()
    monkeypatch.setattr(np, "abs", np.zeros_like)
    assert not self_check.comparisons_are_sound()
