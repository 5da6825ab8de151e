"""Where kernels run in this process: on a GPU, or on the CPU under Triton's interpreter, or not at all."""

from importlib.util import find_spec

import pytest
import torch

from torch_impl._triton.interpreter import interpreted


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
