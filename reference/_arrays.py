"""The array type of the reference: NumPy's."""

from typing import Any

import numpy as np

from reference._call import Framework

NUMPY = Framework(
    array="a numpy.ndarray",
    is_array=lambda x: isinstance(x, np.ndarray),
    values=lambda cu_seqlens: cu_seqlens,
    upcasts=True,
)


def float64(x: Any) -> Any:
    """A float64 copy; None stays None."""
    return None if x is None else np.array(x, dtype=np.float64)
