"""What the packages of this folder add to the suite's adapters."""

from typing import Any

import numpy as np
import pytest

from conformance.base.dtypes import Array
from tests.calls.mesh import Mesh, place
from tests.calls.packages import PACKAGES, adapted
from tests.calls.trees import flattened, leaves, nested


@pytest.mark.parametrize("framework", [each for each in PACKAGES.values() if each != "jax"])
def test_rows_of_a_broadcast_array_share_memory(framework: str) -> None:
    package = adapted(framework, "any", {})
    x = np.arange(12.0).reshape(3, 4)
    same = package.native(Array(np.repeat(x[:1], 3, axis=0), "float32", "broadcast"))
    assert package.overlap(same[0], same[2])
    assert not package.overlap(*(package.native(Array(x, "float32")) for _ in "12"))


def test_places_on_a_mesh():
    axes = {"x": 2, "y": 3}
    assert [place(axes, number) for number in range(6)] == [{"x": x, "y": y} for x in range(2) for y in range(3)]
    mesh = Mesh(axes, 4)
    assert (mesh.mesh_dim_names, mesh.ndim, mesh.shape, mesh.size()) == (("x", "y"), 2, (2, 3), 6)
    assert (mesh.get_local_rank("x"), mesh.get_local_rank(1), mesh.size(1)) == (1, 1, 3)


def test_trees_of_parameters():
    tree = {"a": {"kernel": 1, "bias": 2}, "b": 3}
    assert flattened(tree) == {"a.kernel": 1, "a.bias": 2, "b": 3}
    assert nested(flattened(tree)) == tree
    assert leaves((1, (2, (3, 4)))) == [1, 2, 3, 4]


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
