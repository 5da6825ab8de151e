"""mLSTM against a loop under autograd: values, gradients, packing, extremes, dtypes."""

import math

import pytest
import torch

import reference
import torch_impl
from tests.torch.loops import (
    cotangents,
    gradients,
    like,
    mlstm_arguments,
    mlstm_loop,
    packed_loop,
    relative_error,
)
from torch_impl import MLSTMState, mlstm, mlstm_step
from torch_impl._mlstm import composed, sequence_groups

STEPS = (0, 1, 5, 63, 64, 65, 200)


def run(arrays, **options):
    """``[h, C, n, m]`` of `mlstm` on five arrays or eight."""
    state = MLSTMState(*arrays[5:]) if len(arrays) > 5 else None
    h, last = mlstm(*arrays[:5], initial_state=state, return_state=True, **options)
    return [h, *last]


def loop(arrays, **options):
    return list(mlstm_loop(*arrays[:5], arrays[5:] or None, **options))


@pytest.mark.parametrize("final", [True, False], ids=["final", "h"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("S", STEPS)
def test_gradients(S, with_state, final):
    arrays = mlstm_arguments(2, S, 3, 5, 7, seed=S, with_state=with_state)
    expected = loop(arrays)
    for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        ours = like(arrays, dtype)
        rounded = like(ours, torch.float64)
        expected = loop(rounded)
        outputs = run(ours)
        count = 4 if final else 1
        upstream = cotangents(outputs[:count])
        for got, want in zip(outputs, expected, strict=True):
            assert relative_error(got, want) < bound
        got = gradients(outputs[:count], ours, upstream)
        want = gradients(expected[:count], rounded, [d.double() for d in upstream])
        for name, x, y in zip(("q", "k", "v", "i", "f", "C", "n", "m"), got, want, strict=False):
            assert x.dtype == dtype and relative_error(x, y) < bound, name


def test_gradients_without_a_frozen_stabiliser():
    """Where m stays below 64 and eps is 0, h does not depend on m: autograd through everything finds the same."""
    arrays = mlstm_arguments(2, 30, 2, 3, 4, with_state=True)
    outputs, expected = run(arrays, chunk_size=8), loop(arrays, freeze=False)
    upstream = cotangents(outputs)
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("shift", [0.0, 90.0, -90.0], ids=["m", "m above 64", "m far below 0"])
def test_stated_exceptions_freeze_m(eps, shift):
    arrays = mlstm_arguments(1, 20, 2, 3, 4, with_state=True)
    with torch.no_grad():
        arrays[3] += shift
        arrays[7] += shift
    outputs, expected = run(arrays, chunk_size=6, eps=eps), loop(arrays, eps=eps)
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-11
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-10


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 16, 50, 64, 1000])
def test_chunk_size_changes_no_value(chunk_size):
    arrays = mlstm_arguments(2, 50, 2, 3, 4, with_state=True)
    outputs, expected = run(arrays, chunk_size=chunk_size), run(arrays)
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-12
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


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


def test_split_and_carry():
    arrays = mlstm_arguments(2, 40, 2, 3, 4, with_state=True)
    upstream = cotangents(run(arrays))
    for x in arrays:
        x.grad = None
    first = run([x[:, :13] for x in arrays[:5]] + arrays[5:])
    second = run([x[:, 13:] for x in arrays[:5]] + first[1:])
    outputs = [torch.cat([first[0], second[0]], 1), *second[1:]]
    for x, y in zip(outputs, run(arrays), strict=True):
        assert relative_error(x, y) < 1e-12
    got, want = gradients(outputs, arrays, upstream), gradients(run(arrays), arrays, upstream)
    for x, y in zip(got, want, strict=True):
        assert relative_error(x, y) < 1e-11


