"""Sizes of 0: values and gradients are those of the reference, and a map over an axis of size 0 has the same shapes."""

import numpy as np
import pytest

import reference
from reference import MLSTMState
from tests.both.test_scan_and_decay import against_reference
from tests.both.tools import (
    compare,
    gru,
    gru_inputs,
    gru_reference,
    mlstm,
    mlstm_inputs,
    mlstm_reference,
    mlstm_state,
    native,
)

packing = pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])


def sizes(zero, **others):
    """The sizes by letter, of which those in ``zero`` are 0."""
    return [0 if letter in zero else other for letter, other in others.items()]


def lengths(packed, B, S):
    """The leading axes of B sequences of S steps, and how they are packed."""
    return ((B * S,), {"cu_seqlens": np.arange(B + 1) * S}) if packed else ((B, S), {})


def check(framework, function, expected, arrays):
    """Also mapped over an axis of size 0: the gradient of the map, and the map of the gradient."""
    function = framework.jit(function)
    outputs, found = compare(framework, function, expected, arrays, "float32", 1e-5)
    map_over_nothing(framework, function, arrays, [x.shape for x in outputs], [x.shape for x in found])


def map_over_nothing(framework, function, arrays, of_outputs, of_gradients):
    def with_gradients(*x):
        values, pull = framework.vjp(lambda *x: tuple(framework.leaves(function(*x))), *x)
        return (*values, *pull(values))

    none = native(framework, [np.zeros((0, *x.shape)) for x in arrays], "float32")
    cotangents = native(framework, [np.zeros((0, *shape)) for shape in of_outputs], "float32")
    values, gradients = framework.pull_back(framework.jit(framework.vmap(function)), none, cotangents)
    for mapped in ([*values, *gradients], framework.jit(framework.vmap(with_gradients))(*none)):
        assert [tuple(x.shape) for x in mapped] == [(0, *shape) for shape in (*of_outputs, *of_gradients)]


@packing
@pytest.mark.parametrize(
    ("zero", "with_state"), [*((zero, True) for zero in ("B", "S", "N", "V", "BN")), ("NV", False), ("BSNV", False)]
)
def test_mlstm(framework, zero, with_state, packed):
    rng, (B, S, N, V) = np.random.default_rng(0), sizes(zero, B=2, S=3, N=2, V=4)
    front, exact = lengths(packed, B, S)
    arrays = [*mlstm_inputs(rng, *front, N=N, V=V), *(mlstm_state(rng, B, N, V=V) if with_state else ())]
    given = {name: framework.array(x, "int32") for name, x in exact.items()}
    check(framework, mlstm(framework, **given), lambda *x: mlstm_reference(*x, **exact), arrays)


@pytest.mark.parametrize("zero", ["B", "N", "V", "BNV"])
def test_mlstm_step(framework, zero):
    rng, (B, N, V) = np.random.default_rng(0), sizes(zero, B=2, N=2, V=4)

    def step(*arrays):
        h, state = framework.package.mlstm_step(*arrays[:5], tuple(arrays[5:]))
        return [h, *state]

    def expected(arrays, cotangents=None):
        state = MLSTMState(*arrays[5:])
        if cotangents is None:
            h, last = reference.mlstm_step(*arrays[:5], state)
            return [h, *last]
        dh, *dlast = cotangents
        found = reference.mlstm_step_backward(*arrays[:5], state, dh=dh, dstate=MLSTMState(*dlast))
        return [*(found[name] for name in "qkvif"), *found["state"]]

    check(framework, step, expected, [*mlstm_inputs(rng, B, N=N, V=V), *mlstm_state(rng, B, N, V=V)])


@packing
@pytest.mark.parametrize("zero", ["B", "S", "H", "BS", "BSH"])
def test_gru(framework, zero, packed):
    rng, (B, S, H) = np.random.default_rng(0), sizes(zero, B=2, S=3, H=4)
    front, exact = lengths(packed, B, S)
    arrays = [*gru_inputs(rng, *front, heads=(2, 1, 1, 2, 2, 2), H=H), rng.normal(size=(B, 2, H))]
    given = {name: framework.array(x, "int32") for name, x in exact.items()}
    clipped = gru(framework, gradient_clipping=0.5, **given)
    check(framework, clipped, lambda *x: gru_reference(*x, gradient_clipping=0.5, **exact), arrays)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)], ids=str)
@pytest.mark.parametrize("name", ["rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix"])
def test_scans_and_decay(framework, name, shape):
    shapes = [(*shape, 1)] * 2 if name == "dtilde_matrix" else [shape]
    arrays = [np.random.default_rng(0).normal(size=each) for each in shapes]
    outputs, found = against_reference(framework, name, arrays, "float32", 1e-5)
    function = getattr(framework.package, name)
    map_over_nothing(framework, function, arrays, [x.shape for x in outputs], [x.shape for x in found])
