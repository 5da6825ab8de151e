"""The mLSTM's weights are exact to roundoff however large the gates are."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import reference
from tests.large_gates import CALLS, CHUNKS, HUGE, STEADY, falling, huge, inputs, relative_error, steadily_falling
from torch_impl import MLSTMState, mlstm, mlstm_fwbw_custom_grad, mlstm_step, mLSTMBackendFwbwConfig

INF = float("inf")


def steps(arrays):
    B, S, N, K = arrays[0].shape
    V, dtype = arrays[2].shape[-1], torch.promote_types(arrays[2].dtype, torch.float32)
    state, h = MLSTMState(*(torch.zeros(shape, dtype=dtype) for shape in ((B, N, K, V), (B, N, K), (B, N)))), []
    for t in range(S):
        h_t, state = mlstm_step(*(x[:, t] for x in arrays), state)
        h.append(h_t)
    return torch.stack(h, 1)


@pytest.mark.parametrize(("kind", "size"), CALLS)
def test_float32_is_exact_to_roundoff(kind, size):
    arrays = inputs(kind, size)
    expected = reference.mlstm(*(x.astype(np.float64) for x in arrays))
    tensors = [torch.from_numpy(x) for x in arrays]
    for chunk_size in CHUNKS:
        assert relative_error(mlstm(*tensors, chunk_size=chunk_size), expected) < 2e-6, chunk_size
    assert relative_error(steps(tensors), expected) < 2e-6


@pytest.mark.parametrize("chunk_size", [*CHUNKS, "steps"])
def test_a_shift_of_all_input_gates_moves_nothing_in_float64(chunk_size):
    *qkv, i, f = (torch.from_numpy(x) for x in inputs("shifted", 0.0, np.float64))
    call = steps if chunk_size == "steps" else lambda arrays: mlstm(*arrays, chunk_size=chunk_size)
    assert relative_error(call([*qkv, i + 2.0**20, f]), call([*qkv, i, f]).numpy()) < 1e-14


RESETS = (([1e32, -INF], [0.0, -INF]), ([0.0, -INF, 1.0], [0.0, -INF, 2.0]), ([-INF, 3e38, -INF], [1.0, -3e38, 0.0]))


def check_resets():
    for i, f in RESETS:
        S = len(i)
        arrays = [torch.ones(1, S, 1, 2) for _ in "qkv"] + [torch.tensor(x).view(1, S, 1) for x in (i, f)]
        leaves = [x.requires_grad_() for x in arrays]
        h = mlstm(*leaves)
        gradients = torch.autograd.grad(h.sum(), leaves)
        assert all(x.isfinite().all() for x in (h, *gradients)), (i, f)
        assert torch.allclose(steps(arrays), h), (i, f)
        by_step = torch.autograd.grad(steps(leaves).sum(), leaves)
        assert all(x.isfinite().all() for x in by_step), (i, f)


def test_a_reset_after_a_large_write_is_finite():
    check_resets()


def test_a_reset_is_finite_without_fused_multiply_add():
    code = "from tests.torch.test_large_gates import check_resets; check_resets()"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("S", [70, 1031])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_is_finite_up_to_the_stated_stabiliser(dtype, S):
    arrays = falling(dtype, S)
    assert np.isfinite(reference.mlstm(*(x.astype(np.float64) for x in arrays))).all()
    for function in (lambda leaves: mlstm(*leaves), steps):
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
        h = function(leaves)
        h.sum().backward()
        assert h.isfinite().all() and all(x.grad.isfinite().all() for x in leaves)


def packed(q, *rest, **options):
    """The two sequences of a batch, of different lengths, as three packed ones, one of which is empty."""
    S = q.shape[1]
    bounds = torch.tensor([0, S // 3, S // 3, 2 * S])
    return mlstm(*(x.flatten(0, 1) for x in (q, *rest)), cu_seqlens=bounds, **options)


def fwbw(keep):
    """The fwbw interface over the first head."""
    options = dict.fromkeys(("keep_G", "keep_gates", "keep_M", "keep_c"), keep)
    function = mlstm_fwbw_custom_grad(mLSTMBackendFwbwConfig(chunk_size=16, return_state=True, **options))
    return lambda *arrays, return_state: function(*(x[:, :, 0] for x in arrays))


FORMS = {
    "chunks": mlstm,
    "short chunks": lambda *arrays, **options: mlstm(*arrays, chunk_size=7, **options),
    "packed": packed,
    "steps": lambda *arrays, return_state: (steps(arrays), ()),
    "fwbw": fwbw(False),
    "fwbw with residuals": fwbw(True),
}


@pytest.mark.parametrize("dtype", HUGE)
@pytest.mark.parametrize("form", FORMS)
def test_everything_is_finite_for_gates_of_any_size(form, dtype):
    for size in HUGE[dtype]:
        arrays = huge(size, dtype, S=20 if form == "steps" else 70)
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
        h, state = FORMS[form](*leaves, return_state=True)
        results = [h, *state[:2]]
        gradients = torch.autograd.grad(sum(x.sum() for x in results), leaves)
        assert all(x.isfinite().all() for x in (*results, *gradients)), size


def packed_apart(*arrays, **options):
    """The sequences of a batch as packed ones of equal length, which are computed in one group."""
    B, S = arrays[0].shape[:2]
    h, state = mlstm(*(x.flatten(0, 1) for x in arrays), cu_seqlens=S * torch.arange(B + 1), **options)
    return h.unflatten(0, (B, S)), state


def with_gradients(function, arrays):
    """h, the final state, and the gradients of all arrays, by sequence."""
    leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
    h, state = function(*leaves, return_state=True)
    dh = torch.from_numpy(np.random.default_rng(0).normal(size=h.shape).astype(arrays[2].dtype))
    gradients = torch.autograd.grad([h, *state[:2]], leaves, [dh, *map(torch.ones_like, state[:2])])
    return [x.detach() for x in (h, *state, *gradients)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", {**FORMS, "packed": packed_apart})
def test_a_nan_leaves_the_large_gates_of_other_sequences_to_the_bit(form, dtype):
    """Whether m is large is one answer for a batch or a group of sequences, and a NaN does not give it."""
    function = packed_apart if form == "packed" else FORMS[form]
    for size in HUGE[dtype][::3]:
        arrays = huge(size, dtype, S=20 if form == "steps" else 70)
        clean = with_gradients(function, arrays)
        for b, name in ((0, "i"), (1, "f")):
            spoilt = [x.copy() for x in arrays]
            spoilt["qkvif".index(name)][b, 3, 0] = np.nan
            for x, y in zip(with_gradients(function, spoilt), clean, strict=True):
                torch.testing.assert_close(x[1 - b], y[1 - b], rtol=0, atol=0)
                assert y.isfinite().all()


@pytest.mark.parametrize(("decay", "size"), STEADY)
@pytest.mark.parametrize("form", FORMS)
def test_a_memory_outlasts_roundoff_that_adds_up(form, decay, size):
    """All weights but that of the first write are 0, so h is the first v."""
    arrays = steadily_falling(decay, size)
    h, _ = FORMS[form](*map(torch.from_numpy, arrays), return_state=True)
    if form == "packed":
        h = h.unflatten(0, (2, -1))[:, : arrays[0].shape[1] // 3]
    v = arrays[2][:, :1] if h.ndim == 4 else arrays[2][:, :1, 0]
    assert relative_error(h, np.broadcast_to(v, h.shape)[: h.shape[0]]) < 2e-6


def test_gradients_outlast_roundoff_that_adds_up_over_single_steps():
    """h is the first v, so that its gradient is the sum of all cotangents."""
    leaves = [torch.from_numpy(x).requires_grad_() for x in steadily_falling(5.0, 7e7)]
    dh = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 70, 2, 4)).astype(np.float32))
    gradients = torch.autograd.grad(steps(leaves), leaves, dh)
    assert all(x.isfinite().all() for x in gradients)
    torch.testing.assert_close(gradients[2][:, 0], dh.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e12, 1e15, 1e20])
def test_small_decays_count_however_large_the_stabiliser_is(size):
    arrays = inputs("equal", size)
    expected = reference.mlstm(*(x.astype(np.float64) for x in arrays))
    tensors = [torch.from_numpy(x) for x in arrays]
    for h in (mlstm(*tensors), mlstm(*tensors, chunk_size=7), steps(tensors)):
        assert relative_error(h, expected) < 2e-6


def test_a_state_that_is_passed_on_stays_finite_however_often_its_m_is_rounded():
    arrays = [torch.from_numpy(x) for x in steadily_falling()]
    _, state = mlstm(*arrays, return_state=True)
    for _ in range(30):
        h, state = mlstm(*(x[:, 1:] for x in arrays), initial_state=state, return_state=True)
        assert all(x.isfinite().all() for x in (h, *state))
