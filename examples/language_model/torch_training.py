"""Training in PyTorch: one step, losses of held-out rows, and the state of a checkpoint.

Under ``torchrun`` each process takes its part of the rows, and gradients are averaged; a single process takes all rows.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

from examples.language_model.corpus import BOUNDARY
from examples.language_model.kinds import Kind
from examples.language_model.packing import Rows
from examples.language_model.schedule import learning_rate
from examples.language_model.settings import Settings
from examples.language_model.trainer import StepResult
from torch_impl import accumulate_gradients, fold_rng_over_axis, split_array_over_mesh

AXIS = "data"


@dataclass(frozen=True, kw_only=True)
class OneProcess:
    """The mesh of a process that trains alone."""

    mesh_dim_names: tuple[str, ...] = (AXIS,)

    def get_local_rank(self, name: str) -> int:
        """The only rank."""
        return 0

    def size(self, index: int) -> int:
        """The number of ranks."""
        return 1


class TorchTrainer:
    """The model, its optimiser and its schedule in one process.

    Args:
        settings: the settings of the run.
        kind: the model.
    """

    def __init__(self, settings: Settings, kind: Kind) -> None:
        self.settings = settings
        self.device, self.mesh = _device_and_mesh()
        self.devices, self.is_main = self.mesh.size(0), self.mesh.get_local_rank(AXIS) == 0
        values = kind.initial(settings.seed)
        kind.check(values)
        self.model = load(kind, values).to(self.device)
        self.params = dict(self.model.named_parameters())
        matrices = [p for p in self.params.values() if p.ndim > 1]
        others = [p for p in self.params.values() if p.ndim <= 1]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda step: learning_rate(settings, step) / settings.learning_rate
        )

    @property
    def apply_fn(self) -> Callable[..., Tensor]:
        """The model as a function of its parameters, for `accumulate_gradients`."""
        return lambda params, *args, **options: torch.func.functional_call(self.model, params, args, options)

    def step(self, rows: Rows, step: int) -> StepResult:
        """One step of the optimiser."""
        settings = self.settings
        seed = int(np.random.SeedSequence((settings.seed, step)).generate_state(1)[0])
        rng = fold_rng_over_axis(seed, AXIS, mesh=self.mesh)
        gradients, metrics, _ = accumulate_gradients(self, self._share(rows), rng, settings.minibatches, self._loss)
        loss = self._mean(metrics["loss"] / settings.minibatches)
        for name, parameter in self.params.items():
            parameter.grad = self._mean(gradients[name])
        norm = torch.nn.utils.clip_grad_norm_(self.params.values(), settings.gradient_norm)
        self.optimiser.step()
        self.schedule.step()
        return StepResult(loss=loss.item(), gradient_norm=norm.item())

    @torch.no_grad()
    def row_losses(self, rows: Rows) -> np.ndarray:
        """Cost in nats of every row, ``(R,)`` float64; R is a multiple of the devices."""
        share = self._share(rows)
        each = [{name: x[r : r + 1] for name, x in share.items()} for r in range(len(share["tokens"]))]
        mine = torch.stack([self._token_losses(self.params, self.apply_fn, row).double().sum() for row in each])
        if self.devices == 1:
            return mine.cpu().numpy()
        everyone = [torch.empty_like(mine) for _ in range(self.devices)]
        dist.all_gather(everyone, mine)
        return torch.cat(everyone).cpu().numpy()

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return {name: p.detach().cpu().numpy() for name, p in self.params.items()}

    def save(self, directory: Path) -> None:
        """Write parameters, optimiser and schedule; every process calls it."""
        with _without_word_of_one_process():
            dcp.save(self._state(), checkpoint_id=directory, no_dist=self.devices == 1)

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote."""
        state = self._state()
        with _without_word_of_one_process():
            dcp.load(state, checkpoint_id=directory, no_dist=self.devices == 1)
        set_state_dict(self.model, self.optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])

    def wait_for_all(self) -> None:
        """Return when every process has called it."""
        if self.devices > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group of processes."""
        if self.devices > 1:
            dist.destroy_process_group()

    def _state(self) -> dict[str, Any]:
        model, optimiser = get_state_dict(self.model, self.optimiser)
        return {"model": model, "optimiser": optimiser, "schedule": self.schedule.state_dict()}

    def _share(self, rows: Rows) -> dict[str, Tensor]:
        """This process's part of the rows, on its device."""
        whole = {name: torch.from_numpy(x) for name, x in vars(rows).items()}
        return {name: split_array_over_mesh(x, AXIS, 0, mesh=self.mesh).to(self.device) for name, x in whole.items()}

    def _mean(self, x: Tensor) -> Tensor:
        """The mean over processes."""
        if self.devices > 1:
            dist.all_reduce(x)
            x /= self.devices
        return x

    def _loss(self, params: Any, apply_fn: Callable, minibatch: dict[str, Tensor], rng: int) -> tuple[Tensor, Any]:
        """Mean cost of the targets of a minibatch."""
        dropout = self.settings.input_dropout
        if dropout:
            generator = torch.Generator(self.device).manual_seed(rng)
            hidden = torch.rand(minibatch["tokens"].shape, generator=generator, device=self.device) < dropout
            minibatch = {**minibatch, "tokens": minibatch["tokens"].masked_fill(hidden, BOUNDARY)}
        loss = self._token_losses(params, apply_fn, minibatch).mean()
        return loss, ({"loss": loss}, None)

    def _token_losses(self, params: Any, apply_fn: Callable, rows: dict[str, Tensor]) -> Tensor:
        """Cost in nats of every target of ``R`` rows, which become one packing: ``(R·T,)``."""
        R, T = rows["tokens"].shape
        starts = rows["cu_seqlens"][:, :-1] + T * torch.arange(R, dtype=torch.int32, device=self.device)[:, None]
        packing = torch.nn.functional.pad(starts.flatten(), (0, 1), value=R * T)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            logits = apply_fn(params, rows["tokens"].flatten(), cu_seqlens=packing, max_seqlen=T)
        return torch.nn.functional.cross_entropy(logits.float(), rows["targets"].flatten().long(), reduction="none")


def load(kind: Kind, values: Mapping[str, np.ndarray]) -> torch.nn.Module:
    """The model with these parameters."""
    model = kind.torch()
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in values.items()})
    return model


@contextmanager
def _without_word_of_one_process() -> Iterator[None]:
    """Silence the warning of torch.distributed.checkpoint about a single process, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _device_and_mesh() -> tuple[torch.device, Any]:
    """The device of this process, and the mesh of all processes that ``torchrun`` has started."""
    cuda, processes = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        return torch.device("cuda" if cuda else "cpu"), OneProcess()
    local = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh("cuda" if cuda else "cpu", (processes,), mesh_dim_names=(AXIS,))
    return torch.device("cuda", local) if cuda else torch.device("cpu"), mesh
