"""docs/scaling.md: the simulated scan sends what the programs send, at the times that follow from its rules."""

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.costs import scaling
from benchmarks.costs.scaling import H100, XLSTM_7B, Link, Machine, distances, efficiency, simulated

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_is_computed_now() -> None:
    page = scaling.PAGE.read_text(encoding="utf-8")
    assert scaling.drawn(page) == page
    with pytest.raises(ValueError, match="the page has no lines"):
        scaling.drawn("")


def test_messages_and_bytes_are_those_of_the_programs() -> None:
    """The table of sequence-parallel.md is compared with compiled programs in tests/both."""
    page = (ROOT / "docs" / "sequence-parallel.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \| [\d.]+ \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for devices, messages, megabytes in rows:
        scan = simulated(H100, int(devices), XLSTM_7B.message)
        assert max(scan.messages) == int(messages) == len(distances(int(devices)))
        assert round(max(scan.sent) / 1e6, 1) == float(megabytes)
        # The last device sends nothing; the devices before it send where there is one to receive.
        assert scan.messages[-1] == 0
        assert sum(scan.messages) == sum(int(devices) - distance for distance in distances(int(devices)))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Machine, tuple[float, ...]]:
    numbers = st.floats(0.1, 10.0)
    inside, between = (Link(rate=draw(numbers), latency=draw(numbers)) for _ in range(2))
    node = draw(st.integers(1, 8))
    machine = Machine(operations=1.0, memory=draw(numbers), inside=inside, between=between, node=node)
    return machine, tuple(draw(st.lists(st.floats(0, 20), min_size=1, max_size=20)))


@given(clusters())
def test_events_take_the_times_that_follow_round_by_round(cluster: tuple[Machine, tuple[float, ...]]) -> None:
    machine, ready = cluster
    times, free, devices = list(ready), [0.0] * len(ready), len(ready)
    for at, distance in enumerate(distances(devices)):
        arrivals = {}
        for device in range(devices - distance):
            link = machine.link(device, device + distance)
            free[device] = max(times[device], free[device]) + 2 / link.rate
            arrivals[device + distance] = free[device] + link.latency
        combine = 3 * 2 / machine.memory if at else 0.0
        times = [max(times[d], arrivals[d]) + combine if d in arrivals else times[d] for d in range(devices)]
    scan = simulated(machine, devices, 2, ready)
    assert math.isclose(scan.seconds, max(times) - min(ready), rel_tol=1e-12, abs_tol=1e-12)


def test_small_scans_by_hand() -> None:
    link = Link(rate=4.0, latency=0.5)
    machine = Machine(operations=1.0, memory=12.0, inside=link, between=link, node=4)
    assert simulated(machine, 1, 2).seconds == 0
    assert simulated(machine, 2, 2).seconds == 1.0
    # Device 1 sends on what reached it after 1.0; device 2 has that at 2.0, and combines in 0.5.
    assert simulated(machine, 3, 2).seconds == 2.5


def test_the_other_scans() -> None:
    link = Link(rate=4.0, latency=0.5)
    machine = Machine(operations=1.0, memory=math.inf, inside=link, between=link, node=64)
    assert scaling.gathered(machine, 8, 2) == pytest.approx(7 * 1.0)
    # Of a message that takes no time but its latency, one slice is best; of a large one, many.
    assert scaling.pipelined(machine, 8, 0) == pytest.approx(7 * 0.5)
    assert scaling.pipelined(machine, 8, 4000) < 2 * 1000
    assert scaling.pipelined(machine, 1, 2) == scaling.gathered(machine, 1, 2) == 0


def test_a_layer_is_one_of_xlstm_7b() -> None:
    """32 layers and two embeddings of 50,304 tokens have the 6.86 billion parameters of the model's paper."""
    assert 32 * XLSTM_7B.parameters + 2 * 50304 * 4096 == pytest.approx(6.865e9, rel=2e-3)


def test_longer_shards_are_more_efficient() -> None:
    for layer in scaling.LAYERS.values():
        found = [efficiency(H100, layer, steps, 64) for steps in (2**12, 2**16, 2**20, 2**24)]
        assert found == sorted(found) and 0 < found[0] < found[-1] < 1 and efficiency(H100, layer, 1024, 1) == 1
        least = scaling.least_tokens(H100, layer, 64)
        assert efficiency(H100, layer, 64 * least, 64) >= 0.9 > efficiency(H100, layer, 32 * least, 64)


def test_the_command_takes_another_rate(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(scaling.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    done = CliRunner().invoke(scaling.scaling_command, ["--share", "0.2", "--page", str(page)])
    assert done.exit_code == 0, done.output
    first, second = (re.search(r"\| 7B \| 1 M \| 1 \| ([\d.]+) s", p.read_text()) for p in (scaling.PAGE, page))
    assert first and second and float(second[1]) == pytest.approx(2 * float(first[1]), rel=0.01)
