"""The helpers around operations in two processes of four devices each: what one process of eight gives."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jax.over_processes import MINIBATCHES, batch, mean_over_tokens, results, squares
from tests.jax.processes import finished, started
from tests.jax.tools import assert_close


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    finished(started("-m", "tests.jax.over_processes", folder, devices=4), timeout=180)
    return folder


@pytest.mark.parametrize("shape", [(2, 4), (4, 2)])
def test_two_processes_are_one(folder: Path, shape: tuple[int, int]) -> None:
    """Whether the second axis is inside a process or not; to the last bit where nothing is added up."""
    alone = results(shape)
    params, rows = batch()
    expected = jax.grad(mean_over_tokens)(jax.tree.map(lambda p: p.astype(jnp.float32), params), rows)
    for process in range(2):
        found = dict(np.load(folder / f"{shape}-{process}.npz"))
        assert found.keys() == alone.keys()
        for name, x in found.items():
            if "scan" not in name:
                np.testing.assert_array_equal(x, alone[name], err_msg=name)
        for scan in (False, True):
            of = {name: found[f"{name}, scan={scan}"] for name in ("w", "b", "squares")}
            assert_close([of["w"], of["squares"]], [expected["w"], squares(params, rows)], 1e-5)
            # JAX rounds each minibatch's gradient to the 8 bits of the parameter.
            assert_close(of["b"], expected["b"], 2**-8)
            # Each gradient once for all minibatches, the metric, and the number of tokens; in both programs.
            numbers = sum(p.size for p in params.values()) + 2
            assert set(found[f"numbers that are summed, scan={scan}"].flat) == {numbers} and MINIBATCHES > 1
            assert not found[f"all-reduces in a loop, scan={scan}"].any()