PACKINGS = [[0, 3, 3, 70, 200], [0, 0, 65, 65, 65, 130, 200, 200], [0, 200], [0, 1, 2, 3, 200]]


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("bounds", PACKINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_is_looped(bounds, with_state, dtype):
    arrays = mlstm_arguments(len(bounds) - 1, 200, 2, 3, 5, with_state=with_state, packed=True)
    outputs = run(arrays, cu_seqlens=torch.tensor(bounds, dtype=dtype))
    expected = packed_loop(mlstm_loop, arrays[:5], (True,) * 5, arrays[5:] or None, bounds)
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-11
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("chunk_size", [None, 7])
@pytest.mark.parametrize("state", ["no state", "initial", "final", "both"])
def test_groups_are_looped(state, chunk_size, monkeypatch):
    """Every chunk length has a group of its own, and the groups of short sequences, which need no memory, are small."""
    monkeypatch.setattr(sequence_groups, "_FEW", 0)
    monkeypatch.setattr(composed, "_SEGMENT", 1 << 10)
    lengths = [1, 2, 0, 70, 1, 3, 18, 1, 1, 0, 90, 5, 1, 2, 33, 1, 6, 1, 1, 0]
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    arrays = mlstm_arguments(len(lengths), bounds[-1], 2, 3, 5, with_state=state in ("initial", "both"), packed=True)
    expected = packed_loop(mlstm_loop, arrays[:5], (True,) * 5, arrays[5:] or None, bounds)
    options = {"cu_seqlens": torch.tensor(bounds), "chunk_size": chunk_size}
    if state in ("final", "both"):
        outputs = run(arrays, **options)
    else:
        initial = MLSTMState(*arrays[5:]) if arrays[5:] else None
        outputs, expected = [mlstm(*arrays[:5], initial_state=initial, **options)], expected[:1]
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-11
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("gate", [0, 3, 4], ids=["q", "i", "f"])
def test_a_nan_stays_in_its_sequence(gate):
    """Sequences of one group share no chunk."""
    lengths = [3, 1, 1, 2, 70, 1]
    bounds = torch.tensor([sum(lengths[:count]) for count in range(len(lengths) + 1)])
    arrays = [x.detach() for x in mlstm_arguments(len(lengths), 78, 2, 3, 5, packed=True)]
    expected = mlstm(*arrays, cu_seqlens=bounds)
    arrays[gate] = arrays[gate].index_fill(0, torch.tensor([3]), torch.nan)
    arrays = [x.requires_grad_() for x in arrays]
    h = mlstm(*arrays, cu_seqlens=bounds)
    others = torch.arange(78) != 3
    assert h[3].isnan().all() and torch.equal(h[others], expected[others])
    for x in gradients([h], arrays, [torch.ones_like(h)]):
        assert x[others].isfinite().all()


@pytest.mark.parametrize("bounds", [[0], [0, 0], [0, 0, 0]], ids=str)
def test_packed_without_tokens(bounds):
    arrays = mlstm_arguments(len(bounds) - 1, 0, 2, 3, 5, with_state=True, packed=True)
    outputs = run(arrays, cu_seqlens=torch.tensor(bounds))
    upstream = cotangents(outputs)
    assert outputs[0].shape == (0, 2, 5)
    for x, y in zip(outputs[1:], arrays[5:], strict=True):
        assert torch.equal(x, y)
    for x, y in zip(gradients(outputs, arrays, upstream)[5:], upstream[1:], strict=True):
        assert relative_error(x, y) < 1e-14


@pytest.mark.parametrize(("B", "S", "N", "V"), [(0, 5, 2, 3), (2, 0, 2, 3), (2, 5, 0, 3), (2, 5, 2, 0), (0, 0, 0, 0)])
def test_empty(B, S, N, V):
    arrays = mlstm_arguments(B, S, N, 4, V, with_state=True)
    outputs = run(arrays)
    upstream = cotangents(outputs)
    assert [tuple(x.shape) for x in outputs] == [(B, S, N, V), (B, N, 4, V), (B, N, 4), (B, N)]
    for x, y in zip(gradients(outputs, arrays, upstream), arrays, strict=True):
        assert x.shape == y.shape and torch.isfinite(x).all()


def test_agrees_with_the_reference():
    arrays = mlstm_arguments(2, 37, 3, 5, 4, with_state=True)
    numbers = [x.detach().numpy() for x in arrays]
    outputs = run(arrays)
    upstream = cotangents(outputs)
    h, last = reference.mlstm(*numbers[:5], initial_state=MLSTMState(*numbers[5:]), return_state=True)
    for x, y in zip(outputs, (h, *last), strict=True):
        assert relative_error(x, torch.from_numpy(y)) < 1e-12
    expected = reference.mlstm_backward(
        *numbers[:5],
        initial_state=MLSTMState(*numbers[5:]),
        dh=upstream[0].numpy(),
        dstate=MLSTMState(*(d.numpy() for d in upstream[1:])),
    )
    expected = [expected[name] for name in "qkvif"] + list(expected["initial_state"])
    for x, y in zip(gradients(outputs, arrays, upstream), expected, strict=True):
        assert relative_error(x, torch.from_numpy(y)) < 1e-11


def set_gates(arrays, kind):
    """Overwrite parts of the gates of ``(B, S, N)`` arrays with extremes."""
    i, f = arrays[3], arrays[4]
    with torch.no_grad():
        if kind == "reset":
            f[:, 20], f[:, 33] = -math.inf, -math.inf
        elif kind == "keep":
            f[:] = math.inf
        elif kind == "no write":
            i[:, 5:30] = -math.inf
        elif kind == "emptied":
            i[:, 10:15], f[:, 10:15] = -math.inf, -math.inf
        elif kind == "empty from the start":
            i[:, :9], f[:, :9] = -math.inf, -math.inf
        elif kind == "nothing at all":
            i[:], f[:] = -math.inf, -math.inf
        elif kind == "large":
            i *= 1e4
            f *= 1e4
        elif kind == "large input":
            i[:, ::3] = 1e4
            i[:, 1::3] = -1e4
        elif kind == "ties":
            i[:], f[:] = 0.0, math.inf


def in_units_of(m, outputs):
    """C and n in units of exp(m), as a stabiliser rounded to another dtype makes them."""
    h, C, n, exact = outputs
    units = torch.where(exact == -math.inf, 1.0, torch.exp(exact - m.double())).detach()
    return [h, C * units[..., None, None], n * units[..., None], exact]


EXTREMES = (
    "reset", "keep", "no write", "emptied", "empty from the start", "nothing at all", "large", "large input", "ties",
)  # fmt: skip


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extremes(kind, with_state, dtype):
    arrays = mlstm_arguments(2, 50, 2, 3, 4, seed=3, with_state=with_state)
    if with_state and kind == "ties":
        with torch.no_grad():
            arrays[7][:] = 0.0
    set_gates(arrays, kind)
    ours = like(arrays, dtype)
    rounded = like(ours, torch.float64)
    outputs, expected = run(ours, chunk_size=16), in_units_of(run(ours)[3], loop(rounded))
    upstream = cotangents(outputs)
    got, want = gradients(outputs, ours, upstream), gradients(expected, rounded, [d.double() for d in upstream])
    bound = 1e-10 if dtype == torch.float64 else 1e-4
    for x, y in zip([*outputs, *got], [*expected, *want], strict=True):
        assert not x.isnan().any()
        infinite = y.isinf()
        assert torch.equal(x[infinite].double(), y[infinite].double())
        # A gradient may be exactly 0, as the difference of terms of size 1.
        assert relative_error(x[~infinite], y[~infinite], scale=1.0) < bound


def test_an_empty_memory_is_a_legal_start():
    arrays = mlstm_arguments(2, 20, 2, 3, 4, with_state=True)
    with torch.no_grad():
        for x, value in zip(arrays[5:], (0.0, 0.0, -math.inf), strict=True):
            x[:] = value
    outputs, expected = run(arrays, chunk_size=6), loop(arrays)
    upstream = cotangents(outputs)
    got, want = gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream)
    for x, y in zip([*outputs, *got], [*expected, *want], strict=True):
        assert relative_error(x, y) < 1e-11


