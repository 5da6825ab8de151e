"""Representable gradients of the mLSTM are right, up to the products that the specification names."""

import jax
import pytest

from jax_impl import mlstm
from tests.large_products import CASES, call, worst


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    arrays, dh, expected = call(name)
    _, pull_back = jax.vjp(mlstm, *arrays)
    assert worst(dict(zip("qkvif", pull_back(dh), strict=True)), expected) < 2e-6
