"""Random checkpoints of any size, made tensor by tensor, for experiments."""

from collections.abc import Iterator, Mapping

import numpy as np

from examples.xlstm.config import XLSTMConfig
from examples.xlstm.shard import numpy_dtype
from examples.xlstm.tensors import tensor_shapes


class RandomTensors(Mapping[str, np.ndarray]):
    """Random parameters that are drawn when they are requested, with the same values each time.

    Linear maps are normal with variance 1/inputs; norms are near 1; gates forget over some ten steps.

    Args:
        config: gives names, shapes and the dtype.
        seed: the seed of the draw.
    """

    def __init__(self, config: XLSTMConfig, seed: int = 0) -> None:
        self._config, self._seed, self._shapes = config, seed, tensor_shapes(config)

    def __getitem__(self, name: str) -> np.ndarray:
        shape = self._shapes[name]
        rng = np.random.default_rng([self._seed, list(self._shapes).index(name)])
        spread = np.float32(shape[-1] ** -0.5 if len(shape) == 2 else 0.3)
        x = rng.standard_normal(shape, np.float32)
        x *= spread
        if "norm" in name and name.endswith("weight"):
            x += 1
        elif name.endswith("fgate_preact.bias"):
            x += 2
        return x.astype(numpy_dtype(self._config.dtype), copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
