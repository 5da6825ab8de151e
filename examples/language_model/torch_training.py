"""Training in PyTorch: one step, losses of held-out rows, and the state of a checkpoint.

Under ``torchrun`` each process, or each group of processes that share the tokens of a row, takes its part of the rows,
and gradients are averaged; a single process takes all rows. Parameters may be sharded over all processes, by FSDP2.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from examples.language_model.kinds import Kind
from examples.language_model.layout import Layout
from examples.language_model.packing import Rows, with_hidden_tokens
from examples.language_model.schedule import learning_rate
from examples.language_model.settings import Settings
from examples.language_model.trainer import ProcessError, StepResult
from torch_impl import accumulate_gradients, split_array_over_mesh

AXIS, SEQUENCE = "data", "sequence"


@dataclass(frozen=True, kw_only=True)
class OneProcess:
    """The mesh of a process that trains alone."""

    mesh_dim_names: tuple[str, ...] = (AXIS, SEQUENCE)

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
        layout: the layout over processes.
    """

    def __init__(self, settings: Settings, kind: Kind, layout: Layout) -> None:
        self.settings, self.layout = settings, layout
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        layout.check(settings, self.ranks)
        self.device, self.mesh = _device_and_mesh(self.ranks, layout)
        self.devices = self.mesh.size(0)
        self.is_main = all(self.mesh.get_local_rank(name) == 0 for name in (AXIS, SEQUENCE))
        self.sharded = layout.shard_parameters and self.ranks > 1
        values = kind.initial(settings.seed)
        kind.check(values)
        self.model: Any = load(kind, values).to(self.device)
        if self.sharded:
            # Nothing is written into the states that blocks return, which are views.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            over_all = init_device_mesh(self.device.type, (self.ranks,))
            for block in self.model.backbone.blocks:
                fully_shard(block, mesh=over_all)
            fully_shard(self.model, mesh=over_all)
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
        """The model as a function of its parameters, for `accumulate_gradients`; sharded ones are the model's own."""
        if self.sharded:
            return lambda params, *args, **options: self.model(*args, **options)
        return lambda params, *args, **options: torch.func.functional_call(self.model, params, args, options)

    def step(self, rows: Rows, step: int) -> StepResult:
        """One step of the optimiser.

        Raises:
            ProcessError: another process has stopped.
        """
        settings = self.settings
        batch = self._share(with_hidden_tokens(rows, settings.input_dropout, settings.seed, step))
        with self._waiting(f"in step {step + 1}"):
            loss = self._sharded_gradients(batch) if self.sharded else self._gradients(batch)
            norm = torch.nn.utils.clip_grad_norm_(self.params.values(), settings.gradient_norm)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.optimiser.step()
        self.schedule.step()
        return StepResult(loss=loss.item(), gradient_norm=norm.item())

    @torch.no_grad()
    def row_losses(self, rows: Rows) -> np.ndarray:
        """Cost in nats of every row, ``(R,)`` float64; R is a multiple of the devices.

        Raises:
            ProcessError: another process has stopped.
        """
        share = self._share(rows)
        each = [{name: x[r : r + 1] for name, x in share.items()} for r in range(len(share["tokens"]))]
        with self._waiting("in a validation"):
            mine = torch.stack([self._token_losses(self.params, self.apply_fn, row).double().sum() for row in each])
            if self.ranks == 1:
                return mine.cpu().numpy()
            dist.all_reduce(mine, group=self.mesh[SEQUENCE].get_group())
            everyone = [torch.empty_like(mine) for _ in range(self.devices)]
            dist.all_gather(everyone, mine, group=self.mesh[AXIS].get_group())
        return torch.cat(everyone).cpu().numpy()

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters by name; every process calls it."""
        whole = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in self.params.items()}
        return {name: p.detach().cpu().numpy() for name, p in whole.items()}

    def save(self, directory: Path) -> None:
        """Write parameters, optimiser and schedule; every process calls it."""
        with _without_word_of_one_process():
            dcp.save(self._state(), checkpoint_id=directory, no_dist=self.ranks == 1)

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote."""
        state = self._state()
        with _without_word_of_one_process():
            dcp.load(state, checkpoint_id=directory, no_dist=self.ranks == 1)
        set_state_dict(self.model, self.optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])

    def wait_for_all(self, failed: bool = False) -> bool:
        """Return when every process has called it: whether any of them has failed.

        Raises:
            ProcessError: another process has stopped.
        """
        if self.ranks == 1:
            return failed
        failures = torch.tensor(float(failed), device=self.device)
        with self._waiting("before or after a checkpoint"):
            dist.all_reduce(failures)
        return bool(failures)

    def close(self) -> None:
        """Leave the group of processes."""
        if self.ranks > 1:
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
        if self.ranks > 1:
            dist.all_reduce(x)
            x /= self.ranks
        return x

    def _gradients(self, batch: dict[str, Tensor]) -> Tensor:
        """Set the gradient of every parameter; return the loss. Both are the means over processes, in one message."""
        n = self.settings.minibatches
        gradients, metrics, _ = accumulate_gradients(self, batch, 0, n, self._loss)
        own = [*(gradients[name] for name in self.params), metrics["loss"] / n]
        whole = self._mean(torch.cat([x.flatten() for x in own])).split([x.numel() for x in own])
        for parameter, gradient in zip(self.params.values(), whole, strict=False):
            parameter.grad = gradient.view_as(parameter)
        return whole[-1]

    def _sharded_gradients(self, batch: dict[str, Tensor]) -> Tensor:
        """`_gradients` of sharded parameters: FSDP2 averages over processes, and does so in the last minibatch."""
        n = self.settings.minibatches
        self.optimiser.zero_grad()
        losses = []
        for b, minibatch in enumerate(zip(*(x.chunk(n) for x in batch.values()), strict=True)):
            self.model.set_requires_gradient_sync(b == n - 1)
            loss, _ = self._loss(self.params, self.apply_fn, dict(zip(batch, minibatch, strict=True)), 0)
            (loss / n).backward()
            losses.append(loss.detach())
        return self._mean(torch.stack(losses).mean())

    @contextmanager
    def _waiting(self, when: str) -> Iterator[None]:
        """Name the time-out in the error of a process whose group has broken.

        Raises:
            ProcessError: a collective failed, or did not end within the time-out.
        """
        try:
            yield
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)):
                raise
            raise ProcessError(
                f"another of {self.ranks} processes has stopped, or did not answer within `--timeout`, "
                f"{self.layout.timeout:g} s, {when}: {str(error).splitlines()[0]}"
            ) from error

    def _loss(self, params: Any, apply_fn: Callable, minibatch: dict[str, Tensor], rng: int) -> tuple[Tensor, Any]:
        """Mean cost of the targets of a minibatch, of which this process has an equal part."""
        loss = self._token_losses(params, apply_fn, minibatch).mean()
        return loss, ({"loss": loss}, None)

    def _token_losses(self, params: Any, apply_fn: Callable, rows: dict[str, Tensor]) -> Tensor:
        """Cost in nats of the targets of ``R`` rows, which become one packing: ``(R·T,)``, or this process's part."""
        R, T = rows["tokens"].shape
        starts = rows["cu_seqlens"][:, :-1] + T * torch.arange(R, dtype=torch.int32, device=self.device)[:, None]
        packing = torch.nn.functional.pad(starts.flatten(), (0, 1), value=R * T)
        tokens, targets = (split_array_over_mesh(rows[name].flatten(), SEQUENCE, 0, mesh=self.mesh) for name in ROW)
        sharded = {"sequence_group": self.mesh[SEQUENCE]} if self.mesh.size(1) > 1 else {}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            logits = apply_fn(params, tokens, cu_seqlens=packing, max_seqlen=T, **sharded)
        return torch.nn.functional.cross_entropy(logits.float(), targets.long(), reduction="none")


ROW = ("tokens", "targets")
"""The arrays of a row that have an element for each token."""


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


def _device_and_mesh(processes: int, layout: Layout) -> tuple[torch.device, Any]:
    """The device of this process, and the mesh of all processes that ``torchrun`` has started."""
    cuda = torch.cuda.is_available()
    if processes == 1:
        return torch.device("cuda" if cuda else "cpu"), OneProcess()
    local = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=layout.timeout))
    shape = (processes // layout.sequence_parallel, layout.sequence_parallel)
    mesh = init_device_mesh("cuda" if cuda else "cpu", shape, mesh_dim_names=(AXIS, SEQUENCE))
    return torch.device("cuda", local) if cuda else torch.device("cpu"), mesh
