"""``python -m benchmarks scaling``: what a layer of mLSTM is expected to cost on up to 1,024 devices, on paper.

Operations and bytes are counted from the formulas; times follow from the assumed rates of `H100`. The scan between
shards of a sequence is simulated event by event (`simulated`), for each device and each port of its links.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scaling.md"
MARK = "<!-- {name}: made by `python -m benchmarks scaling` -->"
DEVICES, LENGTHS = (1, 8, 64, 1024), (2**20, 2**24)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: projections to and from the mLSTM, and a gated feed-forward layer.

    Attributes:
        width: features of the residual stream, D.
        heads, K, V: of the mLSTM.
        hidden: features within the feed-forward layer.
        chunk: L of the chunkwise mLSTM.
    """

    width: int
    heads: int
    K: int
    V: int
    hidden: int
    chunk: int = 64

    @property
    def parameters(self) -> int:
        """Of its matrices: q and k, v, the output gate, the output projection, and three of the feed-forward layer."""
        return self.width * (self.heads * (2 * self.K + 3 * self.V) + 3 * self.hidden)

    @property
    def operations(self) -> int:
        """Floating-point operations for each token, in both passes, with products of whole chunks."""
        L, K, V = self.chunk, self.K, self.V
        # Forward: scores, their sums of values, reads and writes of the memory. Backward: scores and memory again, then
        # the gradients of the scores, of q and k by them and of v, and of q, C, k and v by the memory.
        forward = 2 * (L * K + L * V + 2 * K * V)
        backward = 2 * (3 * L * K + 2 * L * V + 5 * K * V)
        return 6 * self.parameters + self.heads * (forward + backward)

    @property
    def summary_operations(self) -> int:
        """For each token, in both passes: the write of a shard's summary, and the gradients of k and v by it."""
        return self.heads * 6 * self.K * self.V

    @property
    def message(self) -> int:
        """Bytes of a summary in float32: C, n, and the three logs of scales, for each head of one sequence."""
        return 4 * self.heads * (self.K * self.V + self.K + 3)


XLSTM_7B = Layer(width=4096, heads=8, K=256, V=512, hidden=10944)
SMALL = Layer(width=512, heads=8, K=64, V=64, hidden=1376)
LAYERS = {"7B": XLSTM_7B, "small": SMALL}


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of a port.

    Attributes:
        rate: bytes per second.
        latency: seconds from the call to the first byte.
    """

    rate: float
    latency: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster.

    Attributes:
        operations: per second and device, in products.
        memory: bytes per second of a device's own memory.
        inside, between: the links of devices of one node, and of different nodes.
        node: devices of a node.
    """

    operations: float
    memory: float
    inside: Link
    between: Link
    node: int

    def link(self, source: int, target: int) -> Link:
        return self.inside if source // self.node == target // self.node else self.between

    def slowest(self, devices: int) -> Link:
        return self.inside if devices <= self.node else self.between


H100 = Machine(
    operations=0.4 * 989e12,
    memory=0.8 * 3.35e12,
    inside=Link(rate=0.8 * 450e9, latency=10e-6),
    between=Link(rate=0.8 * 50e9, latency=20e-6),
    node=8,
)
"""40 % of the peak of bfloat16 products, 80 % of the peaks of memory, NVLink and 400 Gb/s InfiniBand."""


