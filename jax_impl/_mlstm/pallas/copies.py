"""Helpers shared by the mLSTM's kernels: TMA copies of operands, and the product of two streamed operands."""

from typing import Any

import jax

from jax_impl._mlstm.pallas.plan import Plan
from jax_impl._pallas import FLOAT, L, multiply, pallas, parts


def copy_in(source: Any, to: Any, terms: int, barrier: Any) -> None:
    """Copy every term by TMA; ``barrier`` expects one arrival per term."""
    for x, y in zip(parts(source, terms), parts(to, terms), strict=True):
        pallas().plgpu.copy_gmem_to_smem(x, y, barrier)


def copy_out(source: Any, to: Any, terms: int) -> None:
    """Copy every term by TMA, as one group."""
    plgpu = pallas().plgpu
    for x, y in zip(parts(source, terms), parts(to, terms), strict=True):
        plgpu.copy_smem_to_gmem(x, y, commit_group=False)
    plgpu.commit_smem_to_gmem_group()


def chunk_product(plan: Plan, x: Any, y: Any, head: Any, chunk: Any) -> jax.Array:
    """``x yᵀ`` of one chunk's steps, ``(L, L)`` in registers, streamed over the head dim."""
    p = pallas()
    plgpu = p.plgpu
    steps = p.pl.ds(chunk * L, L)

    def compute(acc):
        def body(_, *tiles):
            multiply(acc, tiles[: plan.terms], tiles[plan.terms :], transpose_b=True)
            plgpu.wgmma_wait(0)

        of_tile = plgpu.BlockSpec((L, L), lambda at: (0, at), memory_space=plgpu.SMEM)
        plgpu.emit_pipeline(
            body, grid=(x.shape[-1] // L,), in_specs=[of_tile] * (2 * plan.terms), max_concurrent_steps=plan.stages
        )(*parts(x.at[:, steps, head], plan.terms), *parts(y.at[:, steps, head], plan.terms))
        return acc[...]

    return p.pl.run_scoped(compute, plgpu.ACC((L, L), FLOAT))
