"""The interface between the training loop and a framework."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from examples.language_model.kinds import Kind
from examples.language_model.layout import ONE_DEVICE_EACH, Layout
from examples.language_model.packing import Rows
from examples.language_model.settings import Settings


class ProcessError(RuntimeError):
    """Another process of the run has stopped, or did not answer in time; the text names the time-out."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The measurements of a step, taken before the parameters change.

    Attributes:
        loss: mean cost of a target, in nats.
        gradient_norm: Euclidean norm of the gradient, before it is scaled.
    """

    loss: float
    gradient_norm: float


class Trainer(Protocol):
    """A model with its optimiser, in one framework.

    Attributes:
        devices: the number of devices, or of groups of them, that share the rows.
        is_main: whether this process writes and prints.
    """

    devices: int
    is_main: bool

    def step(self, rows: Rows, step: int) -> StepResult:
        """One step of the optimiser."""
        ...

    def row_losses(self, rows: Rows) -> np.ndarray:
        """Cost in nats of every row, ``(R,)`` float64; R is a multiple of the devices."""
        ...

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters by name; every process calls it."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state that a step changes to a directory; every process calls it."""
        ...

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote."""
        ...

    def wait_for_all(self, failed: bool = False) -> bool:
        """Return when every process has called it: whether any of them has failed."""
        ...

    def close(self) -> None:
        """Leave the group of processes."""
        ...


def make_trainer(settings: Settings, kind: Kind, layout: Layout = ONE_DEVICE_EACH) -> Trainer:
    """The trainer for the framework in the settings; the other framework is not imported.

    Raises:
        SettingsError: the devices or processes that are there do not fit the layout.
    """
    if settings.framework == "torch":
        from examples.language_model.torch_training import TorchTrainer

        return TorchTrainer(settings, kind, layout)
    from examples.language_model.jax_training import JaxTrainer

    return JaxTrainer(settings, kind, layout)


def held_out_nats(trainer: Trainer, rows: Rows) -> float:
    """Cost in nats of all rows; surplus devices repeat a row, which is not counted."""
    total, count = 0.0, len(rows.tokens)
    for first in range(0, count, trainer.devices):
        which = np.minimum(np.arange(first, first + trainer.devices), count - 1)
        some = Rows(tokens=rows.tokens[which], targets=rows.targets[which], cu_seqlens=rows.cu_seqlens[which])
        total += float(trainer.row_losses(some)[: count - first].sum())
    return total
