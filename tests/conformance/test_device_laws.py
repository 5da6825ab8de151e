"""The laws about 32-bit offsets, large grids, streams and CUDA graphs: what a CPU can show of them.

Streams and graphs are those of a stand-in for ``torch.cuda`` that records what is computed and computes it again later.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.options import RunOptions
from conformance.frameworks._far import axis_of
from conformance.frameworks.targets import load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import all_laws, law_of
from conformance.laws._general_device import LIMIT
from conformance.operations import OPERATIONS
from tests.conformance.judging import judged

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

from conformance.frameworks.torch import TorchImplementation  # noqa: E402
from tests.suite.strangers.torch_loops import gru_loop, mlstm_loop  # noqa: E402


def right(x: Any) -> Any:
    return x.flip(-1).cumsum(-1).flip(-1)


def offsets_in_32_bits(x: Any) -> Any:
    """The array as a kernel reads it that multiplies index and stride in 32 bits."""
    index = np.indices(tuple(x.shape), dtype=np.int32)
    with np.errstate(over="ignore"):
        strides = np.array(x.stride(), dtype=np.int64).astype(np.int32)
        offsets = sum((at * stride for at, stride in zip(index, strides, strict=True)), np.zeros((), np.int32))
    storage = x.detach().new_empty(0).set_(x.untyped_storage())
    return storage[torch.as_tensor(x.storage_offset() + offsets.astype(np.int64))]


class _In32Bits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return right(offsets_in_32_bits(x))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy.cumsum(-1)


class _CotangentIn32Bits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return right(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return offsets_in_32_bits(dy).cumsum(-1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", [_In32Bits, _CotangentIn32Bits])
def test_an_offset_in_32_bits_is_found_and_by_no_other_law(fault: Any, dtype: str) -> None:
    assert judged("rev_cumsum.far_offsets", dtype, rev_cumsum=right).status == "passed"
    found = judged("rev_cumsum.far_offsets", dtype, rev_cumsum=fault.apply)
    assert found.status == "failed" and "times its tolerance" in (found.reason or "")
    assert judged("rev_cumsum.memory", rev_cumsum=fault.apply).status == "passed"


def test_a_numpy_target_gets_them_too() -> None:
    result = judged("rev_cumsum.far_offsets", framework="numpy", rev_cumsum=reference.rev_cumsum)
    assert result.status == "passed"
    assert axis_of("far 2") == 2 and axis_of("strided") is None


class _Recorder(TorchDispatchMode):
    """Keeps what is computed while its owner says so, to compute it again into the same memory."""

    def __init__(self, records: Any, delays: bool):
        super().__init__()
        self.records, self.delays = records, delays
        self.kept: list[tuple] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.records():
            return func(*args, **kwargs)
        # What is computed late finds its operands as they are now, and what it writes to is written late.
        result = args[0] if self.delays and func._schema.is_mutable else func(*args, **kwargs)
        self.kept.append((func, args, kwargs, result))
        return result

    def again(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self.kept:
                found = func(*args, **kwargs)
                for before, now in zip(tree_flatten(result)[0], tree_flatten(found)[0], strict=True):
                    if torch.is_tensor(before) and before.data_ptr() != now.data_ptr():
                        before.copy_(now)


class _Stream:
    def __init__(self, cuda: "_Cuda"):
        self.recorder = _Recorder(lambda: cuda.current is self, delays=True)

    def wait_stream(self, other: "_Stream") -> None:
        pass

    def synchronize(self) -> None:
        self.recorder.again()
        self.recorder.kept.clear()


class _Graph:
    def __init__(self) -> None:
        self.recorder = _Recorder(lambda: True, delays=False)

    def replay(self) -> None:
        self.recorder.again()


class _Cuda:
    """The part of ``torch.cuda`` that `conformance.frameworks._torch_transforms` uses, on a CPU."""

    CUDAGraph = _Graph

    def __init__(self) -> None:
        self.current = self.default = _Stream(self)

    def Stream(self) -> _Stream:
        return _Stream(self)

    def current_stream(self) -> _Stream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        with stream.recorder if stream is not self.default else contextlib.nullcontext():
            yield
        self.current = before
        if stream is not self.default and not self.busy:
            stream.synchronize()

    busy = captures = False

    def _sleep(self, cycles: int) -> None:
        self.busy = True

    @contextlib.contextmanager
    def graph(self, graph: _Graph) -> Iterator[None]:
        self.captures = True
        with graph.recorder:
            try:
                yield
            finally:
                self.captures = False

    def synchronize(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    from conformance.frameworks import _torch_transforms
    from conformance.frameworks.torch import TorchImplementation

    stand_in = _Cuda()
    monkeypatch.setattr(_torch_transforms, "on_gpu", partial(_torch_transforms.on_gpu, cuda=stand_in))
    monkeypatch.setattr(TorchImplementation, "lacks", lambda self, feature: None)
    return stand_in


@pytest.mark.parametrize("law", ["rev_cumsum.stream", "rev_cumsum.graph"])
def test_a_right_function_may_run_late_and_be_replayed(law: str, cuda: _Cuda) -> None:
    for dtype in ("float32", "bfloat16"):
        assert judged(law, dtype, rev_cumsum=right).status == "passed"


@pytest.mark.parametrize("operation", ["dtilde_matrix", "mlstm", "mlstm_step", "fwbw", "gru"])
@pytest.mark.parametrize("name", ["stream", "graph"])
def test_so_may_every_operation_of_torch_impl(operation: str, name: str, cuda: _Cuda) -> None:
    result = run_law(load("torch_impl", "torch", "cpu"), law_of(f"{operation}.{name}"), "float32", RunOptions())
    assert result.status == "passed", result.reason


def test_a_launch_on_the_default_stream_is_found(cuda: _Cuda) -> None:
    def elsewhere(x: Any) -> Any:
        with cuda.stream(cuda.default):
            return right(x)

    assert judged("rev_cumsum.stream", rev_cumsum=elsewhere).status == "failed"
    assert judged("rev_cumsum.value", rev_cumsum=elsewhere).status == "passed"


def test_a_value_that_the_host_read_at_the_capture_is_found(cuda: _Cuda) -> None:
    def read_by_the_host(x: Any) -> Any:
        on_the_host = torch.tensor(x.detach().tolist(), dtype=x.dtype).reshape(x.shape)
        return right(x) + (on_the_host - x.detach())

    assert judged("rev_cumsum.graph", rev_cumsum=read_by_the_host).status == "failed"
    assert judged("rev_cumsum.value", rev_cumsum=read_by_the_host).status == "passed"


def test_what_cannot_be_captured_is_not_wrong(cuda: _Cuda) -> None:
    def waits(x: Any) -> Any:
        if cuda.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        return right(x)

    result = judged("rev_cumsum.graph", rev_cumsum=waits)
    assert result.status != "failed" and "cannot be captured" in (result.reason or "")


def test_on_a_cpu_they_are_skipped_with_the_reason() -> None:
    for name in ("stream", "graph"):
        result = judged(f"rev_cumsum.{name}", rev_cumsum=right)
        assert result.status == "skipped" and "--device cuda" in (result.reason or "")


def judged_on_grids(op: str, function: Any) -> LawResult:
    return judged(f"{op}.large_grids", **{op: function})


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchImplementation, "lacks", lambda self, feature: None)


def cut(x: Any, axis: int) -> Any:
    """The array with zeros where a grid of 65,535 programs along its axis leaves off."""
    return torch.cat(
        [x.narrow(axis, 0, min(LIMIT, x.shape[axis])), 0 * x.narrow(axis, LIMIT, x.shape[axis] - LIMIT)], axis
    )


def cut_mlstm(axis: int, *, in_gradient: bool = False) -> Any:
    loop = mlstm_loop()

    def mlstm(*arrays: Any, **options: Any) -> Any:
        if arrays[0].shape[axis] <= LIMIT:
            return loop(*arrays, **options)
        if in_gradient:
            arrays = tuple(_CutGradient.apply(x, axis) for x in arrays)
            return loop(*arrays, **options)
        h, state = loop(*arrays, **options)
        return cut(h, axis), state

    return mlstm


class _CutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, axis: int) -> Any:
        ctx.axis = axis
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Any) -> tuple:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cut(dx, ctx.axis), None


def test_it_is_skipped_on_a_cpu_with_the_reason() -> None:
    found = judged_on_grids("mlstm", mlstm_loop())
    assert found.status == "skipped" and found.reason == "the CPU has no launch grids; use --device cuda"


@pytest.mark.parametrize(("op", "loop"), [("mlstm", mlstm_loop()), ("gru", gru_loop())])
def test_a_right_loop_passes(grids: None, op: str, loop: Any) -> None:
    found = judged_on_grids(op, loop)
    assert found.status == "passed", found.reason


@pytest.mark.parametrize("axis", [0, 2], ids=["sequences", "heads"])
@pytest.mark.parametrize("in_gradient", [False, True], ids=["value", "gradient"])
def test_a_kernel_that_leaves_off_at_the_limit_is_found(grids: None, axis: int, in_gradient: bool) -> None:
    found = judged_on_grids("mlstm", cut_mlstm(axis, in_gradient=in_gradient))
    assert found.status == "failed" and found.counterexample is not None
    assert found.counterexample.kind.where.startswith("gradient of" if in_gradient else "h")


def test_it_is_about_operations_with_sequences() -> None:
    operations = {"mlstm", "mlstm_step", "fwbw"}
    operations |= {name for name, operation in OPERATIONS.items() if operation.stated is not None}
    assert {law.op for law in all_laws() if law.name == "large_grids"} == operations
