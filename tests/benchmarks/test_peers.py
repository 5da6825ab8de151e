"""Public implementations: adapters and scripts that stand alone, and a registry that names them."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import judged_peers, peers_page
from benchmarks.command import main
from benchmarks.peers.registry import PEERS
from benchmarks.peers_command import PAGE, RESULTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "peers"
ADAPTERS = sorted(path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "registry"))
SCRIPTS = sorted(judged_peers.CONFIRM.glob("*.py"))
OURS = {"reference", "torch_impl", "jax_impl", "conformance", "benchmarks", "tests"}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", ADAPTERS + SCRIPTS, ids=lambda path: path.stem)
def test_an_adapter_and_a_script_need_nothing_of_gatespec(path: Path) -> None:
    assert not imported(path) & OURS


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_every_adapter_is_judged_and_every_script_confirms_something() -> None:
    assert {peer.target.partition(":")[0] for peer in PEERS} == {path.stem for path in ADAPTERS}
    assert {name for peer in PEERS for name in peer.confirmed} == {path.stem for path in SCRIPTS}
    assert len({peer.name for peer in PEERS}) == len({peer.target for peer in PEERS}) == len(PEERS)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_an_attribute_of_its_adapter_and_its_package_is_pinned(peer: Any) -> None:
    module, _, attribute = peer.target.partition(":")
    body = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8")).body
    defined = {
        target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if hasattr(target, "id")
    }
    defined |= {node.name for node in body if isinstance(node, ast.FunctionDef)}
    assert (attribute or peer.op) in defined
    pins = (ROOT / "constraints" / "peers.txt").read_text(encoding="utf-8").replace("_", "-")
    assert re.search(rf"^{peer.package}==", pins, re.MULTILINE)


def report(status: str, **fields: Any) -> dict[str, Any]:
    law = {"law": "value", "dtype": "float32", "kind": "definition", "status": status, "reason": None}
    return {
        "versions": {},
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
    differs = kept("differs", kind="contract", counterexample={"where": "m"})
    assert differs == {"contract": {"value": {"float32": "m"}}}


def test_a_process_that_takes_too_long_is_ended() -> None:
    status, said = judged_peers._run(
        [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"], 3, {}
    )
    assert status is None and "begun" in said


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
    found = judged_peers.confirmed("shown")
    assert (found["verdict"], found["states"]) == (verdict, "What is wrong.") and found["output"].startswith("found")


@pytest.mark.skipif(not RESULTS.exists(), reason="no table has been made; `make peers` makes it")
def test_the_page_is_that_of_the_data() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == peers_page.draw(document), "python -m benchmarks peers --draw"
    assert [peer["name"] for peer in document["peers"]] == [peer.name for peer in PEERS]
    stated = {name for peer in document["peers"] for name in peer["confirmed"]}
    assert stated <= document["confirmations"].keys()
    assert all(found["verdict"] == "confirmed" for found in document["confirmations"].values())


def test_a_name_that_no_peer_has_is_refused_in_words(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["peers", "cudnn", "--json", str(tmp_path / "peers.json")])
    assert done.exit_code == 2 and "no peer's name holds 'cudnn'" in done.output


def test_a_page_leads_with_causes_and_says_where_an_implementation_is_right() -> None:
    cells = {"float64": {"value": "right", "gradient": "wrong"}, "float32": {"value": "right", "gradient": ""}}
    cause = {"sentence": "The gradient | of q is wrong.", "explains": [{"id": "mlstm.gradient", "dtype": "float64"}]}
    peer = {
        "name": "one kernel",
        "op": "mlstm",
        "package": "kernels",
        "version": "1.0",
        "framework": "torch",
        "interpreted": False,
        "note": "",
        "minutes": 1.0,
        "laws": {
            "held": {"value": ["float64", "float32"]},
            "broken": {"gradient": {"float64": "gradient of q"}},
            "contract": {},
            "not served": {"packed": {"float64": "no packing"}, "value": {"float16": "no float16"}},
        },
        "causes": [{**cause, "case": "B=1, S=2", "dtype": "float64"}],
        "envelope": {"mlstm": {"summary": "Right.", "features": [{"feature": "plain call", "cells": cells}]}},
        "confirmed": ["shown"],
    }
    lost = {**peer, "name": "another", "error": "no result within 5 minutes"}
    scripts = {"shown": {"script": "peers/shown.py", "states": "It is wrong.", "verdict": "confirmed", "output": "1"}}
    machine = {"device": "a CPU", "cores": 2, "python": "3.11"}
    page = peers_page.draw({"date": "2026-11-21", "machine": machine, "peers": [peer, lost], "confirmations": scripts})
    assert "| [one kernel](#one-kernel) | 1.0 | 1 | 1 | 1 | Right. | 1.0 |" in page
    assert (
        "1. **The gradient \\| of q is wrong.** Explains 1 broken checks, of `gradient`. Smallest case: B=1, S=2"
        in page
    )
    assert "Held: `value`.\n\nBroken: `gradient` (float64).\n\nNot served: `packed` (no packing)." in page
    assert "| plain call | value right, gradient wrong | right |" in page
    assert "Confirmed by [`shown.py`](#shown) (confirmed)." in page and "no result within 5 minutes" in page