def test_forget_gradient_over_a_long_sequence():
    """In float32 at S = 4096 half the elements are right to 2e-6, and no gradient crosses a hard reset."""
    arrays = mlstm_arguments(1, 4096, 2, 16, 16, seed=5, forget=3.0)
    with torch.no_grad():
        arrays[4][:, 2000] = -math.inf
    ours = like(arrays, torch.float32)
    rounded = like(ours, torch.float64)
    outputs, expected = run(ours), run(rounded)
    upstream = cotangents(outputs)
    got = gradients(outputs, ours, upstream)[4]
    want = gradients(expected, rounded, [d.double() for d in upstream])[4]
    error = (got.double() - want).abs() / want.abs().clamp(min=1e-30)
    error = torch.cat([error[:, :2000], error[:, 2001:]], 1)
    assert error.median() < 2e-6
    assert (got[:, 2000] == 0).all() and (want[:, 2000] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gates", ["same", "float32"])
def test_16_bit(dtype, gates):
    arrays = mlstm_arguments(2, 70, 2, 8, 8, with_state=True)
    gate_dtype = dtype if gates == "same" else torch.float32
    ours = like(arrays[:3], dtype) + like(arrays[3:5], gate_dtype) + like(arrays[5:], torch.float32)
    rounded = like(ours, torch.float64)
    outputs, expected = run(ours), loop(rounded)
    assert [x.dtype for x in outputs] == [dtype] + [torch.float32] * 3
    upstream = cotangents(outputs)
    got, want = gradients(outputs, ours, upstream), gradients(expected, rounded, [d.double() for d in upstream])
    # Half a unit in the last place of the dtype in which each comes back.
    for x, y in zip([*outputs, *got], [*expected, *want], strict=True):
        assert relative_error(x, y) < max(0.6 * torch.finfo(x.dtype).eps, 2e-5)
    assert [x.dtype for x in got] == [x.dtype for x in ours]


def strided(x):
    """The same values, neither contiguous nor dense."""
    y = torch.empty(*(2 * size + 1 for size in x.shape), dtype=x.dtype)
    y = y[tuple(slice(1, None, 2) for _ in x.shape)]
    y.copy_(x.detach())
    return y.requires_grad_()


def test_strides_change_no_value():
    arrays = mlstm_arguments(2, 40, 2, 3, 4, with_state=True)
    for other in (
        [strided(x) for x in arrays],
        [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in arrays],
    ):
        outputs, expected = run(other, chunk_size=16), run(arrays, chunk_size=16)
        upstream = [strided(d).detach() for d in cotangents(outputs)]
        for x, y in zip(outputs, expected, strict=True):
            assert torch.equal(x, y)
        for x, y in zip(gradients(outputs, other, upstream), gradients(expected, arrays, upstream), strict=True):
            assert relative_error(x, y) < 1e-13


def test_broadcast_arguments():
    q, k, v, i, f = (x.detach() for x in mlstm_arguments(1, 10, 1, 3, 4))
    wide = [x.expand(2, *x.shape[1:2], 3, *x.shape[3:]) for x in (q, k, v, i, f)]
    assert torch.equal(mlstm(*wide), mlstm(*(x.contiguous() for x in wide)))


@pytest.mark.parametrize("S", [0, 1, 20])
def test_neither_mutates_nor_aliases(S):
    arrays = mlstm_arguments(2, S, 2, 3, 4, with_state=True)
    before = [x.detach().clone() for x in arrays]
    for needs_grad in (True, False):
        ours = arrays if needs_grad else [x.detach() for x in arrays]
        outputs = run(ours)
        if needs_grad:
            upstream = cotangents(outputs)
            copies = [d.clone() for d in upstream]
            found = gradients(outputs, ours, upstream)
            outputs = outputs + found
            assert all(torch.equal(x, y) for x, y in zip(upstream, copies, strict=True))
        storages = [x.untyped_storage().data_ptr() for x in (*outputs, *ours) if x.numel()]
        assert len(set(storages)) == len(storages)
        assert all(torch.equal(x, y) for x, y in zip(ours, before, strict=True))


def test_only_some_need_a_gradient():
    arrays = [x.detach() for x in mlstm_arguments(2, 20, 2, 3, 4, with_state=True)]
    whole = like(arrays, torch.float64)
    upstream = cotangents(run(whole))
    expected = gradients(run(whole), whole, upstream)
    for index in range(8):
        ours = [x.clone().requires_grad_(index == number) for number, x in enumerate(arrays)]
        assert torch.equal(gradients(run(ours), ours[index : index + 1], upstream)[0], expected[index])


def test_step_is_one_step():
    q, k, v, i, f, C, n, m = mlstm_arguments(2, 6, 3, 5, 4, with_state=True)
    outputs = run([q, k, v, i, f, C, n, m])
    upstream = cotangents(outputs)
    state, hs = MLSTMState(C, n, m), []
    for t in range(6):
        h, state = mlstm_step(q[:, t], k[:, t], v[:, t], i[:, t], f[:, t], state)
        hs.append(h)
    stepped = [torch.stack(hs, 1), *state]
    for x, y in zip(stepped, outputs, strict=True):
        assert relative_error(x, y) < 1e-12
    arrays = [q, k, v, i, f, C, n, m]
    for x, y in zip(gradients(stepped, arrays, upstream), gradients(outputs, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_step_without_gradient(dtype):
    arrays = [x.detach() for x in mlstm_arguments(2, 1, 3, 5, 4, with_state=True)]
    arrays = [x[:, 0].to(dtype) for x in arrays[:5]] + [x.float() for x in arrays[5:]]
    before = [x.clone() for x in arrays]
    h, state = mlstm_step(*arrays[:5], MLSTMState(*arrays[5:]), eps=0.1)
    expected = mlstm_loop(*(x.double()[:, None] for x in arrays[:5]), [x.double() for x in arrays[5:]], eps=0.1)
    assert h.dtype == dtype and {x.dtype for x in state} == {torch.float32}
    assert relative_error(h, expected[0][:, 0]) < max(0.6 * torch.finfo(dtype).eps, 1e-6)
    for x, y in zip(state, expected[1:], strict=True):
        assert relative_error(x, y) < 1e-6
    assert all(torch.equal(x, y) for x, y in zip(arrays, before, strict=True))
    storages = [x.untyped_storage().data_ptr() for x in (h, *state, *arrays)]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("kind", ["empty", "reset", "large"])
def test_step_extremes(kind):
    arrays = [x.detach() for x in mlstm_arguments(2, 1, 2, 3, 4, with_state=True)]
    i, f, m = arrays[3], arrays[4], arrays[7]
    if kind == "empty":
        i[:], f[:], m[:] = -math.inf, -math.inf, -math.inf
    elif kind == "reset":
        f[:] = -math.inf
    else:
        i[:], f[:] = 1e4, -1e4
    h, state = mlstm_step(*(x[:, 0] for x in arrays[:5]), MLSTMState(*arrays[5:]))
    expected = loop(arrays)
    for x, y in zip((h, *state), (expected[0][:, 0], *expected[1:]), strict=True):
        infinite = y.isinf()
        assert torch.equal(x[infinite], y[infinite]) and relative_error(x[~infinite], y[~infinite]) < 1e-12


def test_results_do_not_depend_on_the_batch():
    arrays = [x.detach() for x in mlstm_arguments(3, 70, 2, 8, 8)]
    whole = mlstm(*arrays)
    for b in range(3):
        assert relative_error(mlstm(*(x[b : b + 1] for x in arrays))[0], whole[b]) < 1e-13


def test_backends():
    arrays = [x.detach() for x in mlstm_arguments(1, 5, 1, 2, 2)]
    assert torch.equal(mlstm(*arrays, kernel_backend="torch"), mlstm(*arrays))
    assert torch.equal(mlstm(*arrays, kernel_backend=torch_impl.KernelBackend.torch), mlstm(*arrays))
    with pytest.raises(ValueError, match="`kernel_backend` is triton, which does not support this call"):
        mlstm(*arrays, kernel_backend="triton")
    explanation = torch_impl.explain_backend("mlstm", *arrays)
    assert explanation.chosen is torch_impl.KernelBackend.torch
    assert set(explanation.against) == {torch_impl.KernelBackend.triton}
