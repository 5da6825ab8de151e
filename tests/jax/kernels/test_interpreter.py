"""Trust in the GPU interpreter: it reports a data race, and every kernel runs with its detector on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_impl import _pallas
from tests.jax.kernels.tools import needs_mosaic, only_interpreted


def copy_through_shared_memory(waits: bool):
    """A kernel that adds 1 to 128 numbers that TMA brings, and may forget to wait for them."""
    plgpu = _pallas.pallas().plgpu

    def kernel(block, source, to, tile, barrier):
        plgpu.copy_gmem_to_smem(source, tile, barrier)
        if waits:
            plgpu.barrier_wait(barrier)
        tile[...] = tile[...] + 1
        plgpu.commit_smem()
        if not waits:
            plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(tile, to)
        plgpu.wait_smem_to_gmem(0)

    found = _pallas.launch(
        kernel,
        True,
        operands={"source": jnp.arange(128, dtype=jnp.float32)},
        results={"to": jax.ShapeDtypeStruct((128,), jnp.float32)},
        scratch={"tile": plgpu.SMEM((128,), jnp.float32), "barrier": plgpu.Barrier()},
        grid={"block": 1},
    )
    return jax.block_until_ready(found["to"])


@needs_mosaic
@only_interpreted
def test_a_race_is_reported():
    from jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks import reset_gpu_interpret_mode_state

    np.testing.assert_array_equal(copy_through_shared_memory(waits=True), np.arange(128) + 1)
    with pytest.raises(Exception, match="RACE DETECTED"):
        copy_through_shared_memory(waits=False)
    reset_gpu_interpret_mode_state()
    np.testing.assert_array_equal(copy_through_shared_memory(waits=True), np.arange(128) + 1)
