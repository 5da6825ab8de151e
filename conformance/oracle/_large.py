"""The oracles, with what large sizes and large values add to their tolerance; small ones are as they were calibrated.

**Sums of many terms.** A sum of n terms of one sign that are added one after the other is off by √n/4 roundoffs in the
root mean square (4.0 at n = 256, and at most 13.8 in 4,000 sums). Up to n = 16 that is less than the κ roundoffs of a
sum's magnitude that `tolerance.budget` allows; beyond, κ grows with it.

**Terms that are flushed to 0.** A weight below the smallest normal number counts as 0 in most frameworks, and what is
lost is multiplied by cotangents and values. It is therefore allowed in units of the largest of these, so that the
tolerance scales with the cotangents as the gradient does. What must be exactly 0 stays so.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.oracle import _packed, _sums, _weight_sums
from conformance.tolerance.budget import Expected
from conformance.tolerance.many_terms import of_sums

Oracle = Callable[..., Expected]


def _for_any_size(oracle: Oracle, *, summed: tuple[str, ...] = (), factors: tuple[str, ...] = ()) -> Oracle:
    """The oracle for any sizes and scales.

    Args:
        summed: the arrays along whose last axis products are summed.
        factors: the arrays that are factors of the terms, as the cotangents are.
    """
    signature = inspect.signature(oracle)

    @functools.wraps(oracle)
    def widened(*args: Any) -> Expected:
        given = signature.bind(*args).arguments
        arrays, precision = given["arrays"], given["precision"]
        terms = max((arrays[name].shape[-1] for name in summed), default=1)
        expected = oracle(*args[:-1], of_sums(precision, terms))
        largest = [_largest(arrays[name]) for name in factors]
        largest.append(max(map(_largest, given.get("cotangents", {}).values()), default=1.0))
        least = precision.least * math.prod(max(1.0, each) for each in largest)
        slack = {name: np.where(x > 0, x + least, x) for name, x in expected.slack.items()}
        return replace(expected, slack=slack)

    return widened


def _largest(x: np.ndarray) -> float:
    return float(np.abs(np.where(np.isfinite(x), x, 0.0)).max(initial=0.0))


_MLSTM: dict[str, Any] = {"summed": ("k", "v"), "factors": ("q", "k", "v")}
mlstm = _for_any_size(_packed.mlstm, **_MLSTM)
mlstm_gradient = _for_any_size(_packed.mlstm_gradient, **_MLSTM)
fwbw = _for_any_size(_weight_sums.fwbw, **_MLSTM)
fwbw_gradient = _for_any_size(_weight_sums.fwbw_gradient, **_MLSTM)
dtilde_gradient = _for_any_size(_sums.dtilde_gradient)
