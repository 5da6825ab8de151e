"""Test vectors: a set says what the suite says, another program can answer it, and a wrong answer is told in words."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from conformance.base.call import Call
from conformance.base.dtypes import FLOATING, Array, array
from conformance.base.tensors import pack, unpack
from conformance.cases import LONG_STEPS
from conformance.cli import main
from conformance.frameworks.targets import load
from conformance.operations import OPERATIONS
from tests.conformance.judging import in_terminal

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "test-vectors.md"
PROGRAM = HERE / "other_program.py"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["vectors", *map(str, arguments)], terminal_width=200)


def cases_of(folder: Path) -> list[dict]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of all operations and dtypes, without long sequences, whose tolerances take minutes."""
    folder = tmp_path_factory.mktemp("sets") / "whole"
    result = invoke("export", folder, "--max-steps", 40)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "small"
    result = invoke("export", folder, "--op", "mlstm", "--op", "rev_cumsum", "--dtype", "float32", "--cases", 2)
    assert result.exit_code == 0, result.output
    return folder


def run_program(folder: Path, answers: Path, *mistake: str) -> None:
    """In a process of its own, without site-packages and without this project."""
    command = [sys.executable, "-I", "-S", str(PROGRAM), str(folder), str(answers), *mistake]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=answers.parent)
    assert done.returncode == 0, done.stderr


def answer(
    target: str,
    folder: Path,
    answers: Path,
    dtypes: tuple[str, ...] = FLOATING,
    operations: Collection[str] = OPERATIONS,
) -> None:
    """The answers of an implementation, called as the laws call it, to a set."""
    implementation = load(target, None, "cpu")
    answers.mkdir()
    for case in (case for case in cases_of(folder) if case["dtype"] in dtypes and case["operation"] in operations):
        given = unpack((folder / case["file"]).read_bytes())
        arguments = {each["name"]: given[each["key"]] for each in case["arguments"]}
        cotangents = {each["name"]: given[each["key"]] for each in case["cotangents"]}
        options = {name: value for name, value in case["options"].items() if value is not None}
        call = Call(operation=case["operation"], arrays=arguments, options=options, cotangents=cotangents)
        outputs, gradients = implementation.vjp(call)
        found = {each["key"]: outputs[each["name"]] for each in case["outputs"]}
        found |= {each["key"]: gradients[each["name"]] for each in case["gradients"]}
        (answers / case["file"]).write_bytes(pack(found))


def test_a_set_covers_every_operation_and_every_kind_of_length(exported: Path) -> None:
    cases = cases_of(exported)
    assert {(case["operation"], case["dtype"]) for case in cases} == {(op, d) for op in OPERATIONS for d in FLOATING}
    for operation in OPERATIONS:
        lengths = {case["sizes"]["S"] for case in cases if case["operation"] == operation}
        if not operation.endswith("_step"):
            assert {0, 1} <= lengths and any(S > 2 and S % 2 for S in lengths)
    for operation in ("mlstm", "gru", "slstm"):
        packed = [case for case in cases if case["operation"] == operation and "T" in case["sizes"]]
        assert packed and all({"B", "S", "T"} <= set(case["sizes"]) for case in packed)
        names = {each["name"] for case in packed for each in case["arguments"]}
        assert "cu_seqlens" in names


@pytest.mark.whole_grid
def test_a_whole_set_has_sequences_of_over_a_thousand_steps_in_a_few_megabytes(tmp_path: Path) -> None:
    assert invoke("export", tmp_path / "whole").exit_code == 0
    assert sum(path.stat().st_size for path in (tmp_path / "whole").iterdir()) < 1e6 * len(OPERATIONS)
    long = {case["operation"] for case in cases_of(tmp_path / "whole") if case["sizes"]["S"] == LONG_STEPS}
    assert long == {operation for operation in OPERATIONS if "matrix" not in operation and "_step" not in operation}


