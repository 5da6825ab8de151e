"""The measure of the strangers: of some, what the suite says is true."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.grids import larger
from tests.suite.strangers.__main__ import NEEDED, strangers_command
from tests.suite.strangers.catalogue import FAULTY, RIGHT
from tests.suite.strangers.measure import COMMITTED, DTYPE, EXAMPLES, LAWS, STEPS, found_of, said_truly

DOCS = Path(__file__).parents[2] / "docs" / "conformance.md"


@pytest.mark.parametrize(
    "name", ["torch_packed_loop", "state_detached", larger("clipping_ignored"), larger("no_scale_and_no_initial_state")]
)
def test_the_verdict_on_a_stranger_is_true(name: str) -> None:
    found = found_of(name)
    assert found.right, found.causes
    assert found.explained > 0 or not found.stranger.causes


def test_the_command_prints_what_is_said_of_a_stranger() -> None:
    result = CliRunner().invoke(strangers_command, ["--stranger", "torch_gru"])
    assert result.exit_code == 0, result.output
    assert "1 of 1 right ones accepted" in " ".join(result.output.split())
    unknown = CliRunner().invoke(strangers_command, ["--stranger", "nobody"])
    assert unknown.exit_code == 2 and "there is no stranger 'nobody'; name one of torch_loop" in unknown.output


def test_the_committed_result_is_of_the_present_strangers_and_true_of_enough() -> None:
    kept = json.loads(COMMITTED.read_text(encoding="utf-8"))
    settings = (LAWS, DTYPE, EXAMPLES, STEPS)
    assert (tuple(kept["laws"]), kept["dtype"], kept["examples"], kept["max_steps"]) == settings
    rows, known = {row["name"]: row for row in kept["rows"]}, {**RIGHT, **FAULTY}
    assert list(rows) == list(known), "run `make strangers` again"
    for name, stranger in known.items():
        row = rows[name]
        assert row["framework"] == stranger.framework
        said = row["first_cause"]
        true = bool(said) and said_truly(said, stranger) if stranger.causes else not row["broken"]
        assert row["verdict_is_true"] == true, name
    assert kept["right_accepted"] == kept["right"] == len(RIGHT)
    said = f"the first cause is true of {kept['first_cause_true']} of {kept['faulty']} faulty"
    assert said in " ".join(DOCS.read_text(encoding="utf-8").split())
    assert kept["faulty"] == len(FAULTY) and kept["first_cause_true"] >= NEEDED * len(FAULTY)
