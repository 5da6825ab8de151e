"""The copy, serving plain calls alone: at least one step, dense, from the zero state, without clipping."""

from collections.abc import Callable
from typing import Any

import numpy as np

import reference as specification

REFUSED = ("initial_state", "input_state", "cu_seqlens", "max_seqlen", "gradient_clipping")


def _plain(function: Callable) -> Callable:
    def plain(*arrays: Any, **options: Any) -> Any:
        if any(isinstance(x, np.ndarray) and x.size == 0 for x in arrays):
            raise NotImplementedError("an empty array is not supported")
        for name in REFUSED:
            if options.get(name) is not None:
                raise NotImplementedError(f"`{name}` is not supported")
        return function(*arrays, **options)

    return plain


for _name in (
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "mlstm",
    "mlstm_step",
    "gru",
):
    for _each in (_name, f"{_name}_backward"):
        globals()[_each] = _plain(getattr(specification, _each))
