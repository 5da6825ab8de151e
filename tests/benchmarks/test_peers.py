"""Public implementations: adapters and scripts that stand alone, and a registry that names them."""

import ast
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.command import main
from benchmarks.judged import one_peer
from benchmarks.judged import page as peers_page
from benchmarks.judged import section as peers_section
from benchmarks.judged import trial as judged_peers
from benchmarks.judged.command import PAGE, RESULTS
from benchmarks.judged.findings import by_script, take_away, unsure_cells
from benchmarks.peers.faults import Calls, Confirmed, check_text
from benchmarks.peers.registry import PEERS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "peers"
ADAPTERS = sorted(
    path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "_adapter", "faults", "registry")
)
SHARED = [FOLDER / "_adapter.py", *sorted(judged_peers.CONFIRM.glob("_*.py"))]
SCRIPTS = sorted({*judged_peers.CONFIRM.glob("*.py")} - {*SHARED})
OURS = {"reference", "torch_impl", "jax_impl", "conformance", "benchmarks", "tests"}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", ADAPTERS + SCRIPTS + SHARED, ids=lambda path: path.stem)
def test_an_adapter_and_a_script_need_nothing_of_gatespec(path: Path) -> None:
    assert not imported(path) & OURS


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_every_adapter_is_judged_and_every_script_confirms_something() -> None:
    assert {peer.target.partition(":")[0] for peer in PEERS} == {path.stem for path in ADAPTERS}
    assert {each.script for peer in PEERS for each in peer.confirmed} == {path.stem for path in SCRIPTS}
    assert len({peer.name for peer in PEERS}) == len({peer.target for peer in PEERS}) == len(PEERS)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_an_attribute_of_its_adapter_and_its_package_is_pinned(peer: Any) -> None:
    module, _, attribute = peer.target.partition(":")
    body = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8")).body
    defined = {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    defined |= {node.name for node in body if isinstance(node, ast.FunctionDef)}
    assert (attribute or peer.op) in defined
    pins = (ROOT / "constraints" / "peers.txt").read_text(encoding="utf-8").replace("_", "-")
    assert re.search(rf"^{peer.package}==", pins, re.MULTILINE)


def report(status: str, **fields: Any) -> dict[str, Any]:
    law = {"law": "value", "dtype": "float32", "kind": "definition", "status": status, "reason": None}
    return {
        "versions": {},
        "interrupted": False,
        "seed": 0,
        "settings": {},
        "summary": {},
        "causes": [],
        "envelope": {},
        "laws": [{**law, "counterexample": None, **fields}],
    }


def test_a_report_is_kept_by_what_became_of_each_law() -> None:
    def kept(*words: Any, **fields: Any) -> dict[str, Any]:
        return {
            status: found for status, found in judged_peers._kept(report(*words, **fields))["laws"].items() if found
        }

    assert kept("passed") == {"held": {"value": ["float32"]}}
    assert kept("failed", counterexample={"where": "h"}) == {"broken": {"value": {"float32": "h"}}}
    assert kept("not served", reason="no states") == {"not served": {"value": {"float32": "no states"}}}
    assert kept("skipped", reason="absent: gru") == {}
    slow = kept("failed", counterexample={"where": "", "nature": "timeout"})
    assert slow == {"not served": {"value": {"float32": judged_peers.TOO_SLOW}}}
    differs = kept("differs", kind="contract", counterexample={"where": "m"})
    assert differs == {"contract": {"value": {"float32": "m"}}}


SLOW = "import time; print('begun', flush=True); time.sleep(60)"
# A shell that starts the tests in the background has SIGINT ignored, by their children too.
PATIENT = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print("begun", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("written")
"""
STUBBORN = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SLOW}"


@pytest.mark.parametrize(("script", "words"), [(PATIENT, "begun\nwritten\n"), (STUBBORN, "begun\n")])
def test_a_process_that_takes_too_long_is_interrupted_and_then_ended(
    script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged_peers, "SECONDS_TO_WRITE", 2.0)
    start = time.monotonic()
    assert judged_peers._run([sys.executable, "-c", script], 3, {}) == (None, words)
    assert time.monotonic() - start < 30


def test_a_peer_that_ends_its_process_is_an_entry_without_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", "import os; print('before', flush=True); os.abort()"]
    monkeypatch.setattr(judged_peers, "command", lambda peer, report, effort: words)
    entry = judged_peers.judged(PEERS[0], judged_peers.Effort())
    assert entry["error"] == "before" and "laws" not in entry
    document = judged_peers.document({}, entry, {})
    assert [peer["name"] for peer in document["peers"]] == [PEERS[0].name]
    assert document["not judged"] == [peer.name for peer in PEERS[1:]]
    assert f"[{PEERS[0].name}]" in peers_page.draw(document)


def test_a_peer_is_judged_on_what_its_adapter_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (torch_gru,) = (peer for peer in PEERS if peer.name == "torch.nn.GRU")
    peer = replace(torch_gru, dtypes=("float32",))
    monkeypatch.setattr(one_peer, "PEERS", (peer,))
    path = tmp_path / "report.json"
    words = [peer.name, str(path), "--law", "candidate", "--law", "packed"]
    words += ["--examples", "2", "--max-steps", "16", "--timeout", "60"]
    done = CliRunner().invoke(one_peer.main, words)
    assert done.exit_code == 0, done.output
    kept = judged_peers._kept(json.loads(path.read_text(encoding="utf-8")))
    assert kept["laws"]["held"] == {"candidate": ["float32"]} and not kept["interrupted"]
    assert "cu_seqlens" in kept["laws"]["not served"]["packed"]["float32"]
    assert kept["settings"]["examples"] == 2


@pytest.mark.parametrize(
    ("body", "verdict"),
    [("sys.exit(1)", "confirmed"), ("sys.exit(0)", "gone"), ("import nothing_of_the_kind", "failed to run")],
)
def test_a_script_confirms_by_its_exit_status(
    body: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged_peers, "CONFIRM", tmp_path)
    monkeypatch.setattr(judged_peers, "ROOT", tmp_path)
    (tmp_path / "shown.py").write_text(f'"""What is wrong.\n\nMore.\n"""\n\nimport sys\n\nprint("found")\n{body}\n')
    found = judged_peers.confirmed("shown", 60)
    assert (found["verdict"], found["states"]) == (verdict, "What is wrong.") and found["output"].startswith("found")


SHOWN = {"shown": {"verdict": "confirmed", "short": "it is wrong"}}


def data() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_data_and_the_data_that_of_the_registry() -> None:
    document = data()
    again = "python -m benchmarks peers --draw"
    assert PAGE.read_text(encoding="utf-8") == peers_page.draw(document), again
    details = PAGE.with_name(peers_section.DETAILS_PAGE).read_text(encoding="utf-8")
    assert details == peers_page.draw_details(document), again
    scripts = PAGE.with_name(peers_section.SCRIPTS_PAGE).read_text(encoding="utf-8")
    assert scripts == peers_page.draw_scripts(document), again
    assert judged_peers.document(document, None, {}) == document, again
    judged = [peer["name"] for peer in document["peers"]]
    assert judged == [peer.name for peer in PEERS if peer.name not in document["not judged"]]


def test_no_fault_is_stated_that_a_script_has_not_confirmed() -> None:
    document, page = data(), PAGE.with_name(peers_section.DETAILS_PAGE).read_text(encoding="utf-8")
    stated = {
        name for peer in document["peers"] if "laws" in peer for name in by_script(peer, document["confirmations"])
    }
    assert stated
    for name in stated:
        found = document["confirmations"][name]
        assert found["verdict"] == "confirmed" and found["output"]
        assert found["states"] == judged_peers.title(judged_peers.CONFIRM / f"{name}.py")
    faults = re.findall(r"^- \*\*(.*?)\*\* \(\[script\]\(peers-scripts.md#(\w+)\)\)", page, re.MULTILINE)
    shorts = {(document["confirmations"][name]["short"].lower(), name) for name in stated}
    assert {(said.lower(), name) for said, name in faults} == shorts


def test_a_law_that_is_tried_again_replaces_its_results_and_no_others() -> None:
    laws = {"held": {"value": ["float32"]}, "broken": {"vmap": {"float32": "h"}, "finite": {"float32": "h"}}}
    before = {
        "only": [],
        "laws": {**laws, "contract": {}, "not served": {}},
        "causes": [cause("Of both.", "vmap", "float32"), cause("Of the first.", "vmap", "float32")],
        "envelope": {"mlstm": 1},
        "minutes": 9.0,
    }
    before["causes"][0]["explains"].append({"id": "mlstm.finite", "dtype": "float32"})
    new = {
        "only": ["vmap"],
        "date": "2026-11-23",
        "settings": {"examples": 2},
        "minutes": 1.0,
        "interrupted": False,
        "laws": {"held": {"vmap": ["float32"]}, "broken": {}, "contract": {}, "not served": {}},
        "causes": [],
        "envelope": {},
    }
    found = judged_peers.merged(before, new)
    assert found["laws"]["held"] == {"value": ["float32"], "vmap": ["float32"]}
    assert found["laws"]["broken"] == {"finite": {"float32": "h"}} and found["envelope"] == {"mlstm": 1}
    assert [each["explains"] for each in found["causes"]] == [[{"id": "mlstm.finite", "dtype": "float32"}]]
    assert found["again"]["vmap"]["date"] == "2026-11-23" and found["minutes"] == 9.0 and found["only"] == []
    assert judged_peers.merged({**before, "only": ["value"]}, new)["only"] == ["value", "vmap"]
    assert judged_peers.merged({}, new) is new and judged_peers.merged(before, {**new, "only": []})["only"] == []


def test_a_name_that_no_peer_has_is_refused_in_words(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["peers", "cudnn", "--json", str(tmp_path / "peers.json")])
    assert done.exit_code == 2 and "no peer's name holds 'cudnn'" in done.output


def cause(sentence: str, law: str, dtype: str) -> dict[str, Any]:
    return {
        "sentence": sentence,
        "problem": "",
        "explains": [{"id": f"mlstm.{law}", "dtype": dtype}],
        "case": f"B=1, S=2, {law}",
        "dtype": dtype,
    }


@pytest.mark.parametrize(
    ("held", "broken", "said"),
    [
        (
            {"value": ["float64", "float32"], "gradient": ["float64", "float32"]},
            {},
            "Right in float64 and float32, and every law that it serves holds.",
        ),
        (
            {"value": ["float64", "bfloat16"], "gradient": ["float64"]},
            {"gradient": {"bfloat16": "shown"}},
            "Right in float64, right values in bfloat16, but q is wrong.",
        ),
        (
            {"sequence": ["float32"]},
            {},
            "Right values in float32, gradients not judged, and every law that it serves holds.",
        ),
        ({}, {"value": {"float32": None}}, "Found right in no dtype, but some results are not confirmed."),
        ({"causality": ["float32"]}, {}, "Not compared with the definition, and every law that it serves holds."),
    ],
)
def test_a_sentence_sums_up_what_was_found_and_states_no_fault_that_is_not_confirmed(
    held: dict[str, list[str]], broken: dict[str, dict[str, str | None]], said: str
) -> None:
    peer = {"laws": {"held": held, "broken": broken}, "confirmed": broken, "always": [], "interrupted": False}
    assert take_away(peer, {"shown": {"verdict": "confirmed", "short": "q is wrong"}}) == said


def test_a_dtype_in_which_a_plain_call_is_wrong_is_not_called_right() -> None:
    held = {law: ["float64", "float32", "bfloat16"] for law in ("value", "gradient")}
    cells = {"bfloat16": {"value": "wrong", "gradient": "right"}, "float32": {"value": "right", "gradient": "wrong"}}
    peer = {"laws": {"held": held, "broken": {}}, "confirmed": {}, "always": [], "interrupted": False}
    peer["envelope"] = {"mlstm": {"features": [{"feature": "plain call", "cells": cells}]}}
    assert take_away(peer, {}).startswith("Right in float64, right values in float32, ")


def test_every_script_prints_its_verdict() -> None:
    for path in SCRIPTS:
        body = path.read_text(encoding="utf-8")
        assert re.search(r"^verdict\(.*\)\n\Z", body, re.MULTILINE), path.name


def test_a_wrong_cell_is_confirmed_by_a_script_about_such_calls() -> None:
    calls = Calls.ORDINARY
    scripts = (
        Confirmed("first", calls, "", "^gradient", "^gradient float64", False),
        Confirmed("second", calls, "", "^finite", " forget gates of -inf$", False),
        Confirmed("third", calls, "", "(?!)", "(?!)", True),
    )
    peer = replace(PEERS[0], confirmed=scripts)
    features = [
        {"feature": "plain call", "cells": {"float64": {"value": "right", "gradient": "wrong"}}},
        {"feature": "forget gates of -inf", "cells": {"float32": {"value": "wrong", "gradient": "right"}}},
        {"feature": "forget gates of +inf", "cells": {"float32": {"value": "wrong", "gradient": "not tried"}}},
    ]
    entry = {"laws": {"broken": {}}, "envelope": {"mlstm": {"features": features}}}
    found = judged_peers._with_confirmations(entry, peer)
    assert found["confirmed cells"]["mlstm"] == {
        "plain call": {"float64": {"gradient": "first"}},
        "forget gates of -inf": {"float32": {"value": "second"}},
        "forget gates of +inf": {"float32": {"value": None}},
    }
    assert found["always"] == ["third"]
    confirmations = {name: {"verdict": "confirmed"} for name in ("first", "second")}
    unsure = unsure_cells(found, "mlstm", confirmations)
    assert {feature for feature, cells in unsure.items() if cells} == {"forget gates of +inf"}
    assert "| forget gates of +inf | | (value wrong) |" in [
        line.replace("  ", " ") for line in peers_section._envelope("mlstm", {"features": features}, unsure)
    ]


@pytest.mark.parametrize(
    ("held", "broken", "said"),
    [
        (["value", "gradient"], [], "values and gradients right"),
        (["sequence"], ["gradient", "vmap"], "values right, gradients wrong"),
        (["value"], ["finite"], "values right, without gradients"),
        (["gradient"], ["value"], "values wrong"),
        (["causality"], [], "not compared with the definition"),
    ],
)
def test_an_implementation_is_told_by_what_is_right_in_float32(held: list[str], broken: list[str], said: str) -> None:
    laws = {"held": {law: ["float32"] for law in held}, "broken": {law: {"float32": ""} for law in broken}}
    laws["broken"].setdefault("value", {})["float16"] = ""
    confirmed = {law: dict.fromkeys(dtypes, "shown") for law, dtypes in laws["broken"].items()}
    peer = {"laws": laws, "confirmed": confirmed, "always": []}
    assert peers_page._verdict(peer, SHOWN) == said
    assert peers_page._verdict({"error": "no result"}, SHOWN) == "without a result"


@pytest.mark.parametrize("law", ["value", "gradient"])
def test_no_result_is_called_wrong_that_no_script_has_confirmed(law: str) -> None:
    laws = {"held": {"causality": ["float32"]}, "broken": {law: {"float32": "o"}}}
    peer = {"laws": laws, "confirmed": {law: {"float32": None}}, "always": []}
    assert peers_page._verdict(peer, SHOWN).endswith("which no script has confirmed")


def test_the_first_script_that_fits_a_failed_check_confirms_it() -> None:
    assert check_text("vmap", "float32", "RuntimeError") == "vmap float32 RuntimeError"
    scripts = (
        Confirmed("first", Calls.NARROW, "", "^value b?float16", "(?!)", False),
        Confirmed("second", Calls.ORDINARY, "", "float", "(?!)", False),
    )
    peer = replace(PEERS[0], confirmed=scripts)
    entry = {"laws": {"broken": {"value": {"float64": "h", "float16": "m"}}}, "envelope": {}}
    found = judged_peers._with_confirmations(entry, peer)
    assert found["confirmed"] == {"value": {"float64": "second", "float16": "first"}}
    found = judged_peers._with_confirmations(entry, replace(peer, confirmed=scripts[:1]))
    assert found["confirmed"] == {"value": {"float64": None, "float16": "first"}}
