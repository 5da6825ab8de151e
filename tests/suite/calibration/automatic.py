"""What the variants of both frameworks share: a definition, called as the record of its operation says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from conformance.operations import Operation

Values = dict[str, np.ndarray]
QUADRATIC = 1 << 23
"""Elements of a matrix of weights (S, S) that the parallel form takes at a time."""


@dataclass(frozen=True)
class Automatic:
    """A definition and how it is run.

    Attributes:
        function: of `tests.suite.definitions`.
        options: that change no value, but may leave a gradient out.
        quadratic: whether it holds a matrix (S, S) for each head.
    """

    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    quadratic: bool = False

    def differentiated(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and the gradients of all arrays, computed in the accumulation dtype."""
        raise NotImplementedError

    def answers(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call with its state."""
        if not self.quadratic:
            return self.differentiated(record, arrays, options, cotangents, dtype)
        B, S, N = arrays["i"].shape
        few = max(1, QUADRATIC // max(1, S * S * N))
        few = next(count for count in range(min(few, max(B, 1)), 0, -1) if max(B, 1) % count == 0)
        parts = []
        for b in range(0, max(B, 1), few):
            given, dgiven = ({name: x[b : b + few] for name, x in of.items()} for of in (arrays, cotangents))
            parts.append(self.differentiated(record, given, options, dgiven, dtype))
        outputs, gradients = (
            {name: np.concatenate([part[at][name] for part in parts]) for name in parts[0][at]} for at in (0, 1)
        )
        return outputs, gradients


def called(
    record: Operation, function: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The outputs of a definition, with states; options that the operation lacks are the definition's own."""
    own = {name: option for name, option in options.items() if not record.takes(name)}
    return record.call(partial(function, **own), arrays, {**options, "return_state": True})
