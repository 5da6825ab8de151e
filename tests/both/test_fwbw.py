"""fwbw: cotangents that are left out, gates of two forms in one call, and a forward pass that is differentiated."""

import numpy as np
import pytest

import reference
from tests.both.tools import assert_close, compare, mlstm_inputs, mlstm_state, native

CONFIG = dict(
    return_state=True, use_initial_state=True, stabilize_correctly=True, chunk_size=8, keep_G=True, keep_c=True
)


def call(T=29):
    rng = np.random.default_rng(0)
    return [*(x[:, :, 0] for x in mlstm_inputs(rng, 2, T, N=1, K=3, V=4)), *mlstm_state(rng, 2, K=3, V=4)]


def of_reference(arrays, cotangents=None):
    result, ctx = reference.fwbw_forward(*arrays[:5], CONFIG, *arrays[5:])
    if cotangents is None:
        return [result[0], *result[1]]
    return list(reference.fwbw_backward(ctx, cotangents[0], CONFIG, *cotangents[1:]))


@pytest.mark.parametrize("given", [(), (0,), (1,), (2,)], ids=str)
def test_cotangents_of_the_final_state_that_are_left_out_are_zeros(framework, given):
    """And the gradient of a gate with a last axis of 1 has that axis."""
    package, arrays = framework.package, call()
    rng = np.random.default_rng(99)
    dh, *drawn = (rng.normal(size=x.shape) for x in of_reference(arrays))
    zeros = [d * (number in given) for number, d in enumerate(drawn)]
    with framework.wide(True):
        q, k, v, i, f, *state = native(framework, arrays, "float64")
        cotangents = native(framework, [dh, *drawn], "float64")
        _, ctx = package.fwbw_forward(q, k, v, i[..., None], f, CONFIG, *state)
        final = [d if number in given else None for number, d in enumerate(cotangents[1:])]
        found = [framework.numpy(x) for x in package.fwbw_backward(ctx, cotangents[0], CONFIG, *final)]
    found[3] = found[3][..., 0]
    assert_close(found, of_reference(arrays, [dh, *zeros]), 1e-11)


def test_forward_is_differentiated_through_its_result(framework):
    forward = framework.package.fwbw_forward
    compare(framework, lambda *x: forward(*x[:5], CONFIG, *x[5:])[0], of_reference, call())
