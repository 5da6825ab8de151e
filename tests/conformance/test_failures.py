"""Scripts of failures: they make the very call, judge the very array, and are run once to make sure."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.tensors import pack
from conformance.cli import main
from conformance.failures._single_call import single_call_script
from conformance.failures._target_source import LONGEST
from conformance.frameworks.targets import load
from conformance.judge.outcome import Counterexample, Found
from conformance.laws import all_laws
from conformance.laws.checker import Checker, LawError
from conformance.laws.comparison import Comparison, HasNaN, WrongDtype, WrongShape
from conformance.operations import OPERATIONS
from conformance.tolerance.compared import BreakKind

LAW = next(law for law in all_laws() if law.id == "mlstm.gradient")
FOUND = Counterexample(case="a case in words", kind=BreakKind("an array", "number"), problem="a problem")
TARGETS = {"numpy": "reference", "torch": "torch_impl", "jax": "jax_impl"}


def call_of(operation: str, dtype: str, **fields: object) -> Call:
    """The call of the first of an operation's small cases."""
    record = OPERATIONS[operation]
    return record.call_of(replace(record.rows[0], **fields), dtype)


ALTERED = {"mlstm": {"layout": "strided"}, "gru": {"with_gradient_clipping": 0.5}}
LOOKED_AT = {
    "rev_cumsum": ("y", "x"),
    "rev_cumsum_off": ("y", "x"),
    "causal_forget_matrix": ("y", "forget_gates"),
    "dtilde_matrix": ("y", "fgate"),
    "mlstm": ("C", "m0"),
    "mlstm_step": ("m", "n0"),
    "mlstm_fwbw_custom_grad": ("n", "C0"),
    "gru": ("state", "reset_weight"),
}
"""An output and an argument of each operation."""


def outcome(found: Found, framework: str, directory: Path) -> str:
    """The output of the script for a case: that the law holds, or what is broken."""
    script = single_call_script(load(TARGETS[framework], None, "cpu"), LAW, "float32", found)
    assert script is not None, "the call could not be written down"
    assert "conformance" not in script.text and len(script.text.splitlines()) <= 50
    path = directory / "script.py"
    path.write_text(script.text)
    path.with_suffix(".safetensors").write_bytes(pack(script.tensors))
    try:
        runpy.run_path(str(path))
    except SystemExit as ended:
        assert str(ended.code).startswith(script.marker)
        return str(ended.code)
    return "holds"


def seen(framework: str, name: str, call: Call, dtype: str = "float32") -> tuple:
    """A checker that has made the call, and the array of that name."""
    if framework == "jax":
        call = replace(call, arrays={name: replace(x, layout="contiguous") for name, x in call.arrays.items()})
    checker = Checker(load(TARGETS[framework], None, "cpu"), dtype)
    if name.startswith("gradient of "):
        return checker, checker.vjp(call)[1][name.removeprefix("gradient of ")]
    return checker, checker.call(call)[name]


def broken_by(error: Exception, checker: Checker) -> Found:
    return Found((0, 0, 0, ""), (), FOUND, None, error, checker.calls)


def compared(checker: Checker, got: Array, off: float, m: np.ndarray | None = None) -> Found:
    allowed = 1e-5 * (1 + np.abs(np.nan_to_num(got.values, posinf=0, neginf=0)))
    comparison = Comparison(got=got, expected=got.values + off, allowed=allowed, m=m)
    return broken_by(LawError("an array", "is wrong", comparison=comparison), checker)


def cases() -> list:
    kept = []
    for framework in TARGETS:
        for operation in LOOKED_AT:
            # A JAX call takes seconds to compile: one of each kind of wording is enough there.
            if framework != "jax" or operation in ("rev_cumsum", "gru"):
                kept.append(pytest.param(framework, operation, id=f"{framework}-{operation}"))
    return kept


