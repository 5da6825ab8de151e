"""Known failures: tried again on each run, excused where they stand, reported where they pass."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance.cases import SumCase, to_json
from conformance.cli import main
from conformance.features.promises import parsed
from conformance.judge.expectations import Example, Known, read, write

SCANS = """
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    return exact(x) + {value}

def rev_cumsum_backward(x, *, dy):
    return {{"x": np.cumsum(dy, axis=-1, dtype=np.float64) + {gradient}}}
"""


class Place:
    """A directory with a target whose faults can be turned on and off, and the command line run there."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.target = directory / "target.py"
        self.file = directory / "known.toml"
        self.faults()

    def faults(self, value: int = 0, gradient: int = 0) -> None:
        # A module is compiled again where its size or its second changed; a comment makes the size differ.
        self.target.write_text(SCANS.format(value=value, gradient=gradient) + "#" * (2 * value + gradient))

    def run(self, *options: str) -> Result:
        laws = ("--law", "value", "--law", "gradient", "--op", "rev_cumsum", "--dtype", "float32", "--examples", "3")
        places = ("--failures", str(self.directory / "failures"))
        return CliRunner().invoke(main, ["run", str(self.target), *laws, *places, *options])

    def written(self, reason: str = "the carry starts at one") -> None:
        """Write the present failures, and say why."""
        result = self.run("--write-known", str(self.file))
        assert result.exit_code == 1 and "add a reason to each" in result.output, result.output
        text = self.file.read_text()
        self.file.write_text(text.replace('reason = ""', f'reason = "{reason}"'))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_known_failure_that_still_fails_is_no_reason_to_exit_with_1(place: Place) -> None:
    place.faults(value=1)
    place.written()
    (entry,) = tomllib.loads(place.file.read_text())["known"]
    assert entry["operations"] == ["rev_cumsum"] and entry["breaks"] == ["number"] and entry["where"] == ["y"]
    example = entry["example"]
    assert (example["law"], example["dtype"]) == ("rev_cumsum.value", "float32")
    assert entry["target"] == str(place.target) and json.loads(example["case"])["kind"] == "SumCase"
    path = place.directory / "report.json"
    result = place.run("--known", str(place.file), "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "1 known" in result.output and "known: the carry starts at one" in " ".join(result.output.split())
    (report,) = json.loads(path.read_text())
    assert report["summary"]["known"] == 1 and report["summary"]["failed"] == 0
    law = next(law for law in report["laws"] if law["id"] == "rev_cumsum.value")
    assert law["status"] == "known" and law["known"][0]["fails"] and "carry" in law["reason"]


def test_a_failure_of_another_law_is_not_hidden(place: Place) -> None:
    place.faults(value=1)
    place.written()
    place.faults(value=1, gradient=1)
    result = place.run("--known", str(place.file))
    assert result.exit_code == 1 and "✗ rev_cumsum.gradient in" in result.output
    assert "✗ rev_cumsum.value in" not in result.output


def test_another_kind_of_failure_of_the_same_law_is_not_hidden(place: Place) -> None:
    place.faults(value=1)
    place.written()
    text = place.target.read_text().replace("return exact(x) +", "return [][0] if x.shape[-1] > 10 else exact(x) +")
    place.target.write_text(text)
    result = place.run("--known", str(place.file))
    assert result.exit_code == 1 and "raised IndexError" in " ".join(result.output.split()), result.output


def test_one_that_passes_now_is_reported_and_fails_where_strict(place: Place) -> None:
    place.faults(value=1)
    place.written()
    place.faults()
    result = place.run("--known", str(place.file))
    assert result.exit_code == 0 and "passes now: remove the entry for rev_cumsum" in " ".join(result.output.split())
    strict = place.run("--known", str(place.file), "--strict")
    assert strict.exit_code == 1 and "✗ rev_cumsum.value in" in strict.output


def test_writing_again_keeps_what_still_fails_and_drops_what_passes(place: Place) -> None:
    place.faults(gradient=1)
    place.written(reason="an offset")
    refused = place.run("--write-known", str(place.file))
    assert refused.exit_code == 2 and f"add --known {place.file}" in "".join(refused.output.split("\n")).replace(
        "│", ""
    )
    result = place.run("--known", str(place.file), "--write-known", str(place.file))
    assert result.exit_code == 0 and "0 new entries" in result.output, result.output
    _, (entry,) = read("known", place.file)
    assert entry.where == ("gradient of x",) and entry.reason == "an offset"
    place.faults(value=1)
    result = place.run("--known", str(place.file), "--write-known", str(place.file))
    assert result.exit_code == 1 and "1 new entries" in result.output, result.output
    (entry,) = tomllib.loads(place.file.read_text())["known"]
    assert entry["where"] == ["y"] and not entry["reason"]


def test_an_entry_of_another_target_holds_for_that_one_alone(place: Place) -> None:
    place.faults(value=1)
    place.written()
    place.file.write_text(place.file.read_text().replace(str(place.target), "another_target"))
    assert place.run("--known", str(place.file)).exit_code == 1
    lines = [line for line in place.file.read_text().splitlines() if not line.startswith("target")]
    place.file.write_text("\n".join(lines))
    assert place.run("--known", str(place.file)).exit_code == 0


EXAMPLE = {"law": "rev_cumsum.value", "dtype": "float32", "case": '{"kind": "SumCase"}'}
ENTRY = {"operations": ["rev_cumsum"], "where": ["y"], "breaks": ["number"], "error_up_to": 1e-3, "reason": "why"}


def spelt(entry: dict[str, Any], example: dict[str, str]) -> str:
    tables = ("[[known]]", entry), ("[known.example]", example)
    lines = [f"{key} = {json.dumps(value)}" if key else "" for _, table in tables for key, value in table.items()]
    return "\n".join([tables[0][0], *lines[: len(entry)], tables[1][0], *lines[len(entry) :]]) + "\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reason": ""}, 'has no reason; write why it fails: reason = "…"'),
        ({"operations": ["mlstn"]}, "`operations` has 'mlstn'; there are"),
        ({"promise": "S >> 3"}, "'S >> 3' has a RShift"),
        ({"features": ["f finite"]}, "contains unknown field `features`"),
        ({"breaks": ["wrong"]}, "`breaks` has 'wrong'; there are number, nan"),
        ({"breaks": []}, "has no `breaks`; add some of these kinds of failure"),
        ({"formula": "the formula without all"}, "there is no formula 'the formula without all'; copy"),
        ({"law": "cap"}, "`law` has 'cap'; there are value"),
        ({"where": []}, "would excuse every failure; add a formula, a promise, a law or where"),
        ({"where": "y"}, "Expected `array`, got `str` - at `$.known[0].where`"),
        ({"error_up_to": None}, "`error_up_to` is None; write the largest error of a number"),
        ({"example.law": "mlstm.valeu"}, "`example.law` has 'mlstm.valeu'; there are"),
        ({"example.dtype": "float8"}, "`example.dtype` has 'float8'; there are float64"),
        (
            {"example.case": '{"kind": "Nothing"}'},
            "is not a case of this version (there is no kind of case named 'Nothing'",
        ),
        ({"example.case": "{"}, "copy `counterexample.stored` from the JSON report"),
        ({"example.case": None}, "missing required field `case` - at `$.known[0].example`"),
        ({"why": "me"}, "contains unknown field `why` - at `$.known[0]`"),
        ({"operations": None}, "missing required field `operations`"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_to_write(place: Place, changes: dict[str, Any], said: str) -> None:
    named = {**ENTRY, **{f"example.{key}": value for key, value in EXAMPLE.items()}, **changes}
    given = {key: value for key, value in named.items() if value is not None}
    example = {key.removeprefix("example."): value for key, value in given.items() if key.startswith("example.")}
    place.file.write_text(spelt({key: value for key, value in given.items() if "." not in key}, example))
    result = place.run("--known", str(place.file))
    assert result.exit_code == 2 and said in " ".join(result.output.split()), result.output


def test_a_missing_file_and_one_that_is_no_toml_say_what_to_write(place: Place) -> None:
    missing = place.run("--known", str(place.file))
    assert missing.exit_code == 2 and "makes such a file" in " ".join(missing.output.split())
    place.file.write_text("[[known")
    assert place.run("--known", str(place.file)).exit_code == 2


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    case = json.dumps(to_json(SumCase((2,), 3)))
    example = Example(law="rev_cumsum.value", dtype="float32", case=case)
    entries = [
        Known(
            operations=("rev_cumsum", "rev_cumsum_off"),
            reason='it\'s "odd"\n\\ even',
            example=example,
            breaks=("number", "nan"),
            where=("y",),
            error_up_to=1e-3,
            link="https://example.org/1",
            target="a'b.py",
        ),
        Known(
            operations=("mlstm",),
            reason="ß",
            example=example,
            formula="the formula without 1/√K",
            dtypes=("bfloat16",),
        ),
        Known(
            operations=("mlstm",),
            reason="never finite",
            example=example,
            promise="not forget_gates_of_minus_inf",
            breaks=("number",),
            error_up_to=math.inf,
        ),
        Known(operations=("gru",), reason="shared", example=example, law="memory", breaks=("memory",)),
    ]
    path, promises = tmp_path / "known.toml", ("mlstm: S % 64 == 0", "not packed")
    write("write-known", path, promises, entries)
    assert read("known", path) == (tuple(map(parsed, promises)), tuple(entries))


def test_a_known_failure_is_tried_at_its_own_length_whatever_the_longest_sequence(place: Place) -> None:
    place.faults(value=1)
    case = {"kind": "SumCase", "lead": [1], "S": 9, "values": "ordinary", "layout": "contiguous", "seed": 0}
    entry = Known(
        operations=("rev_cumsum",),
        reason="known to be wrong",
        example=Example(law="rev_cumsum.value", dtype="float32", case=json.dumps(case)),
        breaks=("number",),
        where=("y",),
        error_up_to=math.inf,
        target=str(place.target),
    )
    write("write-known", place.file, known=[entry])
    result = place.run("--known", str(place.file), "--max-steps", "3")
    assert result.exit_code == 0 and "known to be wrong" in " ".join(result.output.split()), result.output


def test_one_file_holds_promises_and_known_failures_and_either_option_reads_both(place: Place) -> None:
    place.faults(value=1)
    place.written()
    promised = f'promises = ["rev_cumsum: S > 2"]\n{place.file.read_text()}'
    place.file.write_text(promised)
    for option in ("--known", "--promises"):
        path = place.directory / "report.json"
        result = place.run(option, str(place.file), "--json", str(path))
        assert result.exit_code == 0, result.output
        (report,) = json.loads(path.read_text())
        assert report["summary"]["known"] == 1 and report["settings"]["promises"] == ["rev_cumsum: S > 2"]
    # The promises stay when the entries are written anew.
    result = place.run("--known", str(place.file), "--write-known", str(place.file))
    assert result.exit_code == 0 and tomllib.loads(place.file.read_text())["promises"] == ["rev_cumsum: S > 2"]


def test_an_entry_may_name_a_range_of_lengths(place: Place) -> None:
    place.target.write_text(SCANS.format(value="(x.shape[-1] > 6)", gradient=0))
    place.written()
    (entry,) = tomllib.loads(place.file.read_text())["known"]
    assert entry["promise"] == "S <= 6"
    assert place.run("--known", str(place.file)).exit_code == 0
    # Short calls are wrong too: the entry does not excuse them.
    place.target.write_text(SCANS.format(value="(x.shape[-1] > 1)", gradient=0))
    assert place.run("--known", str(place.file)).exit_code == 1


def test_a_promise_that_no_call_keeps_excuses_nothing(place: Place) -> None:
    place.faults(value=1)
    place.written()
    place.file.write_text(place.file.read_text().replace("[known.example]", 'promise = "S < 0"\n[known.example]'))
    assert place.run("--known", str(place.file)).exit_code == 1
