"""PyTorch's settings that a call may change, and that other calls and the suite depend on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.frameworks import process_state
from conformance.frameworks.process_state import Setting, kept

_SMALLEST = 5e-324
"""A number below the smallest normal one."""


@contextmanager
def settings_kept() -> Iterator[None]:
    """`conformance.frameworks.process_state.settings_kept`, and PyTorch's settings."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    # This context, unlike any function, ends an inference mode that was entered and not left.
    with process_state.settings_kept(), torch.inference_mode(inference), kept(_SETTINGS):
        torch.set_grad_enabled(gradients)
        yield


def _flushes() -> bool:
    """Whether numbers below the smallest normal one are taken for zero; NumPy's are then, too."""
    return _SMALLEST * 1.0 == 0.0


def _device() -> torch.device | None:
    """The default device; None for the CPU, which is the default of a process that sets none."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _attribute(module: Any, name: str) -> Setting:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


def _precision() -> str | None:
    """The precision of products of float32 matrices; None if a newer setting has replaced this one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _precisions() -> Iterator[Setting]:
    """The newer settings of that precision, which PyTorch has for each library, from version 2.9 on."""
    backends: Any = torch.backends
    for library in (backends.cuda.matmul, getattr(backends.mkldnn, "matmul", None)):
        if hasattr(library, "fp32_precision"):
            yield _attribute(library, "fp32_precision")


_SETTINGS: tuple[Setting, ...] = (
    (_device, torch.set_default_device),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (_deterministic, lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1])),
    (_anomalies, lambda both: torch.autograd.set_detect_anomaly(*both)),
    (_flushes, torch.set_flush_denormal),
    _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    # The first of these sets the others too.
    (_precision, lambda precision: precision is None or torch.set_float32_matmul_precision(precision)),
    *_precisions(),
)
