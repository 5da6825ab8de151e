"""The error of an mLSTM's outputs when its weights come from differences of cumulative sums.

The parallel and the chunkwise form often take the weight of step j at step t from ``D_tj = B_t − B_j + i_j`` with
``B = cumsum(log σ(f))``. Where gates were closed, B is large, and its roundoff is that of the difference, however small
that is: 64 steps of which a fifth forget by exp(−5) and the others keep everything have B = −64, and every weight is
off by 64 roundoffs. `budget` allows each gate its own roundoff alone, which gatespec's own packages keep.

The write of step t itself has the weight exp(i_t − m_t), without a difference. Gates beyond `CLOSED` are as good as
hard resets: sums that hold one have lost the digits of all others, which no correct implementation computes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.any_design import AnyDesign
from conformance.budget import NEAR_FLOOR, Expected, Precision
from conformance.oracle import _fwbw
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._mlstm import with_state

CLOSED = 20.0
"""Size of a log gate beyond which it is no part of a sum."""


@without_warnings
def widened_value(
    expected: Expected, arrays: Values, precision: Precision, *, eps: float = 0.0, floor_is_one: bool = False
) -> Expected:
    """The outputs of a dense call of `mlstm`, with their tolerance widened if ``precision`` is `AnyDesign`."""
    if not isinstance(precision, AnyDesign) or arrays["i"].shape[1] < 2:
        return expected
    arrays = with_state(arrays)
    q, k, v, i, f = (np.moveaxis(arrays[name], 1, 0) for name in "qkvif")
    q, a = q / np.sqrt(q.shape[-1]), -np.logaddexp(0.0, -f)
    v = np.concatenate([v, np.ones((*v.shape[:-1], 1))], axis=-1)
    roundoff = precision.drift * np.cumsum(np.where(np.abs(a) <= CLOSED, np.abs(a), 0.0), axis=0)
    h = np.abs(np.moveaxis(expected.values["h"], 1, 0))
    m, n = arrays["m0"], arrays["n0"]
    size = earlier = np.abs(np.concatenate([arrays["C0"], n[..., None]], axis=-1))
    of_h = np.zeros(h.shape)
    for t in range(len(i)):
        carried, m = a[t] + m, np.maximum(a[t] + m, i[t])
        decay, gain = _weight(carried, m), _weight(i[t], m)
        earlier = decay[..., None, None] * size
        size = earlier + (gain[..., None] * np.abs(k[t]))[..., None] * np.abs(v[t])[..., None, :]
        n = decay[..., None] * n + gain[..., None] * k[t]
        nu, floor = np.abs((n * q[t]).sum(axis=-1)), np.ones(m.shape) if floor_is_one else np.exp(-np.minimum(m, 64.0))
        read = np.einsum("bnkv,bnk->bnv", earlier, np.abs(q[t])) / (np.maximum(nu, floor) + eps)[..., None]
        of_nu = np.where(nu >= floor * (1 - NEAR_FLOOR), read[..., -1], 0.0)[..., None]
        of_h[t] = roundoff[t][..., None] * (read[..., :-1] + of_nu * h[t])
    last = roundoff[-1][..., None]
    more = {"h": np.moveaxis(of_h, 0, 1), "C": last[..., None] * earlier[..., :-1], "n": last * earlier[..., -1]}
    slack = {
        name: own + np.where(np.isfinite(more[name]), more[name], 0.0) if name in more else own
        for name, own in expected.slack.items()
    }
    return replace(expected, slack=slack)


def _weight(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    """``exp(x − m)``, and 0 where x is −∞."""
    return np.where(np.isneginf(x), 0.0, np.exp(x - m))


def fwbw(arrays: Values, config: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of the fwbw functions, widened in the same way."""
    expected = _fwbw.fwbw(arrays, config, precision)
    if not isinstance(precision, AnyDesign):
        return expected
    headed = {name: _fwbw._add_head(name, x) for name, x in arrays.items()}
    with_head = replace(
        expected,
        values={name: _fwbw._add_head(name, x) for name, x in expected.values.items()},
        slack={name: _fwbw._add_head(name, x) for name, x in expected.slack.items()},
    )
    found = widened_value(with_head, headed, precision, floor_is_one=not config.get("stabilize_correctly"))
    slack = {name: x.reshape(expected.slack[name].shape) for name, x in found.slack.items()}
    return replace(expected, slack=slack)