def test_expected_numbers_are_no_nan_and_fit_their_dtype_with_a_positive_allowance(exported: Path) -> None:
    infinite_arguments = infinite_outputs = 0
    for case in cases_of(exported):
        given = unpack((exported / case["file"]).read_bytes())
        named = {each["key"]: each for kind in ("arguments", "cotangents") for each in case[kind]}
        for key, each in named.items():
            assert given[key].dtype == each["dtype"] and list(given[key].shape) == each["shape"], case["id"]
        infinite_arguments += sum(bool(np.isinf(given[key].values).any()) for key in named)
        for each in (*case["outputs"], *case["gradients"]):
            expected, allowed = given[each["key"]].values, given[each["allowed"]].values
            assert list(expected.shape) == each["shape"] == list(allowed.shape), (case["id"], each["key"])
            assert not np.isnan(expected).any() and np.isfinite(allowed).all(), (case["id"], each["key"])
            finite = np.isfinite(expected)
            assert (allowed[finite] > 0).all() and (allowed[~finite] == 0).all(), (case["id"], each["key"])
            infinite_outputs += int((~finite).any())
            told = {"log_scale"} & set(each)
            assert bool(told) == (each["key"] in ("output/C", "output/c", "output/n")), (case["id"], each["key"])
    assert infinite_arguments and infinite_outputs


def test_a_seed_gives_the_same_bytes_in_any_process_and_another_seed_others(tmp_path: Path) -> None:
    options = ("--op", "mlstm", "--op", "gru", "--cases", "3", "--max-steps", "33")

    def written(name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    assert invoke("export", tmp_path / "once", "--seed", 7, *options).exit_code == 0
    command = [sys.executable, "-m", "conformance", "vectors", "export", str(tmp_path / "again"), "--seed", "7"]
    environment = {"PYTHONHASHSEED": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parents[1])}
    subprocess.run([*command, *options], check=True, env=environment, capture_output=True, timeout=120)
    assert invoke("export", tmp_path / "other", "--seed", 8, *options).exit_code == 0
    once, again, other = written("once"), written("again"), written("other")
    assert once == again and len(once) == 1 + 2 * 4 * 3
    assert once.keys() == other.keys() and all(once[name] != other[name] for name in once)


def test_fewer_steps_and_more_cases_are_what_is_asked_for(tmp_path: Path) -> None:
    asked = ("--op", "mlstm", "--dtype", "bfloat16", "--cases", 15, "--max-steps", 6)
    assert invoke("export", tmp_path / "set", *asked).exit_code == 0
    cases = cases_of(tmp_path / "set")
    assert len(cases) == 15 and max(case["sizes"]["S"] for case in cases) == 6
    assert cases[0]["about"] != cases[13]["about"], "a row that comes round again has values of its own"


@pytest.mark.parametrize(("target", "dtypes"), [("reference", FLOATING), ("torch_impl", ("float32", "bfloat16"))])
def test_an_implementation_that_holds_the_laws_is_right(
    target: str, dtypes: tuple[str, ...], exported: Path, tmp_path: Path
) -> None:
    if target == "torch_impl":
        pytest.importorskip("torch")
    offered = load(target, None, "cpu").functions
    operations = [name for name in OPERATIONS if name in offered or name == "mlstm_fwbw_custom_grad"]
    answer(target, exported, tmp_path / "answers", dtypes, operations)
    options = [word for dtype in dtypes for word in ("--dtype", dtype)]
    options += [word for operation in operations for word in ("--op", operation)]
    result = invoke("check", exported, tmp_path / "answers", *options, "--json", tmp_path / "reports" / "report.json")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "reports" / "report.json").read_text(encoding="utf-8"))
    assert report["held"] and report["summary"]["wrong"] == report["summary"]["missing"] == 0
    asked = [case for case in cases_of(exported) if case["dtype"] in dtypes and case["operation"] in operations]
    assert len(report["cases"]) == len(asked)
    assert all(each["worst_error"] <= 1 for case in report["cases"] for each in case["arrays"])


def test_another_program_is_right(exported: Path, tmp_path: Path) -> None:
    run_program(exported, tmp_path / "answers")
    result = invoke("check", exported, tmp_path / "answers", "--only-given")
    assert result.exit_code == 0, result.output
    assert "0 wrong" in result.output and "left out" in result.output
    assert result.output.count("✓") == 5 * 4 and "✗" not in result.output
    unfinished = invoke("check", exported, tmp_path / "answers")
    assert unfinished.exit_code == 1 and "--only-given judges only the arrays that are there" in unfinished.output
    one = invoke("check", exported, tmp_path / "answers", "--op", "rev_cumsum", "--dtype", "float16")
    assert one.exit_code == 0, one.output


def first_wrong(report: dict, operation: str) -> dict:
    return next(
        each
        for case in report["cases"]
        if case["operation"] == operation
        for each in case["arrays"]
        if each["status"] == "wrong"
    )


