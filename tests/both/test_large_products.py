"""Representable gradients of the mLSTM are right, up to the products that the specification names."""

import pytest

from tests.both.tools import pulled
from tests.large_products import CASES, call, worst


@pytest.mark.parametrize("name", CASES)
def test_gradients(framework, name):
    arrays, dh, expected = call(name)
    _, found = pulled(framework, framework.package.mlstm, arrays, [dh], "float32")
    assert worst(dict(zip("qkvif", found, strict=True)), expected) < 2e-6
