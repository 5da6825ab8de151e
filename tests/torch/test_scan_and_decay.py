"""Reverse sums and decay matrices: values, gradients to second order where there is one, infinities, dtypes."""

import math

import pytest
import torch

import reference
from torch_impl import causal_forget_matrix, dtilde_matrix, rev_cumsum, rev_cumsum_off

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("function", [rev_cumsum, rev_cumsum_off])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (2, 0, 5), (2, 3, 65)], ids=str)
def test_reverse_sums(function, shape):
    x = random(*shape).requires_grad_()
    expected = torch.from_numpy(getattr(reference, function.__name__)(x.detach().numpy()))
    y = function(x)
    assert y.shape == x.shape and torch.allclose(y, expected, rtol=1e-13, atol=1e-13)
    if x.numel():
        assert torch.autograd.gradcheck(function, x) and torch.autograd.gradgradcheck(function, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reverse_sums_accumulate_in_float32_at_least(dtype):
    x = random(3, 3000).to(dtype)
    for function in (rev_cumsum, rev_cumsum_off):
        y = function(x)
        assert y.dtype == dtype
        expected = function(x.double())
        assert (y.double() - expected).abs().max() <= 0.6 * torch.finfo(dtype).eps * expected.abs().max() + 1e-4


def test_reverse_sums_keep_infinities_where_they_are():
    x = torch.tensor([1.0, -math.inf, 2.0])
    assert rev_cumsum(x).tolist() == [-math.inf, -math.inf, 2.0]
    assert rev_cumsum_off(x).tolist() == [-math.inf, 2.0, 0.0]


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (2, 3, 6)], ids=str)
def test_causal_forget_matrix(shape):
    a = (-random(*shape).abs()).requires_grad_()
    F = causal_forget_matrix(a)
    expected = torch.from_numpy(reference.causal_forget_matrix(a.detach().numpy()))
    assert torch.equal(F.isneginf(), expected.isneginf())
    assert torch.allclose(F.tril(), expected.tril(), rtol=1e-13, atol=1e-13)
    assert (F.diagonal(dim1=-2, dim2=-1) == 0).all()
    dF = random(*F.shape, seed=1)
    (da,) = torch.autograd.grad(F, a, dF)
    expected = reference.causal_forget_matrix_backward(a.detach().numpy(), dF=dF.numpy())["forget_gates"]
    assert torch.allclose(da, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_causal_forget_matrix_across_resets_and_large_gates():
    a = torch.tensor([-1.0, -math.inf, -2.0, -1e4, -0.5], dtype=torch.float32)
    expected = torch.from_numpy(reference.causal_forget_matrix(a.double().numpy()))
    F = causal_forget_matrix(a)
    assert not F.isnan().any() and torch.equal(F.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    assert torch.allclose(F[finite].double(), expected[finite], rtol=1e-6)
    long = torch.full((4096,), -10.0)
    assert causal_forget_matrix(long)[-1, -2] == -10.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_decay_dtypes(dtype):
    gates = random(2, 40, 1).to(dtype).requires_grad_()
    D = dtilde_matrix(gates, gates)
    assert D.dtype == causal_forget_matrix(-gates[..., 0].abs()).dtype == dtype
    (dgates,) = torch.autograd.grad(D, gates, torch.ones_like(D))
    assert dgates.dtype == dtype
    exact = dtilde_matrix(gates.double(), gates.double()).tril()
    assert (D.tril().double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (6, 1), (2, 4, 5, 1)], ids=str)
def test_dtilde_matrix(shape):
    igate, fgate = random(*shape).requires_grad_(), random(*shape, seed=1).requires_grad_()
    D = dtilde_matrix(igate, fgate)
    numbers = igate.detach().numpy(), fgate.detach().numpy()
    expected = torch.from_numpy(reference.dtilde_matrix(*numbers))
    assert torch.equal(D.isneginf(), expected.isneginf())
    assert torch.allclose(D.tril(), expected.tril(), rtol=1e-13, atol=1e-13)
    dD = random(*D.shape, seed=2)
    expected = reference.dtilde_matrix_backward(*numbers, dD=dD.numpy())
    for got, name in zip(torch.autograd.grad(D, (igate, fgate), dD), ("igate", "fgate"), strict=True):
        assert torch.allclose(got, torch.from_numpy(expected[name]), rtol=1e-12, atol=1e-12)


def test_dtilde_matrix_sums_every_row_for_the_input_gate():
    igate, fgate = random(2, 4, 5, 1).requires_grad_(), random(2, 4, 5, 1, seed=1).requires_grad_()
    D = dtilde_matrix(igate, fgate)
    digate, dfgate = torch.autograd.grad(D.sum(), (igate, fgate))
    assert (digate == 5).all() and (dfgate[..., 0, :] == 0).all() and dfgate.isfinite().all()


def test_dtilde_matrix_with_infinite_gates():
    igate = torch.tensor([0.0, -math.inf, 1.0, 2.0])[:, None].requires_grad_()
    fgate = torch.tensor([0.0, 1.0, -math.inf, math.inf])[:, None].requires_grad_()
    D = dtilde_matrix(igate, fgate)
    expected = torch.from_numpy(reference.dtilde_matrix(igate.detach().numpy(), fgate.detach().numpy()))
    assert not D.isnan().any() and torch.equal(D.isneginf(), expected.isneginf())
    assert all(g.isfinite().all() for g in torch.autograd.grad(D, (igate, fgate), torch.ones_like(D)))


def test_dtilde_matrix_has_no_second_derivative():
    igate, fgate = random(3, 1).requires_grad_(), random(3, 1).requires_grad_()
    (d,) = torch.autograd.grad(dtilde_matrix(igate, fgate).tril().sum(), fgate, create_graph=True)
    with pytest.raises(RuntimeError, match="dtilde_matrix: second derivatives are not available"):
        d.sum().backward()
