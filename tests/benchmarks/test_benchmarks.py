"""The harness: a wrong kernel gets no time, ratios have their interval, shapes and calls are refused in words."""

import json
import math
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

import torch

import torch_impl
from benchmarks import command
from benchmarks.command import main
from benchmarks.costs import calls, overhead
from benchmarks.report import readme
from benchmarks.speed import goals, measure, memory, results
from benchmarks.speed.cases import SHAPES, Part, parse
from benchmarks.speed.contenders import Contender, UnavailableError
from benchmarks.speed.operations import OPS, Case
from benchmarks.speed.rows.all_rows import contenders
from benchmarks.speed.timing import Timing, calls_per_round, fastest_call, interleaved, measured, ratio

MLSTM = Case("mlstm", 1, 32, 2, 8, 8)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def contender(name: str, function: Any, **fields: Any) -> Contender:
    return Contender(name, "mlstm", "torch", lambda case, choice: function, **fields)


def right(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
    return (torch_impl.mlstm(q, k, v, i, f),)


def unscaled(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
    return (torch_impl.mlstm(q * q.shape[-1] ** 0.5, k, v, i, f),)


def constant_normaliser(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
    ones = torch.ones_like(v[..., :1])
    both = torch_impl.mlstm(q, k, torch.cat([v, ones], -1), i, f)
    with torch.no_grad():
        size = torch_impl.mlstm(q, k, torch.cat([v, ones], -1), i, f)[..., -1:]
    return (both[..., :-1] * (both[..., -1:].detach() / size),)


def less_exact(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
    return (torch_impl.mlstm(q, k, v, i, f) * (1 + 1e-4),)


def entry_of(monkeypatch: pytest.MonkeyPatch, row: Contender, case: Case = MLSTM) -> measure.Entry:
    monkeypatch.setattr(measure, "contenders", lambda op, peers: [row])
    (entry,) = measure.Bench("cpu", (), rounds=3).measure(case).entries
    return entry


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_a_wrong_kernel_gets_no_time(monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    entry = entry_of(monkeypatch, contender("unscaled", unscaled), replace(MLSTM, direction=direction))
    assert entry.timing is None and entry.conformity is not None and entry.conformity.verdict == "wrong"
    assert entry.reason is not None and entry.reason.startswith("wrong: ")


def test_what_is_wrong_only_in_its_gradient_has_a_forward_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    row = contender("constant normaliser", lambda q, k, v, i, f: (torch_impl.mlstm(q, k, v, i, f.detach()),))
    assert entry_of(monkeypatch, row, replace(MLSTM, direction="forward")).timing is not None
    assert entry_of(monkeypatch, row).reason.startswith("wrong: gradient of f")


def test_a_declared_difference_is_timed_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    row = contender("unscaled", unscaled, differs=("no 1/√K", ("both",)))
    entry = entry_of(monkeypatch, row)
    assert entry.timing is not None and entry.conformity is not None and entry.conformity.verdict == "wrong"
    assert entry_of(monkeypatch, row, replace(MLSTM, direction="forward")).timing is None, "declared for both alone"


def test_the_same_function_computed_less_well_is_timed_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(monkeypatch, contender("less exact", less_exact))
    assert entry.timing is not None and entry.conformity is not None
    assert entry.conformity.verdict == "same function" and entry.conformity.worst > 1


def test_a_contender_that_raises_or_is_not_there_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(**arrays: Any) -> Any:
        raise IndexError("no kernel for this shape")

    def absent(case: Case, choice: Any) -> Any:
        raise UnavailableError("nothing is not installed; pip install nothing")

    assert entry_of(monkeypatch, contender("raises", raises)).reason == "raised IndexError: no kernel for this shape"
    for choices in ((None,), (32, 64)):
        row = Contender("absent", "mlstm", "torch", absent, choices=choices)
        assert entry_of(monkeypatch, row).reason == "nothing is not installed; pip install nothing"


def test_a_setting_that_does_not_serve_the_case_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(case: Case, choice: int) -> Any:
        if choice == 32:
            raise UnavailableError("chunks of 32 are not served")
        return right

    row = Contender("of two settings", "mlstm", "torch", load, choices=(32, 64))
    entry = entry_of(monkeypatch, row)
    assert entry.timing is not None and entry.choice == 64


def test_a_head_first_contender_is_fed_in_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def head_first(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        assert q.shape[1] == 2 and i.is_contiguous()
        arrays = [x.transpose(1, 2) for x in (q, k, v, i, f)]
        return (torch_impl.mlstm(*arrays).transpose(1, 2),)

    entry = entry_of(monkeypatch, contender("head first", head_first, head_first=True))
    assert entry.conformity is not None and entry.conformity.verdict == "conforms"


def test_a_case_is_drawn_once_and_laid_once_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noting(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        seen.append(q.data_ptr() if q.shape == (1, 160, 2, 8) else 0)
        return right(q, k, v, i, f)

    rows = [contender("first", noting), contender("second", noting)]
    monkeypatch.setattr(measure, "contenders", lambda op, peers: rows)
    measure.Bench("cpu", (), rounds=3).measure(Case("mlstm", 1, 160, 2, 8, 8, direction="forward"))
    assert len(set(seen) - {0}) == 1


def test_a_ratio_has_an_interval_that_holds_it() -> None:
    rng = np.random.default_rng(0)
    noise = rng.lognormal(sigma=0.2, size=21)
    ours, theirs = Timing(tuple(noise)), Timing(tuple(3 * noise * rng.lognormal(sigma=0.05, size=21)))
    found, low, high = ratio(ours, theirs)
    assert low <= found <= high and 2.5 < found < 3.5
    assert ratio(ours, ours) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # A call that is not timed comes first, unless calls are long.
        (0.02, "abc" + "aabbcc" + "bbccaa" + "ccaabb"),
        (1.0, "abc" + "abc" + "bca" + "cab"),
    ],
)
def test_rounds_are_interleaved_and_start_with_another_each_time(seconds: float, expected: str) -> None:
    order: list[str] = []

    def clock(run: Any, count: int) -> float:
        run()
        return seconds * count

    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    with patch("benchmarks.speed.timing.TRIAL_CALLS", 1):
        rounds = list(interleaved(runs, 3, clock))
    assert "".join(order) == expected
    assert measured(rounds)["b"].median == seconds


def test_the_call_that_is_not_timed_may_be_slow() -> None:
    calls = iter([0.3, 5.0, 0.02])
    (one,) = interleaved({"a": lambda: None}, 1, lambda run, count: next(calls))
    assert one == {"a": 0.02}


def test_slow_first_calls_do_not_decide_how_many_calls_a_round_has() -> None:
    calls = iter([0.02, 0.015, 0.02] + 20 * [1e-4])
    assert calls_per_round(fastest_call(lambda: None, lambda run, count: next(calls))) == 200
    assert calls_per_round(fastest_call(lambda: None, lambda run, count: 0.0)) == 20_000


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 15), (10.0, 7), (20.0, 3), (100.0, 3)])
def test_slow_contenders_have_fewer_rounds_and_give_their_memory_back(seconds: float, expected: int) -> None:
    runs = {name: lambda: None for name in "ab"}
    with patch("benchmarks.speed.timing.give_back_memory") as given_back:
        rounds = list(interleaved(runs, 15, lambda run, count: seconds * count))
    assert len(rounds) == expected
    assert given_back.call_count == (0 if seconds < 0.5 else len(runs) * (1 + expected))


def test_the_floor_grows_linearly_with_the_tokens() -> None:
    others = (Case(op, 2, 64, 3, 8, 8) for op in ("gru", "gru_reset_after", "slstm"))
    for case in (MLSTM, *others, replace(MLSTM, S=256, direction="forward")):
        longer = replace(case, B=4 * case.B)
        assert math.isclose(longer.flop, 4 * case.flop)
        assert 3.5 < longer.bytes / case.bytes <= 4


@pytest.mark.parametrize(
    "text", ["mlstm:1x2x3x4", "mlstm:axb", "lstm:1x2x3x4x5", "gru:1x2x3x4:float8", "gru:0x2x3x4", ""]
)
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="as in mlstm:1x2048x4x128x128:float32:both"):
        parse(text)


def test_shapes_are_said_in_words() -> None:
    assert parse("mlstm:1x2x3x4x5:bfloat16:forward") == [Case("mlstm", 1, 2, 3, 4, 5, "bfloat16", "forward")]
    assert parse("gru:2x3x4x5") == [Case("gru", 2, 3, 4, 5, 5)]
    assert parse("mlstm_step:2x3x4x5") == [Case("mlstm_step", 2, 1, 3, 4, 5, direction="forward")]
    assert parse("smoke") == list(SHAPES["smoke"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--peers", "cudnn"), "there is no peer 'cudnn'; name some of mlstm_kernels"),
        (("run", "--shapes", "large"), "name a group (laptop"),
        (("run", "--shapes", "smoke", "--dtype", "float64"), "no case is left"),
        (("run", "--rounds", "1"), "x>=3"),
        (("report", "/no/such.json"), "does not exist"),
    ],
)
def test_a_wrong_call_exits_2_and_says_what_to_type(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2 and said in " ".join(result.output.split())


def test_a_run_leaves_json_a_picture_and_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, picture, page = tmp_path / "smoke.json", tmp_path / "smoke.svg", tmp_path / "smoke.html"
    shapes = ("--shapes", "mlstm:1x33x2x8x8", "--shapes", "gru:2x9x1x5", "--shapes", "mlstm_step:1x2x8x8")
    shapes += (
        "--shapes",
        "slstm:2x9x2x5",
        "--shapes",
        "gru_reset_after:2x9x1x5",
        "--shapes",
        "gru_reset_after:2x9x2x5",
    )
    options = ("--peers", "torch_gru,flashrnn", "--backend", "torch", "--rounds", "3")
    done = invoke("run", *shapes, *options, "--json", str(path), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    document = results.read(path)
    rows = {(row["op"], row["contender"]): row for row in document["rows"]}
    for op in ("mlstm", "mlstm_step", "gru", "slstm", "gru_reset_after"):
        row = rows[op, "torch_impl (torch)"]
        assert row["seconds"] > row["floor_seconds"] > 0 and row["conformity"]["verdict"] == "conforms"
        assert row["times_ours"] == {"ratio": 1.0, "low": 1.0, "high": 1.0} and len(row["rounds"]) == 3
    assert rows["gru", "torch.nn.GRU"]["conformity"]["verdict"] == "conforms"
    late = rows["gru_reset_after", "torch.nn.GRU"]
    assert late["conformity"]["verdict"] == "conforms" and late["restriction"] is None
    absent = rows["gru", "flashrnn vanilla"]
    assert absent["seconds"] is not None or "pip install flashrnn" in absent["reason"]
    assert document["machine"]["versions"]["torch"] == str(torch.__version__)
    assert invoke("report", str(path), "--html", str(page)).exit_code == 0
    assert "<svg" in picture.read_text() and "torch.nn.GRU" in page.read_text() and "https://" not in page.read_text()


RESIDENT_AFTER_64_MIB = """
import numpy as np
from benchmarks.speed.timing import keep_freed_memory
from benchmarks.speed.memory import resident

if {keep}:
    assert keep_freed_memory()
np.ones(2**23)
print(resident("VmRSS") >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_the_process_of_a_timing_keeps_freed_memory() -> None:
    def resident(keep: bool) -> int:
        command = [sys.executable, "-c", RESIDENT_AFTER_64_MIB.format(keep=keep)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert resident(keep=True) > resident(keep=False) + 60


def test_floors_are_those_of_the_best_rates_of_the_run() -> None:
    def measurement(flop_rate: float, dtype: str) -> measure.Measurement:
        entry = measure.Entry(contender("torch_impl (torch)", right), timing=Timing((2.0, 2.0, 2.0)))
        return measure.Measurement(replace(MLSTM, dtype=dtype), [entry], flop_rate, 1e12)

    disturbed, best, other = measurement(1e9, "float32"), measurement(4e9, "float32"), measurement(1e9, "float64")
    measure.use_best_rates([disturbed, best, other])
    assert disturbed.floor == best.floor == MLSTM.flop / 4e9
    assert disturbed.entries[0].fraction == best.floor / 2
    assert other.flop_rate == 1e9


def test_a_wrong_kernel_turns_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [contender("torch_impl (torch)", right), contender("unscaled", unscaled)]
    monkeypatch.setattr(measure, "contenders", lambda op, peers: rows)
    done = invoke("run", "--shapes", "mlstm:1x32x2x8x8", "--rounds", "3", "--peers", "none")
    assert done.exit_code == 1 and "no time for unscaled: wrong: " in " ".join(done.output.split())


def row(contender: str, seconds: float, **fields: Any) -> dict[str, Any]:
    case = fields.pop("case", "mlstm B1 S2048 N4 K128 V128 float32 forward")
    shape = {"op": "mlstm", "B": 1, "S": 2048, "N": 4, "K": 128, "V": 128, "dtype": "float32", "direction": "forward"}
    timed = {"seconds": seconds, "rounds": [0.9 * seconds, seconds, 1.1 * seconds], "first_call_seconds": 1.0}
    own = contender.startswith(("torch_impl", "jax_impl"))
    return {"case": case, **shape, "contender": contender, "own": own, **timed, "peak_bytes": None, **fields}


def test_an_update_measures_some_cases_again_and_keeps_the_others(tmp_path: Path) -> None:
    def run(suite: str, versions: dict[str, str], **seconds: float) -> dict[str, Any]:
        rows = [row("torch_impl (torch)", time, case=case) for case, time in seconds.items()]
        return {"format": results.FORMAT, "suite": suite, "machine": {"cores": 2, "versions": versions}, "rows": rows}

    before = run("cpu", {"jax": "0.10", "torch": "2.13"}, first=1.0, second=2.0)
    found = results.merged(before, run("cpu", {"torch": "2.13"}, second=3.0, third=4.0))
    timed = [(each["case"], each["seconds"]) for each in found["rows"]]
    assert timed == [("first", 1.0), ("second", 3.0), ("third", 4.0)] and found["machine"] == before["machine"]
    for other in (run("smoke", {}), run("cpu", {"torch": "2.14"}), run("cpu", {"flax": "0.12"})):
        with pytest.raises(ValueError, match=r"a run of cpu on .* cannot be updated by one of"):
            results.merged(before, other)
    for arguments in (["--update"], ["--update", "--json", str(tmp_path / "none.json")]):
        done = invoke("run", *arguments)
        assert done.exit_code == 2 and "--update needs --json with a file of earlier results" in done.output
    path = tmp_path / "run.json"
    quick = ["run", "--shapes", "mlstm:1x16x2x8x8:float32:forward", "--peers", "none", "--backend", "torch"]
    for direction, count in (("forward", 1), ("both", 2)):
        quick[2] = f"mlstm:1x16x2x8x8:float32:{direction}"
        options = ["--rounds", "3", "--json", str(path), *(["--update"] if path.exists() else [])]
        assert invoke(*quick, *options).exit_code == 0
        assert len({each["case"] for each in results.read(path)["rows"]}) == count


def test_the_faster_of_our_implementations_is_compared_with_the_fastest_peer() -> None:
    case = "mlstm B1 S2048 N4 K128 V128 float32 both"
    times = {"torch_impl (torch)": 1.0, "jax_impl (xla)": 0.8, "products alone (torch)": 0.1, "torch loop": 0.2,
             "reference": 0.3, "mlstm_kernels native": 1.4, "mlstm_kernels JAX native": 1.12}  # fmt: skip
    rows = [row(name, time, case=case, direction="both") for name, time in times.items()]
    # Another part of the run measured this case in fewer rounds.
    rows.append(row("jax_impl (xla)", 0.1, case=case, direction="both", rounds=[0.1]))
    (found,) = [each for each in goals.judged({"rows": rows}) if "fastest peer" in each["goal"]]
    assert math.isclose(found["measured"], 1.4) and not found["met"] and found["least"] == 1.5
    assert found["where"].endswith("mlstm_kernels JAX native")


def test_a_fixed_cost_leaves_out_the_work() -> None:
    """With its operators emptied a call computes nothing; outside it computes again."""
    q, gates = torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1)
    before = torch_impl.mlstm(q, q, q, gates, gates)
    with calls.emptied():
        assert torch_impl.mlstm(q, q, q, gates, gates).shape == before.shape
        assert calls_of_products(lambda: torch_impl.mlstm(q, q, q, gates, gates)) == 0
    assert calls_of_products(lambda: torch_impl.mlstm(q, q, q, gates, gates)) > 0
    assert torch.equal(torch_impl.mlstm(q, q, q, gates, gates), before)


def calls_of_products(function: Any) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return sum(
        event.count for event in profile.key_averages() if event.key in ("aten::bmm", "aten::mm", "aten::baddbmm")
    )


def test_the_goals_of_a_suite_are_in_its_json_and_on_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, page = tmp_path / "smoke.json", tmp_path / "smoke.html"
    monkeypatch.setattr(command, "SUITES", {"smoke": (Part("gru:1x9x1x4", ("torch_gru", "loops"), 3),)})
    done = invoke("run", "--suite", "smoke", "--json", str(path))
    assert done.exit_code == 0, done.output
    document = results.read(path)
    found = {each["goal"] for each in document["goals"]}
    assert {"torch GRU over a loop, forward + backward", "torch: fixed cost of a call in empty calls"} <= found
    assert {(each["function"], each["framework"]) for each in document["calls"]} >= {
        ("mlstm_step", "torch"),
        ("gru", "jax"),
    }
    assert invoke("report", str(path), "--html", str(page)).exit_code == 0
    assert "fixed cost of a call" in page.read_text() and "goals: " in page.read_text()


def test_a_committed_run_of_the_suite_holds_every_goal() -> None:
    for path in command.RESULTS.glob("*.json"):
        if json.loads(path.read_text()).get("suite") == "cpu":
            document = results.read(path)
            assert {row["op"] for row in document["rows"]} == set(OPS), path.name
            assert {each["goal"] for each in document["goals"]} == {goal.text for goal in goals.GOALS}, path.name
            close = [pytest.approx([each["measured"], *(each["interval"] or ())]) for each in document["goals"]]
            again = goals.judged(document)
            assert [[each["measured"], *(each["interval"] or ())] for each in again] == close, path.name
            assert [each["where"] for each in again] == [each["where"] for each in document["goals"]], path.name


def test_goals_of_the_slstm_and_of_the_gru_with_a_late_reset_name_both_of_their_limits() -> None:
    def rows_of(case: Case, **seconds: float) -> list[dict[str, Any]]:
        fields = {"op": case.op, "case": case.id, "direction": case.direction, "B": case.B, "S": case.S, "N": case.N}
        return [row(name, time, **fields, K=case.K, V=case.V) for name, time in seconds.items()]

    (slstm,) = parse("slstm:8x256x4x64:float32:forward")
    (gru,) = parse("gru_reset_after:16x256x1x256:float32:both")
    rows = rows_of(slstm, **{"torch_impl (torch)": 1.0, "flashrnn vanilla": 2.5, "xlstm vanilla": 9.0})
    rows += rows_of(gru, **{"torch_impl (torch)": 1.0, "torch.nn.GRU": 1.2})
    found = {each["goal"]: (each["measured"], each["least"], each["met"]) for each in goals.judged({"rows": rows})}
    assert found == {
        "slstm over the fastest peer, forward": (pytest.approx(2.5), 3, False),
        "slstm of torch_impl over the fastest peer, forward": (pytest.approx(2.5), 3, False),
        "gru_reset_after over the fastest peer, forward + backward": (pytest.approx(1.2), 1, True),
        "gru_reset_after of torch_impl over torch.nn.GRU, forward + backward": (pytest.approx(1.2), 1, True),
    }


def test_the_readme_says_what_its_run_says(tmp_path: Path) -> None:
    written = (command.ROOT / "README.md").read_text()
    section = written.partition(readme.BEGIN)[2].partition(readme.END)[0]
    (name,) = set(re.findall(r"benchmarks/results/([\w-]+)\.json", section))
    path = tmp_path / "README.md"
    path.write_text(written)
    readme.rewrite(path, name, results.read(command.RESULTS / f"{name}.json"))
    assert path.read_text() == written, f"python -m benchmarks report --readme benchmarks/results/{name}.json"
    for picture in re.findall(r"\((docs/figures/[^)]+)\)", section):
        assert (command.ROOT / picture).exists()


def test_memory_of_a_process_is_that_of_the_call() -> None:
    """At least what the call returns, and more for more steps."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory of a process is read from /proc")
    found, returned = [], []
    for S in (2048, 8192):
        entry = measure.Entry(contenders("mlstm", ())[0])
        found.append(memory.of_process(Case("mlstm", 1, S, 2, 64, 64), entry, ()))
        returned.append(4 * S * 2 * (3 * 64 + 2))
    assert found[0] > returned[0] and found[1] > returned[1] and found[1] > 1.5 * found[0]


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    other = json.dumps({"format": 0})
    for text, said in (("{", "is not valid JSON"), ("[]", "is not a result"), (other, "is not a result")):
        path = tmp_path / "results.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            results.read(path)


OPERATIONS = (
    "mlstm",
    "mlstm_step",
    "gru",
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "fwbw",
)


def test_the_calls_of_every_operation_are_counted() -> None:
    wanted = {f"{prefix}{name}" for name in OPERATIONS for prefix in ("", "JAX ")}
    assert set(overhead.kept()) == wanted | {f"{name} with gradient" for name in OPERATIONS}


def test_no_public_call_makes_twice_the_calls_it_made() -> None:
    kept = overhead.kept()
    counted = overhead.found()
    assert set(counted) == set(kept)
    for name, number in counted.items():
        assert number < 2 * kept[name], f"{name}: {number} calls, {kept[name]} when it was last looked at"
        assert number > 0.5 * kept[name], f"{name}: {number} calls; take {overhead.KEPT.name} down from {kept[name]}"
