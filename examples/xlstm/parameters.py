"""Parameters of either model as NumPy arrays under the published names, and back.

    arrays = from_torch(model)          # dict of name → array; views of the parameters where NumPy has their dtype
    model = to_torch(config, arrays)    # parameters are views of the arrays: nothing is copied
    arrays = from_flax(params)
    params = to_flax(config, arrays)    # {"params": ...}, for `XLSTM(config).apply`

Dtypes are kept. PyTorch's bfloat16 is ``ml_dtypes.bfloat16`` in NumPy, as it is in JAX.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.xlstm.config import XLSTMConfig
from examples.xlstm.shard import numpy_dtype
from examples.xlstm.tensors import CheckpointError, check_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from examples.xlstm.torch_model import XLSTM


def from_torch(model: "XLSTM") -> dict[str, np.ndarray]:
    """The parameters of a PyTorch model on any device; on the CPU the arrays share the parameters' memory."""
    return {name: array_of(x) for name, x in model.state_dict().items()}


def to_torch(config: XLSTMConfig, arrays: Mapping[str, np.ndarray]) -> "XLSTM":
    """A PyTorch model whose parameters are the arrays, in their memory and dtype.

    Training such a model writes to the arrays; they must be writable, as those of `checkpoint.open_checkpoint` are.

    Raises:
        CheckpointError: an array is missing, unknown, of another shape or dtype than the others, or read-only.
    """
    import torch

    from examples.xlstm.torch_model import XLSTM

    check_tensors(_as_they_are(config, arrays), arrays)
    for name, x in arrays.items():
        if not x.flags.writeable:
            raise CheckpointError(f"to_torch: `{name}` is read-only; expected a writable array")
    with torch.device("meta"):
        model = XLSTM(config)
    model.load_state_dict({name: tensor_of(x) for name, x in arrays.items()}, strict=True, assign=True)
    return model


def from_flax(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters of a Flax model, ``{"params": ...}`` as `init` returns them; on the CPU no copies are made."""
    arrays: dict[str, np.ndarray] = {}

    def walk(prefix: str, tree: Mapping[str, Any]) -> None:
        for name, x in tree.items():
            if isinstance(x, Mapping):
                walk(f"{prefix}{name}.", x)
            else:
                arrays[f"{prefix}{name}"] = np.asarray(x)

    walk("", params["params"])
    return arrays


def to_flax(config: XLSTMConfig, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Flax parameters, ``{"params": ...}``, from arrays of NumPy or JAX.

    NumPy arrays are not copied here; `jax.device_put` or the first training step copies them.

    Raises:
        CheckpointError: an array is missing, unknown, or of another shape or dtype than the others.
    """
    check_tensors(_as_they_are(config, arrays), arrays)
    return {"params": tree_of(arrays)}


def tree_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts, one level for each part of a name between its dots."""
    tree: dict[str, Any] = {}
    for name, x in arrays.items():
        *path, leaf = name.split(".")
        node = tree
        for each in path:
            node = node.setdefault(each, {})
        node[leaf] = x
    return tree


def _as_they_are(config: XLSTMConfig, arrays: Mapping[str, Any]) -> XLSTMConfig:
    """The configuration with the dtype of the arrays, which may differ from that of a file."""
    dtype = next((str(x.dtype) for x in arrays.values()), config.dtype)
    return dataclasses.replace(config, dtype=dtype)


def array_of(x: "Tensor") -> np.ndarray:
    """A tensor as an array, in the same memory if it is contiguous and on the CPU."""
    import torch

    x = x.detach().cpu().contiguous()
    return x.view(torch.int16).numpy().view(numpy_dtype("bfloat16")) if x.dtype is torch.bfloat16 else x.numpy()


def tensor_of(x: np.ndarray) -> "Tensor":
    """A writable array as a tensor, in the same memory if the array is contiguous and aligned."""
    import torch

    # A file whose header has an odd length holds tensors at odd addresses.
    x = np.require(x, requirements=["A", "C"])
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == "bfloat16" else torch.from_numpy(x)
