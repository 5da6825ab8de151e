"""Training in JAX: one step, losses of held-out rows, and the state of a checkpoint.

All devices that JAX shows, in all processes, make up a mesh. Each device, or each group of devices that share the
tokens of a row, takes its part of the rows, and gradients are averaged. One device is a mesh of one. Every process
reads all rows; its devices use their part. Parameters and the optimiser's state may be sharded over all devices.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.language_model.kinds import Kind
from examples.language_model.layout import Layout
from examples.language_model.packing import Rows, with_hidden_tokens
from examples.language_model.schedule import learning_rate
from examples.language_model.settings import Settings, SettingsError
from examples.language_model.trainer import StepResult
from jax_impl import accumulate_gradients, split_array_over_mesh

AXIS, SEQUENCE = "data", "sequence"
ALL = (AXIS, SEQUENCE)


class State(NamedTuple):
    """The state that a step changes: parameters and the optimiser's state, including the schedule's count."""

    params: Any
    optimiser: Any


class Differentiated(NamedTuple):
    """The argument ``state`` of `accumulate_gradients`: parameters, and the model as a function of them."""

    params: Any
    apply_fn: Callable[..., jax.Array]


class JaxTrainer:
    """The model, its optimiser and its schedule on all devices of all processes.

    Args:
        settings: the settings of the run.
        kind: the model.
        layout: the layout over devices.
    """

    def __init__(self, settings: Settings, kind: Kind, layout: Layout) -> None:
        self.settings, self.kind = settings, kind
        self.patience = ocp.options.AsyncOptions(timeout_secs=math.ceil(layout.timeout))
        _join_processes(layout)
        devices, parts = len(jax.devices()), layout.sequence_parallel
        layout.check(settings, devices)
        self.mesh = jax.make_mesh((devices // parts, parts), ALL, axis_types=(AxisType.Auto,) * 2)
        self.devices, self.is_main = devices // parts, jax.process_index() == 0
        self.sharded_steps = {"sequence_axis": SEQUENCE} if parts > 1 else {}
        self.model = kind.flax(jnp.dtype(settings.precision))
        values = kind.initial(settings.seed)
        kind.check(values)
        rates = jnp.array([learning_rate(settings, step) for step in range(settings.steps)], jnp.float32)
        self.optimiser = optax.adamw(
            lambda count: rates[count],
            b1=settings.beta1,
            b2=settings.beta2,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
        )
        params = jax.tree.map(jnp.asarray, kind.to_flax(values))
        everywhere = NamedSharding(self.mesh, P())
        # From NumPy: an array of one device cannot be moved to those of other processes.
        state = jax.device_get(State(params=params, optimiser=self.optimiser.init(params)))
        placed = jax.tree.map(self._shard if layout.shard_parameters else lambda x: everywhere, state)
        self.state = jax.device_put(state, placed)
        self._mean_gradients = self._over_devices(self._gradients, (P(), P(AXIS)), P())
        self._step = jax.jit(self._update, donate_argnums=0, out_shardings=(placed, everywhere, everywhere))
        row_losses = self._over_devices(self._losses_of_rows, (P(), P(AXIS)), P(AXIS))
        self._row_losses = jax.jit(row_losses, out_shardings=everywhere)
        self._whole = jax.jit(lambda params: params, out_shardings=everywhere)

    def step(self, rows: Rows, step: int) -> StepResult:
        """One step of the optimiser."""
        rows = with_hidden_tokens(rows, self.settings.input_dropout, self.settings.seed, step)
        self.state, loss, norm = self._step(self.state, vars(rows))
        return StepResult(loss=float(loss), gradient_norm=float(norm))

    def row_losses(self, rows: Rows) -> np.ndarray:
        """Cost in nats of every row, ``(R,)`` float64; R is a multiple of the devices."""
        return np.asarray(self._row_losses(self.state.params, vars(rows)), np.float64)

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters by name; every process calls it."""
        return self.kind.from_flax(jax.device_get(self._whole(self.state.params)))

    def save(self, directory: Path) -> None:
        """Write parameters, optimiser and schedule. If one process fails, the others do so after the time-out."""
        with ocp.StandardCheckpointer(async_options=self.patience) as checkpointer:
            checkpointer.save(directory.absolute(), self.state)

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote."""
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state)
        with ocp.StandardCheckpointer(async_options=self.patience) as checkpointer:
            self.state = checkpointer.restore(directory.absolute(), target)

    def wait_for_all(self, failed: bool = False) -> bool:
        """Return when every process has called it: whether any of them has failed."""
        return bool(np.any(multihost_utils.process_allgather(np.array(failed))))

    def close(self) -> None:
        """Leave the group of processes, if there is one."""
        if jax.process_count() > 1:
            jax.distributed.shutdown()

    def _over_devices(self, function: Callable, arguments: Any, results: Any) -> Callable:
        return jax.shard_map(function, mesh=self.mesh, in_specs=arguments, out_specs=results)

    def _shard(self, x: np.ndarray) -> NamedSharding:
        """The sharding of an array over all devices along its longest axis that they divide; whole if there is none."""
        axes = [axis for axis in range(x.ndim) if x.shape[axis] and x.shape[axis] % self.mesh.size == 0]
        longest = max(axes, key=lambda axis: x.shape[axis], default=None)
        return NamedSharding(self.mesh, P(*(ALL if axis == longest else None for axis in range(x.ndim))))

    def _update(self, state: State, batch: dict[str, jax.Array]) -> tuple[State, jax.Array, jax.Array]:
        """One step: the mean gradient, and the optimiser's update of what each device holds."""
        gradients, loss = self._mean_gradients(state.params, batch)
        norm = optax.tree.norm(gradients)
        # The same rule as that of torch.nn.utils.clip_grad_norm_.
        scale = jnp.minimum(1.0, self.settings.gradient_norm / (norm + 1e-6))
        gradients = jax.tree.map(lambda g: g * scale, gradients)
        updates, optimiser = self.optimiser.update(gradients, state.optimiser, state.params)
        return State(params=optax.apply_updates(state.params, updates), optimiser=optimiser), loss, norm

    def _gradients(self, params: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        """On each device the gradient of its part of the tokens, then the mean over devices; likewise the loss."""
        settings = self.settings
        # Parameters that differ between devices as far as JAX knows: their gradients are each device's own. The mean is
        # formed below, together with that of the loss.
        own = jax.tree.map(lambda p: jax.lax.pcast(p, ALL, to="varying"), params)
        gradients, metrics, _ = accumulate_gradients(
            Differentiated(params=own, apply_fn=self._apply),
            batch,
            jax.random.key(settings.seed),  # not used
            settings.minibatches,
            self._loss,
            use_scan=True,
        )
        return jax.lax.pmean((gradients, metrics["loss"] / settings.minibatches), ALL)

    def _loss(self, params: Any, apply_fn: Callable, minibatch: dict[str, jax.Array], rng: jax.Array) -> tuple:
        """Mean cost of the targets of a minibatch, of which this device has an equal part."""
        loss = self._token_losses(params, apply_fn, minibatch).mean()
        return loss, ({"loss": loss}, None)

    def _losses_of_rows(self, params: Any, rows: dict[str, jax.Array]) -> jax.Array:
        def of_row(row: dict[str, jax.Array]) -> jax.Array:
            return self._token_losses(params, self._apply, {name: x[None] for name, x in row.items()}).sum()

        return jax.lax.psum(jax.lax.map(of_row, rows), SEQUENCE)

    def _token_losses(self, params: Any, apply_fn: Callable, rows: dict[str, jax.Array]) -> jax.Array:
        """Cost in nats of the targets of ``R`` rows, which become one packing: ``(R·T,)``, or this device's part."""
        R, T = rows["tokens"].shape
        starts = rows["cu_seqlens"][:, :-1] + T * jnp.arange(R, dtype=jnp.int32)[:, None]
        packing = jnp.append(starts.reshape(-1), R * T)
        tokens, targets = (split_array_over_mesh(rows[name].reshape(-1), SEQUENCE, 0) for name in ("tokens", "targets"))
        logits = apply_fn(params, tokens, cu_seqlens=packing, max_seqlen=T, **self.sharded_steps)
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets)

    def _apply(self, params: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        return self.model.apply({"params": params}, *args, **options)


def _join_processes(layout: Layout) -> None:
    """Join the processes that a launcher has started, which sets the same variables as for PyTorch.

    Raises:
        SettingsError: a variable is missing or is not a number.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1" or jax.distributed.is_initialized():
        return
    address, port, rank = (_launched_with(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    if not (count.isdecimal() and port.isdecimal() and rank.isdecimal()):
        raise SettingsError(
            f"WORLD_SIZE is {count!r}, MASTER_PORT {port!r} and RANK {rank!r} in the environment; expected numbers"
        )
    # torchrun itself listens at the port.
    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS", f"{address}:{int(port) + 1}")
    jax.distributed.initialize(
        coordinator,
        num_processes=int(count),
        process_id=int(rank),
        initialization_timeout=math.ceil(layout.timeout),
        heartbeat_timeout_seconds=math.ceil(layout.timeout),
    )


def _launched_with(name: str) -> str:
    if name not in os.environ:
        raise SettingsError(
            f"WORLD_SIZE is set in the environment and {name} is not; expected both, as torchrun sets them"
        )
    return os.environ[name]
