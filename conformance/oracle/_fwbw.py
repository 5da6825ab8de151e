"""The fwbw interface: the mLSTM without a head axis."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values, counted, without_warnings
from conformance.oracle._magnitudes import gradient_magnitudes, magnitudes_of
from conformance.oracle._mlstm import (
    COPIES,
    budgeted,
    copies_of,
    either_side,
    mlstm,
    mlstm_gradient,
    rescaled,
    split,
    with_state,
)
from conformance.tolerance.budget import Expected, Precision


def _add_head(name: str, x: np.ndarray) -> np.ndarray:
    if name in ("q", "k", "v", "h"):
        return x[:, :, None]
    if name in ("i", "f"):
        return x.reshape(*x.shape[:2], 1)
    return x[:, None]


def _drop_head(expected: Expected, gate_shape: tuple[int, ...]) -> Expected:
    def drop(name: str, x: np.ndarray) -> np.ndarray:
        if name in ("i", "f"):
            return x.reshape(gate_shape)
        return x[:, :, 0] if name in ("q", "k", "v", "h") else x[:, 0]

    return Expected(
        {name: drop(name, x) for name, x in expected.values.items()},
        {name: drop(name, x) for name, x in expected.slack.items()},
        expected.kinks,
        expected.elements,
        expected.spread,
    )


def _zero_cotangents(arrays: Values, cotangents: Values) -> Values:
    B, _, K = arrays["q"].shape
    V = arrays["v"].shape[-1]
    zeros = {"C": np.zeros((B, K, V)), "n": np.zeros((B, K)), "m": np.zeros(B)}
    return {**zeros, **cotangents}


def fwbw(arrays: Values, config: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of the fwbw functions: that of `mlstm`, with a floor of 1 if the configuration says so."""
    headed = {name: _add_head(name, x) for name, x in arrays.items()}
    if config.get("stabilize_correctly"):
        return _drop_head(mlstm(headed, {}, precision), arrays["i"].shape)
    return _drop_head(unstabilised(headed, None, precision), arrays["i"].shape)


def fwbw_gradient(arrays: Values, config: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    full = _zero_cotangents(arrays, cotangents)
    headed = {name: _add_head(name, x) for name, x in arrays.items()}
    dheaded = {name: _add_head(name, x) for name, x in full.items()}
    if config.get("stabilize_correctly"):
        return _drop_head(mlstm_gradient(headed, {}, dheaded, precision), arrays["i"].shape)
    return _drop_head(unstabilised(headed, dheaded, precision), arrays["i"].shape)


@without_warnings
def unstabilised(arrays: Values, cotangents: Values | None, precision: Precision) -> Expected:
    """The reference's own fwbw functions, whose floor is 1, on stacked copies with one head."""
    arrays = with_state(arrays)
    B = arrays["q"].shape[0]
    terms = magnitudes_of(arrays, 0.0, cotangents, floor_is_one=True)
    copies, dcopies = copies_of(arrays, cotangents or {}, terms, precision)

    def squeeze(name: str, x: np.ndarray) -> np.ndarray:
        return x[:, :, 0] if name in (*"qkvif", "h") else x[:, 0]

    bare = {name: squeeze(name, x) for name, x in copies.items()}
    config = {"chunk_size": 1, "return_state": True, "use_initial_state": True, "stabilize_correctly": False}
    function = reference.mlstm_fwbw_custom_grad(config)
    ordered = [bare[name] for name in (*"qkvif", "C0", "n0", "m0")]
    if cotangents is None:
        h, last = function(*ordered)
        m, _ = split(last.m, B)
        m_of_all = np.concatenate([m] * (1 + COPIES)) if B else last.m
        named = {"h": h[:, :, None], "m": last.m[:, None]}
        named |= {"C": rescaled(last.C, last.m, m_of_all)[:, None], "n": rescaled(last.n, last.m, m_of_all)[:, None]}
        return budgeted(named, B, terms.outputs, terms.drift, precision)
    d = {name: squeeze(name, x) for name, x in dcopies.items()}
    gradients = function.backward(*ordered, dh=d["h"], dc_last=d["C"], dn_last=d["n"], dm_last=d["m"])
    named = dict(zip((*"qkvif", "C0", "n0", "m0"), gradients, strict=True))
    headed = {
        name: x[:, :, None] if name in "qkv" else x[..., None] if name in "if" else x[:, None]
        for name, x in named.items()
    }
    exact = {name: split(stacked, B)[0] for name, stacked in headed.items()}
    of_ones = {**bare, "v": np.ones((*bare["v"].shape[:-1], 1)), "C0": bare["n0"][..., None]}
    nu_over_floor, _ = function(*(of_ones[name] for name in (*"qkvif", "C0", "n0", "m0")))
    expected = counted(budgeted(headed, B, *gradient_magnitudes(terms, exact), precision), copies, nu_over_floor)
    return either_side(expected, arrays, terms.g, precision)
