"""A launch while a CUDA graph is captured: modules may be loaded, and nothing is copied from the CPU."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from torch_impl._triton import launch

GPU = torch.device("cuda", 0)


class Kernel:
    """Stands in for a Triton kernel; ``mode`` is the mode of capture at its last launch."""

    def __init__(self, driver):
        self.driver, self.mode, self.fails = driver, None, False

    def __getitem__(self, grid):
        def run(**arguments):
            self.mode = self.driver.mode
            if self.fails:
                raise ZeroDivisionError

        return run


class Driver:
    """The mode of capture of a thread, at first CUDA's default, 0."""

    mode = 0
    status = 0

    def cuThreadExchangeStreamCaptureMode(self, pointer):
        given = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int)).contents
        self.mode, given.value = given.value, self.mode
        return self.status


@pytest.fixture
def kernel(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(launch, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return Kernel(driver)


def capturing(monkeypatch, does: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: does)


def run(kernel) -> None:
    launch.launch(kernel, 1, GPU, launch.Launch())


def test_a_kernel_may_be_loaded_while_a_graph_is_captured(kernel, monkeypatch) -> None:
    capturing(monkeypatch, False)
    run(kernel)
    assert kernel.mode == 0
    capturing(monkeypatch, True)
    run(kernel)
    assert (kernel.mode, kernel.driver.mode) == (launch.RELAXED, 0)
    kernel.fails = True
    with pytest.raises(ZeroDivisionError):
        run(kernel)
    assert kernel.driver.mode == 0
    kernel.driver.status = 1
    with pytest.raises(RuntimeError, match="cuThreadExchangeStreamCaptureMode failed with status 1"):
        run(kernel)


def test_a_packing_on_the_cpu_is_refused_while_a_graph_is_captured(monkeypatch) -> None:
    bounds = torch.tensor([0, 3])
    capturing(monkeypatch, True)
    with pytest.raises(RuntimeError, match="cu_seqlens: received a tensor on the CPU while a CUDA graph is captured"):
        launch.offsets_on(GPU, bounds)
    assert launch.offsets_on(torch.device("cpu"), bounds) is bounds
    on_gpu = SimpleNamespace(device=GPU, to=lambda device: device)
    assert launch.offsets_on(GPU, on_gpu) == GPU  # type: ignore[arg-type]
