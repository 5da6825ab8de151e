"""The harness: a wrong kernel gets no time, ratios have their interval, shapes and calls are refused in words."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

import torch

import torch_impl
from benchmarks import measure, overhead, results
from benchmarks.cases import SHAPES, Case, parse
from benchmarks.command import main
from benchmarks.contenders import Contender, UnavailableError
from benchmarks.timing import Timing, interleaved, measured, ratio

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
    row = Contender("absent", "mlstm", "torch", absent)
    assert entry_of(monkeypatch, row).reason == "nothing is not installed; pip install nothing"


def test_a_head_first_contender_is_fed_in_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def head_first(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        assert q.shape[1] == 2 and i.is_contiguous()
        arrays = [x.transpose(1, 2) for x in (q, k, v, i, f)]
        return (torch_impl.mlstm(*arrays).transpose(1, 2),)

    entry = entry_of(monkeypatch, contender("head first", head_first, head_first=True))
    assert entry.conformity is not None and entry.conformity.verdict == "conforms"


def test_a_ratio_has_an_interval_that_holds_it() -> None:
    rng = np.random.default_rng(0)
    noise = rng.lognormal(sigma=0.2, size=21)
    ours, theirs = Timing(tuple(noise)), Timing(tuple(3 * noise * rng.lognormal(sigma=0.05, size=21)))
    found, low, high = ratio(ours, theirs)
    assert low <= found <= high and 2.5 < found < 3.5
    assert ratio(ours, ours) == (1.0, 1.0, 1.0)


def test_rounds_are_interleaved_and_start_with_another_each_time() -> None:
    order: list[str] = []

    def clock(run: Any, count: int) -> float:
        run()
        return 1.0 * count

    rounds = list(interleaved({name: lambda name=name: order.append(name) for name in "abc"}, 3, clock))
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert measured(rounds)["b"].median == 1.0


def test_the_floor_grows_linearly_with_the_tokens() -> None:
    for case in (MLSTM, Case("gru", 2, 64, 3, 8, 8), replace(MLSTM, S=256, direction="forward")):
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
    options = ("--peers", "torch_gru,flashrnn", "--backend", "torch", "--rounds", "3")
    done = invoke("run", *shapes, *options, "--json", str(path), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    document = results.read(path)
    rows = {(row["op"], row["contender"]): row for row in document["rows"]}
    for op in ("mlstm", "mlstm_step", "gru"):
        row = rows[op, "torch_impl (torch)"]
        assert row["seconds"] > row["floor_seconds"] > 0 and row["conformity"]["verdict"] == "conforms"
        assert row["times_ours"] == {"ratio": 1.0, "low": 1.0, "high": 1.0} and len(row["rounds"]) == 3
    assert rows["gru", "torch.nn.GRU"]["conformity"]["verdict"] == "conforms"
    absent = rows["gru", "flashrnn vanilla"]
    assert absent["seconds"] is not None or "pip install flashrnn" in absent["reason"]
    assert document["machine"]["versions"]["torch"] == str(torch.__version__)
    assert invoke("report", str(path), "--html", str(page)).exit_code == 0
    assert "<svg" in picture.read_text() and "torch.nn.GRU" in page.read_text() and "https://" not in page.read_text()


def test_a_wrong_kernel_turns_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [contender("torch_impl (torch)", right), contender("unscaled", unscaled)]
    monkeypatch.setattr(measure, "contenders", lambda op, peers: rows)
    done = invoke("run", "--shapes", "mlstm:1x32x2x8x8", "--rounds", "3", "--peers", "none")
    assert done.exit_code == 1 and "no time for unscaled: wrong: " in " ".join(done.output.split())


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    for text, said in (("{", "is no JSON"), ("[]", "is no result"), (json.dumps({"format": 0}), "is no result")):
        path = tmp_path / "results.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            results.read(path)


def test_no_public_call_makes_twice_the_calls_it_made() -> None:
    kept = overhead.kept()
    counted = overhead.found()
    assert set(counted) == set(kept)
    for name, number in counted.items():
        assert number < 2 * kept[name], f"{name}: {number} calls, {kept[name]} when it was last looked at"
        assert number > 0.5 * kept[name], f"{name}: {number} calls; take {overhead.KEPT.name} down from {kept[name]}"