@pytest.mark.parametrize(
    ("mistake", "operation", "key", "index"),
    [
        # Lengths 4, 0, 13: token 4 is the first that starts from a predecessor's state.
        ("carry", "mlstm", "output/h", [4, 0, 0]),
        # Six heads share three weights, two each: dealt out in turn, head 1 is the first to get another's.
        ("order", "gru", "output/y", [0, 0, 1, 0]),
        ("nan", "mlstm", "output/h", [1, 4, 1, 1]),
    ],
)
def test_a_mistake_is_found_where_it_is(
    mistake: str, operation: str, key: str, index: list[int], exported: Path, tmp_path: Path
) -> None:
    run_program(exported, tmp_path / "answers", mistake)
    result = invoke("check", exported, tmp_path / "answers", "--only-given", "--json", tmp_path / "report.json")
    assert result.exit_code == 1, result.output
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    wrong = first_wrong(report, operation)
    assert (wrong["key"], wrong["index"]) == (key, index)
    assert f"at {index} got {wrong['got']}" in result.output
    right = {each["status"] for case in report["cases"] if case["operation"] != operation for each in case["arrays"]}
    assert not report["held"] and right == {"held", "missing"}


def test_one_number_that_is_off_by_twice_what_is_allowed_is_wrong(small: Path, tmp_path: Path) -> None:
    answer("reference", small, tmp_path / "answers")
    (case, *_) = [case for case in cases_of(small) if case["operation"] == "mlstm"]
    given = unpack((small / case["file"]).read_bytes())
    path = tmp_path / "answers" / case["file"]
    for factor, status in ((0.9, 0), (2.0, 1)):
        found = unpack(path.read_bytes())
        values = given["gradient/k"].values.copy()
        values[1, 3, 0, 2] += factor * given["allowed/gradient/k"].values[1, 3, 0, 2]
        path.write_bytes(pack({**found, "gradient/k": Array(values, "float64")}))
        result = invoke("check", small, tmp_path / "answers")
        assert result.exit_code == status, result.output
    assert "`gradient/k`" in result.output and "at [1, 3, 0, 2]" in result.output
    assert "worst error is 2 times" in result.output


