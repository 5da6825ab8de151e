"""The installed implementations, with what is needed to hand each of them an array or a place on a mesh."""

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.calls.packages import PACKAGES

INSTALLED = list(PACKAGES)


class Wing:
    """One implementation: its public names as attributes, and its arrays."""

    def __init__(self, name: str):
        self.name = name
        self.module = importlib.import_module(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def array(self, shape: tuple[int, ...] | list, dtype: str = "float32") -> Any:
        """Ones of a shape, or the values of a list."""
        values = np.ones(shape) if isinstance(shape, tuple) else np.array(shape)
        if self.name == "reference":
            return values.astype(dtype)
        if self.name == "torch_impl":
            torch = importlib.import_module("torch")
            return torch.tensor(values).to(getattr(torch, dtype))
        return importlib.import_module("jax.numpy").asarray(values.astype(dtype))

    def on_mesh(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """Call a sharding function as device 1 of a mesh with the one axis ``dp`` of size 2."""
        operation = getattr(self.module, function)
        if self.name == "reference":
            if function != "unstack_params":
                kwargs |= {"axis_index": {"dp": 1}, "axis_size": {"dp": 2}}
            return operation(*args, **kwargs)
        if self.name == "torch_impl":
            mesh = SimpleNamespace(mesh_dim_names=("dp",), get_local_rank=lambda name: 1, size=lambda dim: 2)
            return operation(*args, **kwargs, **({} if function == "unstack_params" else {"mesh": mesh}))
        jax = importlib.import_module("jax")
        along, mesh = jax.sharding.PartitionSpec("dp"), jax.sharding.Mesh(np.array(jax.devices()[:2]), ("dp",))
        on_device = jax.shard_map(lambda _: operation(*args, **kwargs), mesh=mesh, in_specs=along, out_specs=along)
        return on_device(jax.numpy.zeros(2))
