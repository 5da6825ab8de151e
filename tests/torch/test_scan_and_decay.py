"""Reverse sums differentiate to second order; the decay matrix of the mLSTM does not."""

import pytest
import torch

from torch_impl import dtilde_matrix, rev_cumsum, rev_cumsum_off


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("function", [rev_cumsum, rev_cumsum_off])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 65)], ids=str)
def test_reverse_sums(function, shape):
    x = random(*shape)
    assert torch.autograd.gradcheck(function, x) and torch.autograd.gradgradcheck(function, x)


def test_dtilde_matrix_has_no_second_derivative():
    igate, fgate = random(3, 1), random(3, 1)
    (d,) = torch.autograd.grad(dtilde_matrix(igate, fgate).tril().sum(), fgate, create_graph=True)
    with pytest.raises(RuntimeError, match="dtilde_matrix: second derivatives are not available"):
        d.sum().backward()