@pytest.mark.parametrize(("framework", "operation"), cases())
def test_the_script_makes_the_very_call(framework: str, operation: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    output, argument = LOOKED_AT[operation]
    call = call_of(operation, "float32", **ALTERED.get(operation, {}))
    names = [f"gradient of {argument}"] if framework == "jax" else [output, f"gradient of {argument}"]
    for name in names:
        checker, got = seen(framework, name, call)
        assert outcome(compared(checker, got, 0.0), framework, tmp_path) == "holds"
        assert "an array at [" in outcome(compared(checker, got, 1.0), framework, tmp_path)


def test_a_state_is_compared_in_units_of_the_references_stabiliser(tmp_path: Path) -> None:
    checker, got = seen("numpy", "C", call_of("mlstm", "float32"))
    m = checker.calls[0].results["m"].values
    scene = compared(checker, got, 0.0, m + 1.0)
    scaled = replace(scene.error.comparison, expected=got.values * np.exp(-1.0))
    found = broken_by(LawError("C", "is wrong", comparison=scaled), checker)
    assert outcome(found, "numpy", tmp_path) == "holds"


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_infinities_and_bfloat16_survive(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    pytest.importorskip("ml_dtypes")
    call = call_of("mlstm", "bfloat16", gates="extreme", state="empty", seed=3)
    assert any(np.isinf(x.values).any() for x in call.arrays.values())
    checker, got = seen(framework, "gradient of v", call, "bfloat16")
    assert outcome(compared(checker, got, 0.0), framework, tmp_path) == "holds"
    checker, got = seen(framework, "m", call_of("mlstm", "bfloat16", gates="closed", state="empty"), "bfloat16")
    assert outcome(compared(checker, got, 0.0), framework, tmp_path) == "holds"


def test_dtype_shape_and_nan_are_judged_too(tmp_path: Path) -> None:
    checker, got = seen("numpy", "y", call_of("rev_cumsum", "float32"))

    def said(comparison: object) -> str:
        return outcome(broken_by(LawError("y", "…", comparison=comparison), checker), "numpy", tmp_path)

    assert said(WrongDtype(got, "float64")) == "holds" and "expected float32" in said(WrongDtype(got, "float32"))
    assert said(WrongShape(got, got.shape)) == "holds" and "expected (3,)" in said(WrongShape(got, (3,)))
    assert said(HasNaN(got)) == "holds"


TORCH = """
import torch
from torch_impl import mlstm as exact

def mlstm(q, k, v, i, f, **keywords):
    return exact(q, 2 * k - k.detach(), v, i, f, **keywords)
"""


def test_a_failure_is_told_in_fifteen_lines_and_shown_by_a_script(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    target = tmp_path / "kernel.py"
    target.write_text(TORCH)
    arguments = ("run", str(target), "--op", "mlstm", "--law", "gradient", "--dtype", "float32", "--examples", "4")
    result = CliRunner().invoke(main, [*arguments, "--failures", str(tmp_path / "failures")])
    assert result.exit_code == 1, result.output
    told = result.output[result.output.index("✗ mlstm.gradient in") :].partition("\n\n")[0].strip().splitlines()
    assert len(told) <= 15
    words = [line.split()[0] for line in told[1:]]
    assert words == ["law", "case", "array", "got", "expected", "error", "branches", "again", "script"]
    assert "gradient of k, first wrong at [" in told[3] and "times its tolerance" in told[6]
    assert told[-1].endswith("ran once and failed again")
    script = tmp_path / "failures" / "kernel-mlstm.gradient-float32.py"
    text = script.read_text()
    assert "torch.autograd.grad(" in text and "conformance" not in text
    assert TORCH in text, "the script holds the target"
    target.unlink()
    with pytest.raises(SystemExit, match=r"mlstm\.gradient is broken"):
        runpy.run_path(str(script))
    assert len(text.splitlines()) <= 48 and script.with_suffix(".safetensors").exists()


SCANS = """
import numpy as np
from reference import rev_cumsum as exact

calls = 0

def rev_cumsum(x):
    global calls
    calls += 1
    {body}
"""


def judged(directory: Path, law: str, body: str) -> tuple[str, str]:
    """The terminal's output for a scan with that body, and the saved script."""
    target = directory / "scan.py"
    target.write_text(SCANS.format(body=body))
    arguments = ("run", str(target), "--op", "rev_cumsum", "--law", law, "--dtype", "float32", "--examples", "4")
    result = CliRunner().invoke(main, [*arguments, "--failures", str(directory)])
    assert result.exit_code == 1, result.output
    return result.output, (directory / f"scan-rev_cumsum.{law}-float32.py").read_text()


def test_a_law_of_several_calls_is_replayed(tmp_path: Path) -> None:
    output, text = judged(tmp_path, "linearity", "return exact(x) + 1")
    assert "ran once and failed again" in output
    assert "from conformance.failures.replay import replay" in text and 'law="rev_cumsum.linearity"' in text


def test_an_exception_of_the_target_is_let_through(tmp_path: Path) -> None:
    output, text = judged(tmp_path, "value", "return exact(x) if x.shape[-1] < 3 else exact(undefined)")
    assert "raised NameError: name 'undefined' is not defined" in output and "ran once and failed again" in output
    assert "y = rev_cumsum(x)" in text and "conformance" not in text


def test_it_is_said_where_the_script_does_not_fail_again(tmp_path: Path) -> None:
    output, _ = judged(tmp_path, "value", "return exact(x) + (calls > 2)")
    assert "did not fail again: the target is not deterministic, or it fails only after other calls" in output


@pytest.mark.parametrize(
    "addition",
    {
        "a place": "folder = __file__",
        "a name of the script": "saved = 1",
        "a length": "#\n" * LONGEST,
        "a part for the command line": "if __name__ == '__main__':\n    calls = 1",
        "another module of that name": "import math as sys",
    }.items(),
    ids=lambda addition: addition[0],
)
def test_a_target_whose_source_means_something_else_in_a_script_is_imported(
    addition: tuple[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "my-kernel.py"
    target.write_text(f"{SCANS.format(body='return exact(x) + 1')}\n{addition[1]}\n")
    arguments = ("run", str(target), "--op", "rev_cumsum", "--law", "value", "--dtype", "float32", "--examples", "2")
    result = CliRunner().invoke(main, [*arguments, "--failures", str(tmp_path)])
    assert "ran once and failed again" in result.output
    (script,) = tmp_path.glob("my_kernel-*-float32.py")
    assert "runpy.run_path(" in script.read_text()
