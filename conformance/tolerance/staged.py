"""A tolerance that is computed as far as a comparison needs it."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Staged(NDArrayOperatorsMixin):
    """An array of tolerances that grow from stage to stage; as an array of NumPy, the last stage.

    What is computed from it, element by element or as a part of it, is staged as well.

    Args:
        compute: yields the stages; it may be called more than once.
    """

    def __init__(self, compute: Callable[[], Iterator[np.ndarray]]):
        self.stages = compute

    @property
    def shape(self) -> tuple[int, ...]:
        return next(self.stages()).shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(deque(self.stages(), maxlen=1)[0], dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **more: Any) -> Any:
        if method != "__call__" or more:
            return NotImplemented
        return combined(ufunc, *xs)

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> "Staged":
        """Every stage changed."""
        return Staged(lambda: map(change, self.stages()))

    def __getitem__(self, key: Any) -> "Staged":
        return self.map(lambda x: x[key])


def combined(function: Callable[..., np.ndarray], *xs: Any) -> Staged:
    """A function of several arrays, stage by stage; what has no more stages stays as it is."""

    def compute() -> Iterator[np.ndarray]:
        last: tuple = (None,) * len(xs)
        for each in zip_longest(*map(stages, xs)):
            last = tuple(old if new is None else new for old, new in zip(last, each, strict=True))
            yield function(*last)

    return Staged(compute)


def stages(slack: "np.ndarray | Staged") -> Iterator[np.ndarray]:
    """The stages of a tolerance; an array has one."""
    return slack.stages() if isinstance(slack, Staged) else iter((slack,))
