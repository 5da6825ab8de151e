"""The measure of the strangers: of some, what the suite says is true."""

import pytest
from click.testing import CliRunner

from tests.suite.strangers.__main__ import strangers_command
from tests.suite.strangers.measure import found_of


@pytest.mark.parametrize(
    "name", ["torch_packed_loop", "state_detached", "clipping_ignored", "no_scale_and_no_initial_state"]
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
