"""A call and its gradient as programs run them on a GPU: on their own stream, or captured in a graph.

This requires that a kernel is launched on the current stream, reads its arguments when it runs and not when it is
launched, does not wait for the device, and decides nothing on the host by values on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.frameworks._torch_transforms import Flat, Tensors, pulled

BUSY_CYCLES = 100_000_000
"""Work that keeps the stream busy before it writes the arguments: about 50 ms, longer than a launch takes."""
WARM_UP = 3
KINDS = ("busy stream", "graph", "graph at the first call")

Pair = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class _Given:
    """The floating arguments of a call, and the cotangents of its outputs."""

    values: tuple[torch.Tensor, ...]
    cotangents: tuple[torch.Tensor, ...]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "_Given":
        return _Given(tuple(map(change, self.values)), tuple(map(change, self.cotangents)))

    def write(self, other: "_Given") -> None:
        for x, source in zip(self.values + self.cotangents, other.values + other.cotangents, strict=True):
            x.copy_(source)


def transformed(kind: str, of: Flat, cuda: Any = torch.cuda) -> tuple[Tensors, Tensors]:
    """Outputs and gradients of the call (`Implementation.transformed`).

    Args:
        kind: one of `KINDS`.
        cuda: ``torch.cuda``, or its replacement in a test.
    """
    given = _Given(tuple(of.primals.values()), tuple(of.cotangents.values()))
    if kind == "busy stream":
        outputs, gradients = _on_busy_stream(of, given, cuda)
    else:
        outputs, gradients = _replayed(of, given, cuda, WARM_UP if kind == "graph" else 0)
    return dict(zip(of.cotangents, outputs, strict=True)), dict(zip(of.primals, gradients, strict=True))


def _on_busy_stream(of: Flat, given: _Given, cuda: Any) -> Pair:
    """The arguments hold NaN until the stream is no longer busy and writes them."""
    late = given.changed(lambda x: torch.full_like(x, torch.nan))
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        cuda._sleep(BUSY_CYCLES)
        late.write(given)
        results = pulled(of, late.values, late.cotangents)
    stream.synchronize()
    return results


def _replayed(of: Flat, given: _Given, cuda: Any, warm_up: int) -> Pair:
    """Capture the call with the rows of every argument in reverse order, then replay it with the arguments."""
    static = given.changed(lambda x: x.flip(0) if x.ndim else x.clone())
    if warm_up:
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(warm_up):
                pulled(of, static.values, static.cotangents)
        cuda.current_stream().wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results = pulled(of, static.values, static.cotangents)
    static.write(given)
    graph.replay()
    cuda.synchronize()
    return results
