"""Representable gradients of the mLSTM are right, up to the products that the specification names."""

import pytest
import torch

from tests.large_products import CASES, call, worst
from torch_impl import mlstm


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    arrays, dh, expected = call(name)
    leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
    found = torch.autograd.grad(mlstm(*leaves), leaves, torch.from_numpy(dh))
    assert worst(dict(zip("qkvif", found, strict=True)), expected) < 2e-6
