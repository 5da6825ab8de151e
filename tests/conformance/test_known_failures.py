"""Known failures: laws named in a file, which may break; one that holds, or that is no law, is said."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import main
from tests.grids import larger

SCANS = """
import os
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    {before}
    return exact(x) + {value}

def rev_cumsum_backward(x, *, dy):
    return {{"x": np.cumsum(dy, axis=-1, dtype=np.float64) + {gradient}}}
"""


class Place:
    """A directory with a target whose faults can be turned on and off, and the command line run there."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.target = directory / "target.py"
        self.file = directory / "known.txt"
        self.faults()

    def faults(self, value: int | str = 0, gradient: int = 0, before: str = "") -> None:
        # A module is compiled again where its size or its second changed; a comment makes the size differ.
        text = SCANS.format(value=value, gradient=gradient, before=before or "pass")
        self.target.write_text(text + "#" * (2 * bool(value) + gradient))

    def run(self, *options: str, laws: tuple[str, ...] = ("value", "gradient")) -> Result:
        words = ["--op", "rev_cumsum", "--dtype", "float32", "--examples", "3", *(f"--law={law}" for law in laws)]
        words += ["--failures", str(self.directory / "failures"), "--known-failures", str(self.file)]
        return CliRunner().invoke(main, ["run", str(self.target), *words, *options])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def said(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    "text",
    [
        "rev_cumsum.value # the carry starts at one\n",
        "\n# of this kernel\nrev_cumsum.value   float32#the carry starts at one",
        "rev_cumsum.value float16  # another\nrev_cumsum.value float32  # the carry starts at one\n",
    ],
)
def test_a_known_failure_that_still_fails_is_no_reason_to_exit_with_1(place: Place, text: str) -> None:
    place.faults(value=1)
    place.file.write_text(text)
    path, page = place.directory / "report.json", place.directory / "report.html"
    result = place.run("--strict", "--json", str(path), "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "1 known" in result.output and "✗" not in result.output
    assert "rev_cumsum.value (float32) known: the carry starts at one" in said(result) and "k" in said(result).split()
    (report,) = json.loads(path.read_text())
    assert report["summary"]["known"] == 1 and report["summary"]["failed"] == 0 and not report["causes"]
    law = next(law for law in report["laws"] if law["id"] == "rev_cumsum.value")
    assert law["status"] == "known" and law["reason"] == "known: the carry starts at one" and not law["broken"]
    assert law["counterexample"]["where"] == "y" and law["counterexample"]["script"] is None
    assert "known: the carry starts at one" in page.read_text()


@pytest.mark.parametrize("text", ["rev_cumsum.gradient # why", "rev_cumsum.value float64 # why"])
def test_a_failure_of_another_law_or_dtype_is_not_hidden(place: Place, text: str) -> None:
    place.faults(value=1, gradient=int("gradient" in text))
    place.file.write_text(text)
    result = place.run()
    assert result.exit_code == 1 and "✗ rev_cumsum.value in" in result.output
    assert "✗ rev_cumsum.gradient in" not in result.output


def test_one_that_passes_now_is_said_and_fails_where_strict(place: Place) -> None:
    place.file.write_text("rev_cumsum.value float32 # the carry starts at one")
    result = place.run()
    told = "rev_cumsum.value (float32) passes now: remove `rev_cumsum.value float32` from the file of known failures"
    assert result.exit_code == 0 and f"{told} (the carry starts at one)" in said(result)
    strict = place.run("--strict")
    assert strict.exit_code == 1 and "✗ rev_cumsum.value in" in strict.output


def test_one_that_fails_in_some_dtypes_is_to_name_them(place: Place) -> None:
    place.faults(value="(x.dtype == np.float64)")
    place.file.write_text("rev_cumsum.value # wide")
    result = place.run("--dtype", "float64")
    assert result.exit_code == 0 and "rev_cumsum.value (float64) known: wide" in said(result)
    assert "remove `rev_cumsum.value` from the file of known failures, or name the dtypes in which" in said(result)


@pytest.mark.parametrize("entry", ["rev_cumsum.valeu", "value", "rev_cumsum.offset bfloat16"])
def test_an_id_of_no_law_is_said(place: Place, entry: str) -> None:
    place.file.write_text(f"{entry}  # why\nmlstm.value  # of an operation that is not judged here")
    path, page = place.directory / "report.json", place.directory / "report.html"
    result = place.run("--json", str(path), "--html", str(page))
    assert result.exit_code == 0 and f"the known failure `{entry}` is the id of no law" in said(result)
    assert "mlstm" not in result.output
    (report,) = json.loads(path.read_text())
    (sentence,) = report["unmatched_known_failures"]
    assert f"`{entry}`" in sentence and sentence in page.read_text()


@pytest.mark.parametrize("end", ["os.abort()", larger("import time; time.sleep(60)"), "raise ValueError('odd')"])
def test_a_call_that_ends_its_process_may_be_known(place: Place, end: str) -> None:
    place.faults(before=f"if x.size: {end}")
    place.file.write_text("rev_cumsum.value # it ends")
    result = place.run("--timeout", "2", laws=("value",))
    assert result.exit_code == 0 and "1 known" in result.output, result.output


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("rev_cumsum.value", "line 1: 'rev_cumsum.value' has no reason; write why it fails: rev_cumsum.value # …"),
        ("rev_cumsum.value #  ", "has no reason"),
        (
            "rev_cumsum.value float8 # x",
            "'rev_cumsum.value float8' is not the id of a law with at most one of",
        ),
        ("rev_cumsum.value (float32) # x", "write for example: mlstm.gradient bfloat16 # why it fails"),
        ("rev_cumsum.value float32 float64 # x", "at most one of"),
    ],
)
def test_a_line_that_cannot_be_used_says_what_to_write(place: Place, line: str, told: str) -> None:
    place.file.write_text(line)
    result = place.run()
    assert result.exit_code == 2 and told in said(result), result.output


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_missing_file_and_one_that_is_no_text_say_what_to_write(place: Place, content: bytes | None) -> None:
    if content is not None:
        place.file.write_bytes(content)
    result = place.run()
    assert result.exit_code == 2 and "it has lines such as: mlstm.gradient bfloat16 # why it fails" in said(result)