def distances(devices: int) -> list[int]:
    """The distance of each round's messages: 1, then 1, 2, 4, … as far as there is a device."""
    if devices == 1:
        return []
    return [1, *(2**power for power in range(max(0, math.ceil(math.log2(devices - 1)))))]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One scan between shards.

    Attributes:
        seconds: from its beginning until the last device has its incoming state.
        sent: bytes that each device sends.
        messages: messages that each device sends.
    """

    seconds: float
    sent: tuple[int, ...]
    messages: tuple[int, ...]


def simulated(machine: Machine, devices: int, message: int, ready: tuple[float, ...] | None = None) -> Scan:
    """The scan of `mlstm` over shards, event by event.

    Device d enters a round when it has what the round before gave it. It then sends to device d + distance, one message
    at a time through its port, and waits for the message of device d − distance, if there is one, with which it
    combines its own: three passes over the message in its memory. A message arrives a latency after the last byte has
    left.

    Args:
        message: bytes of each message.
        ready: when each device has the summary of its own shard; 0 by default.
    """
    rounds = distances(devices)
    begins = list(ready or (0.0,) * devices)
    free, done = [0.0] * devices, list(begins)
    arrived: dict[tuple[int, int], float] = {}
    entered: dict[tuple[int, int], float] = {}
    sent: Counter[int] = Counter()
    events = [(time, device, 0) for device, time in enumerate(begins)]
    heapq.heapify(events)

    def finish(device: int, at: int) -> None:
        """Let a device leave a round, if it entered it and its message is there."""
        if (device, at) not in entered:
            return
        alone = device < rounds[at]
        if not alone and (device, at) not in arrived:
            return
        time = entered[device, at]
        if not alone:
            # The first round moves a summary; there is nothing yet to combine it with.
            time = max(time, arrived[device, at]) + (3 * message / machine.memory if at else 0.0)
        done[device] = time
        heapq.heappush(events, (time, device, at + 1))

    while events:
        time, device, at = heapq.heappop(events)
        if at == len(rounds):
            continue
        entered[device, at] = time
        target = device + rounds[at]
        if target < devices:
            link = machine.link(device, target)
            free[device] = max(time, free[device]) + message / link.rate
            arrived[target, at] = free[device] + link.latency
            sent[device] += 1
            finish(target, at)
        finish(device, at)
    counts = tuple(sent[device] for device in range(devices))
    return Scan(seconds=max(done) - min(begins), sent=tuple(count * message for count in counts), messages=counts)


def gathered(machine: Machine, devices: int, message: int) -> float:
    """Seconds of a ring all-gather of all summaries, after which each device combines those before it."""
    link = machine.slowest(devices)
    return (devices - 1) * (link.latency + message / link.rate + 3 * message / machine.memory)


def pipelined(machine: Machine, devices: int, message: int) -> float:
    """Seconds of a chain of devices that pass the state on in slices, at the best number of slices."""
    link = machine.slowest(devices)

    def seconds(slices: int) -> float:
        return (devices - 2 + slices) * (link.latency + (message / link.rate + 3 * message / machine.memory) / slices)

    return 0.0 if devices == 1 else min(seconds(2**power) for power in range(13))


def efficiency(machine: Machine, layer: Layer, steps: int, devices: int) -> float:
    """The time of both passes of one device with ``steps / devices`` steps, over that with summaries and both scans."""
    tokens = steps / devices
    ideal = tokens * layer.operations / machine.operations
    if devices == 1:
        return 1.0
    scan = simulated(machine, devices, layer.message).seconds
    return ideal / (ideal + tokens * layer.summary_operations / machine.operations + 2 * scan)


def least_tokens(machine: Machine, layer: Layer, devices: int, share: float = 0.9) -> int:
    """The fewest tokens of a device, a power of 2, with which this efficiency is reached."""
    return next(2**power for power in range(40) if efficiency(machine, layer, 2**power * devices, devices) >= share)


def of_batch(layer: Layer, devices: int) -> float:
    """Bytes that a device sends in a step whose batch is sharded: an all-reduce of float32 gradients."""
    return 2 * (devices - 1) / devices * 4 * layer.parameters


def of_heads(layer: Layer, tokens: float, devices: int) -> float:
    """Bytes that a device sends if heads and features are sharded: four all-reduces of the bfloat16 residual stream."""
    return 4 * 2 * (devices - 1) / devices * tokens * layer.width * 2


def of_steps(machine: Machine, layer: Layer, devices: int) -> int:
    """Bytes that the busiest device sends if steps are sharded: both passes."""
    return 2 * max(simulated(machine, devices, layer.message).sent)


def _with_unit(number: float, units: dict[str, float]) -> str:
    """Three digits and the largest unit that is not larger than the number, or the smallest one."""
    name = next((name for name, unit in units.items() if number >= unit), [*units][-1])
    return f"{number / units[name]:.3g} {name}"


def _time(seconds: float) -> str:
    return _with_unit(seconds, {"s": 1, "ms": 1e-3, "µs": 1e-6})


def _bytes(count: float) -> str:
    return _with_unit(count, {"GB": 1e9, "MB": 1e6, "kB": 1e3})


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(*cells: str) -> list[str]:
    return [_row(*cells), _row(*["---"] * len(cells))]


def _costs(machine: Machine) -> Iterator[str]:
    yield from _head("layer", "S", "devices", "products of a device", "both scans", "sent by a device", "efficiency")
    for name, layer in LAYERS.items():
        for steps in LENGTHS:
            for devices in DEVICES:
                work = steps / devices * (layer.operations + (devices > 1) * layer.summary_operations)
                scan = 2 * simulated(machine, devices, layer.message).seconds
                yield _row(
                    *(name, f"{steps // 2**20} M", f"{devices:,}", _time(work / machine.operations)),
                    *(_time(scan), _bytes(of_steps(machine, layer, devices))) if devices > 1 else ("–", "–"),
                    f"{100 * efficiency(machine, layer, steps, devices):.1f} %",
                )


def _scans(machine: Machine) -> Iterator[str]:
    yield from _head("layer", "devices", "this scan", "all-gather", "pipelined in slices", "tokens per device for 90 %")
    for name, layer in LAYERS.items():
        for devices in DEVICES[1:]:
            own = simulated(machine, devices, layer.message).seconds
            others = (time(machine, devices, layer.message) for time in (gathered, pipelined))
            yield _row(name, f"{devices:,}", *map(_time, (own, *others)), f"{least_tokens(machine, layer, devices):,}")


def _kinds(machine: Machine) -> Iterator[str]:
    yield from _head("layer", "tokens per device", "batch", "heads", "steps")
    for name, layer in LAYERS.items():
        for tokens in (2**11, 2**14, 2**17):
            kinds = of_batch(layer, 8), of_heads(layer, 8 * tokens, 8), of_steps(machine, layer, 8)
            yield _row(name, f"{tokens:,}", *map(_bytes, kinds))


SECTIONS = {"costs": _costs, "scans": _scans, "kinds": _kinds}


def drawn(text: str, machine: Machine = H100) -> str:
    """A page with the tables between its marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    for name, table in SECTIONS.items():
        begin, end = MARK.format(name=name), f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no lines {begin} and {end}")
        text = f"{before}{begin}\n" + "\n".join(table(machine)) + f"\n{end}{after}"
    return text


@click.command("scaling")
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), help="Of the peak of products; 0.4 by default.")
@click.option("--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=PAGE)
def scaling_command(share: float | None, page: Path) -> None:
    """Write the tables of docs/scaling.md: costs of a layer on up to 1,024 devices, computed from formulas."""
    machine = H100 if share is None else replace(H100, operations=share * 989e12)
    page.write_text(drawn(page.read_text(encoding="utf-8"), machine), encoding="utf-8")
