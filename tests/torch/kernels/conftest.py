"""Where kernels run in this process: on a GPU, or on the CPU under Triton's interpreter, or not at all."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from torch_impl._triton.interpreter import interpreted


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_device: runs kernels, on a GPU or under Triton's interpreter")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "device" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.on_device)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device that kernels run on, else a skip that says why."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if interpreted():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no GPU; test_interpreter.py runs this under TRITON_INTERPRET=1")
    return torch.device("cuda")
