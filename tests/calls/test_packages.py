"""What the packages of this folder add to the suite's adapters."""

from typing import Any

import numpy as np
import pytest

from conformance.base.dtypes import Array
from tests.calls.packages import PACKAGES, adapted


@pytest.mark.parametrize("framework", [each for each in PACKAGES.values() if each != "jax"])
def test_rows_of_a_broadcast_array_share_memory(framework: str) -> None:
    package = adapted(framework, "any", {})
    x = np.arange(12.0).reshape(3, 4)
    same = package.native(Array(np.repeat(x[:1], 3, axis=0), "float32", "broadcast"))
    assert package.overlap(same[0], same[2])
    assert not package.overlap(*(package.native(Array(x, "float32")) for _ in "12"))


def test_kernels_are_found_wherever_they_stand_in_a_jaxpr():
    jax = pytest.importorskip("jax")
    pl = pytest.importorskip("jax.experimental.pallas")
    from tests.calls.jax_launches import kernels

    def copy(source: Any, target: Any) -> None:
        target[...] = source[...]

    def launched(x: Any) -> Any:
        return pl.pallas_call(copy, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    def hidden(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jax.jit(launched)(c), None), x, None, length=2)[0]

    x = jax.numpy.ones((4, 4))
    assert len(kernels(jax.make_jaxpr(launched)(x))) == len(kernels(jax.make_jaxpr(hidden)(x))) == 1
    assert kernels(jax.make_jaxpr(lambda x: x @ x)(x)) == ()