def test_states_are_compared_in_the_units_of_the_expected_m(small: Path, tmp_path: Path) -> None:
    answer("reference", small, tmp_path / "answers")
    (case, *_) = [case for case in cases_of(small) if case["operation"] == "mlstm"]
    path = tmp_path / "answers" / case["file"]
    found = unpack(path.read_bytes())
    moved = {"m": 1.0, "C": math.exp(-1.0), "n": math.exp(-1.0)}
    for name, change in moved.items():
        values = found[f"output/{name}"].values
        found[f"output/{name}"] = Array(values + change if name == "m" else values * change, "float64")
    path.write_bytes(pack(found))
    invoke("check", small, tmp_path / "answers", "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    wrong = [each["key"] for case in report["cases"] for each in case["arrays"] if each["status"] == "wrong"]
    assert wrong == ["output/m"], "the memory is the same, but m is held to its definition"
    found["output/C"] = Array(found["output/C"].values * math.exp(1.0), "float64")
    path.write_bytes(pack(found))
    result = invoke("check", small, tmp_path / "answers")
    assert result.exit_code == 1 and "in the units of the expected `output/m`, expected" in result.output


def _drop(name: str) -> Callable[[dict[str, Array]], dict[str, Array]]:
    return lambda found: {key: x for key, x in found.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop("output/m"), "cannot be compared without `output/m`"),
        (lambda found: {**found, "output/h": array(np.zeros((5, 2, 2, 2)), "float32")}, "shape [5, 2, 2, 2], expected"),
        (lambda found: {**found, "output/h": array(np.zeros((2, 5, 2, 2)), "int32")}, "is int32; expected one of"),
        (lambda found: {**found, "output/y": found["output/h"]}, "holds `output/y`; expected output/h"),
        (lambda found: {**found, "argument/q": found["output/h"]}, "holds `argument/q`"),
        (_drop("gradient/q"), "1 arrays are missing"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_told_in_a_sentence(
    change: Callable, said: str, small: Path, tmp_path: Path
) -> None:
    answer("reference", small, tmp_path / "answers")
    (case, *_) = [case for case in cases_of(small) if case["operation"] == "mlstm"]
    path = tmp_path / "answers" / case["file"]
    path.write_bytes(pack(change(unpack(path.read_bytes()))))
    result = invoke("check", small, tmp_path / "answers")
    assert result.exit_code == 1 and said in result.output, result.output


def test_files_that_are_broken_or_belong_to_no_case_are_told(small: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answer("reference", small, answers)
    (answers / "notes.txt").write_text("mine")
    assert invoke("check", small, answers).exit_code == 0
    (answers / "mlstm.float32.007.safetensors").write_bytes(b"")
    result = invoke("check", small, answers)
    assert result.exit_code == 1 and "mlstm.float32.007.safetensors belongs to no case of the set" in result.output
    (answers / "mlstm.float32.007.safetensors").unlink()
    name = cases_of(small)[0]["file"]
    (answers / name).write_bytes((answers / name).read_bytes()[:-1])
    result = invoke("check", small, answers, "--only-given")
    assert result.exit_code == 1 and f"{name} is not a safetensors file" in result.output
    (answers / name).unlink()
    (answers / name).mkdir()
    result = invoke("check", small, answers, "--only-given")
    assert result.exit_code == 1 and f"{name} cannot be read" in result.output


def test_a_set_that_was_tampered_with_judges_nothing(tmp_path: Path) -> None:
    folder, answers = tmp_path / "set", tmp_path / "answers"
    assert invoke("export", folder, "--op", "rev_cumsum", "--dtype", "float32", "--cases", 1).exit_code == 0
    answer("reference", folder, answers)
    (name,) = [path.name for path in folder.glob("*.safetensors")]
    data, text = (folder / name).read_bytes(), (folder / "manifest.json").read_text(encoding="utf-8")

    def told(said: str) -> None:
        result = invoke("check", folder, answers)
        assert result.exit_code == 2 and said in result.output, result.output
        (folder / name).write_bytes(data)
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        assert invoke("check", folder, answers).exit_code == 0

    (folder / name).write_bytes(data[:-1] + b"\x01")
    told("is not the file that was exported: its SHA-256 differs")
    (folder / name).unlink()
    told("export the set again")
    (folder / "manifest.json").write_text(text.replace('"version": 1', '"version": 2'), encoding="utf-8")
    told("is in version 2 of the format and this program reads version 1")
    (folder / "manifest.json").write_text(text[:-40], encoding="utf-8")
    told("is not valid JSON")
    (folder / "manifest.json").write_text(text.replace('"outputs"', '"output"'), encoding="utf-8")
    told("is damaged")
    (folder / "manifest.json").write_text(text.replace(f'"{name}"', f'"../{name}"'), encoding="utf-8")
    told("is not the name of a file next to the manifest")
    (folder / "manifest.json").write_text('{"format": "a web page"}', encoding="utf-8")
    told("is not a manifest of test vectors")


def test_wrong_calls_exit_2_and_say_what_to_type(small: Path, tmp_path: Path) -> None:
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("mine")
    calls = {
        ("export", file): "is a file; give a folder",
        ("export", file / "below"): "give another folder",
        ("export", small): "is not empty; give another folder, or --force",
        ("export", empty, "--cases", 0): "0 is not in the range x>=1",
        ("export", empty, "--max-steps", 0): "0 is not in the range x>=1",
        ("export", empty, "--op", "lstm"): "'lstm' is not one of 'rev_cumsum'",
        ("export", empty, "--dtype", "int8"): "'int8' is not one of 'float64'",
        ("check", empty, small): "vectors export DIR",
        ("check", small, tmp_path / "nowhere"): "there is no folder",
        ("check", small, file): "there is no folder",
        ("check", small, small): "is the set itself",
        ("check", small, empty): "answers none of these 4 cases; an answer lies in a file with the name",
        ("check", small, empty, "--op", "gru"): "leave out --op or --dtype",
        ("check", small): "for example: gatespec vectors check vectors answers",
        ("export",): "for example: gatespec vectors export vectors",
        ("judge", small): "there is no command 'judge'; type check or export",
    }
    for call, said in calls.items():
        result = invoke(*call)
        assert result.exit_code == 2 and said in " ".join(result.output.split()), (call, result.output)
    assert not any(empty.iterdir())


def test_files_that_cannot_be_meant_are_refused_without_being_read(small: Path, tmp_path: Path) -> None:
    answers, vectors = tmp_path / "answers", tmp_path / "vectors"
    shutil.copytree(small, vectors)
    answers.mkdir()
    first = cases_of(vectors)[0]["file"]
    os.mkfifo(answers / first)
    assert "is not an ordinary file" in invoke("check", vectors, answers).output
    (answers / first).unlink()
    with open(answers / first, "wb") as sparse:
        sparse.truncate(40 * 10**9)
    result = invoke("check", vectors, answers)
    assert result.exit_code == 1 and "has 40,000,000,000 bytes" in " ".join(result.output.split()), result.output
    manifest = vectors / "manifest.json"
    text = manifest.read_text()
    for damaged, said in (
        ("[" * 300_000 + "]" * 300_000, "is not valid JSON"),
        (text.replace('"operation": "', '"operation": "x', 1), "there is no operation 'x"),
        (
            text.replace('"outputs": [', '"outputs": [], "o": [').replace('"gradients": [', '"gradients": [], "g": ['),
            "asks",
        ),
    ):
        manifest.write_text(damaged)
        result = invoke("check", vectors, answers)
        assert result.exit_code == 2 and said in " ".join(result.output.split()), result.output
    manifest.unlink()
    os.mkfifo(manifest)
    result = invoke("check", vectors, answers)
    assert result.exit_code == 2 and "is not an ordinary file" in " ".join(result.output.split()), result.output


def test_force_replaces_a_set_and_leaves_other_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "Größe" / "набор"
    few = ("--op", "rev_cumsum", "--dtype", "float32")
    assert invoke("export", folder, *few, "--cases", 3).exit_code == 0
    (folder / "notes.txt").write_text("mine")
    assert invoke("export", folder, *few, "--cases", 1, "--force").exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "notes.txt",
        "rev_cumsum.float32.000.safetensors",
    ]
    answer("reference", folder, tmp_path / "Antworten äöü")
    result = invoke("check", folder, tmp_path / "Antworten äöü")
    assert result.exit_code == 0, result.output
    foreign = tmp_path / "site"
    foreign.mkdir()
    (foreign / "manifest.json").write_text('{"name": "a web page"}')
    result = invoke("export", foreign, *few, "--force")
    assert result.exit_code == 2 and "is not a manifest of test vectors" in result.output
    assert (foreign / "manifest.json").read_text() == '{"name": "a web page"}'


def test_the_answer_that_the_page_writes_out_is_read_as_it_says() -> None:
    lines = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines()]
    at = lines.index("3e 00 00 00 00 00 00 00")
    data = bytes.fromhex(lines[at]) + lines[at + 1].encode() + bytes.fromhex(lines[at + 2])
    assert len(data) == 82
    (found,) = unpack(data).items()
    assert found[0] == "output/y" and found[1].dtype == "float32"
    np.testing.assert_array_equal(found[1].values, [-0.25, -1.75, 0.25])


def test_the_page_s_table_of_operations_is_the_records() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    for operation in OPERATIONS.values():
        (row,) = [line for line in page if line.startswith("|") and f"`{operation.name}`" in line]
        _, _, arguments, options, outputs, _ = (" ".join(re.findall("`([^`]*)`", cell)) for cell in row.split("|"))
        assert arguments.split() == [argument.name for argument in operation.arguments]
        assert options.split() == [option.name for option in operation.options if option.portable]
        assert outputs.replace("return_state ", "").split() == [output.name for output in operation.outputs]


@pytest.mark.parametrize("dtype", [*FLOATING, "int32"])
def test_arrays_are_stored_as_they_are(dtype: str) -> None:
    numbers = np.array([[1.1, -2.5, 0.0], [65504.0, -np.inf, np.nan]]) if dtype in FLOATING else np.arange(6) - 3
    given = {"x": array(numbers, dtype), "empty": array(np.zeros((2, 0)), dtype), "größe": array(numbers.T, dtype)}
    found = unpack(pack(given))
    assert found.keys() == given.keys()
    for name, x in given.items():
        assert found[name].dtype == dtype and found[name].shape == x.shape
        np.testing.assert_array_equal(found[name].values, x.values)


def test_a_terminal_has_wrapped_lines(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_terminal(monkeypatch, 60)
    refused = invoke("check", small, tmp_path / "no answers of a program with a rather long name").output
    # A path without spaces is longer than a line.
    lines = [line for line in refused[refused.index("Error: ") :].splitlines() if "/" not in line]
    assert lines and all(len(line) <= 60 and line.startswith("    ") for line in lines), refused
    answer("reference", small, tmp_path / "answers")
    next((tmp_path / "answers").iterdir()).unlink()
    answers = invoke("check", small, tmp_path / "answers").output
    said = answers[answers.index("✗") :].strip().splitlines()
    assert len(said) > 1 and max(map(len, said)) <= 60 and all(line.startswith("    ") for line in said[1:]), answers
