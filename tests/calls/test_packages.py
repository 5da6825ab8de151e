"""Kernels are seen wherever they are in a JAX program."""

from typing import Any

import pytest


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
