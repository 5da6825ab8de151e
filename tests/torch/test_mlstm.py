"""mLSTM: chunks, segments and groups of sequences, strides, single steps without a gradient, backends."""

import numpy as np
import pytest
import torch

from tests.both import with_torch
from tests.both.tools import compare, mlstm_inputs, mlstm_reference, mlstm_state
from tests.torch.loops import cotangents, gradients, like, mlstm_arguments, relative_error
from torch_impl import MLSTMState, mlstm
from torch_impl import _sequence_groups as sequence_groups
from torch_impl._mlstm import composed


def run(arrays, **options):
    """``[h, C, n, m]`` of `mlstm` on five arrays or eight."""
    state = MLSTMState(*arrays[5:]) if len(arrays) > 5 else None
    h, last = mlstm(*arrays[:5], initial_state=state, return_state=True, **options)
    return [h, *last]


@pytest.mark.parametrize("S", [130, 600])
def test_many_chunks_of_no_sequence(S):
    """Long enough to be scanned in blocks and by NumPy, which divide rows among sequences."""
    q, k, v = torch.zeros(3, 0, S, 1, 4, requires_grad=True).unbind(0)
    i, f = torch.zeros(2, 0, S, 1, requires_grad=True).unbind(0)
    h, (C, n, m) = mlstm(q, k, v, i, f, return_state=True)
    assert h.shape == (0, S, 1, 4) and C.shape == (0, 1, 4, 4) and n.shape == (0, 1, 4) and m.shape == (0, 1)
    gradients = torch.autograd.grad([h.sum() + C.sum() + n.sum()], [q, k, v, i, f])
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v, i, f)]


def test_chunk_size_sets_the_chunks_that_are_computed():
    q, k, v, i, f = (x.detach() for x in mlstm_arguments(2, 50, 2, 3, 4))
    for chunk_size, shape in ((7, (2, 8, 2, 7, 7)), (64, (2, 1, 2, 50, 50)), (0, (2, 4, 2, 13, 13))):
        options = chunk_size, 0.0, True, True, "torch", ("G",)
        kept = torch.ops.gatespec.mlstm_forward(q, k, v, i, f, None, None, None, None, *options)[4]
        assert kept.shape == shape


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("bounds", [None, [0, 3, 3, 70, 200], [0, 0, 65, 65, 65, 130, 200, 200]], ids=str)
def test_segments_change_no_value(bounds, with_state, monkeypatch):
    """Segments of one chunk, where one segment would hold them all, and chunks of the same length."""
    monkeypatch.setattr(sequence_groups, "_FEW", 0)
    B = 2 if bounds is None else len(bounds) - 1
    arrays = mlstm_arguments(B, 200, 3, 5, 7, with_state=with_state, packed=bounds is not None)
    options = {"chunk_size": 32, "cu_seqlens": None if bounds is None else torch.tensor(bounds)}
    expected = run(arrays, **options)
    upstream = cotangents(expected)
    want = gradients(expected, arrays, upstream)
    monkeypatch.setattr(composed, "_SEGMENT", 1)
    outputs = run(arrays, **options)
    for x, y in zip(outputs, expected, strict=True):
        assert torch.equal(x, y)
    for x, y in zip(gradients(outputs, arrays, upstream), want, strict=True):
        assert relative_error(x, y) < 1e-13


@pytest.mark.parametrize("chunk_size", [None, 7])
@pytest.mark.parametrize("state", ["no state", "initial", "final", "both"])
def test_groups_are_looped(state, chunk_size, monkeypatch):
    """Every chunk length has a group of its own, and the groups of short sequences, which need no memory, are small."""
    monkeypatch.setattr(sequence_groups, "_FEW", 0)
    monkeypatch.setattr(composed, "_SEGMENT", 1 << 10)
    lengths = [1, 2, 0, 70, 1, 3, 18, 1, 1, 0, 90, 5, 1, 2, 33, 1, 6, 1, 1, 0]
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    rng, outputs = np.random.default_rng(0), 4 if state in ("final", "both") else 1
    arrays = mlstm_inputs(rng, bounds[-1], N=2, K=3, V=5)
    if state in ("initial", "both"):
        arrays += mlstm_state(rng, len(lengths), 2, K=3, V=5)

    def function(*arrays):
        options = {"cu_seqlens": torch.tensor(bounds), "chunk_size": chunk_size}
        if outputs == 4:
            return run(arrays, **options)
        return [mlstm(*arrays[:5], initial_state=arrays[5:] or None, **options)]

    def expected(arrays, cotangents=None):
        if cotangents is None:
            return mlstm_reference(arrays, cu_seqlens=np.array(bounds))[:outputs]
        state = mlstm_reference(arrays, cu_seqlens=np.array(bounds))[outputs:]
        return mlstm_reference(arrays, [*cotangents, *map(np.zeros_like, state)], cu_seqlens=np.array(bounds))

    compare(with_torch, function, expected, arrays)


def test_only_some_need_a_gradient():
    arrays = [x.detach() for x in mlstm_arguments(2, 20, 2, 3, 4, with_state=True)]
    whole = like(arrays, torch.float64)
    upstream = cotangents(run(whole))
    expected = gradients(run(whole), whole, upstream)
    for index in range(8):
        ours = [x.clone().requires_grad_(index == number) for number, x in enumerate(arrays)]
        assert torch.equal(gradients(run(ours), ours[index : index + 1], upstream)[0], expected[index])
