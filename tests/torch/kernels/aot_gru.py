"""The launches of the GRU, the scans and the decay matrices, compiled ahead of time by `tests.torch.kernels.aot`.

``python -m tests.torch.kernels.aot_gru sm_90 …`` prints, as JSON lines, registers, spills and shared memory of each.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from unittest.mock import patch

import torch

from tests.torch.kernels.aot import SHARED_MEMORY, Launched, launches, report

SHAPES = {
    "B8 S4096 N85 H16": (8, 4096, 85, 16),
    "B8 S1024 N8 H32": (8, 1024, 8, 32),
    "B16 S1024 N12 H64": (16, 1024, 12, 64),
    "B16 S1024 N8 H128": (16, 1024, 8, 128),
    "B128 S128 N1 H256": (128, 128, 1, 256),
    "B16 S512 N8 H512": (16, 512, 8, 512),
    "B16 S512 N1 H1024": (16, 512, 1, 1024),
}
"""One shape at least for every range of H that has a plan of its own."""


def cases(dtypes: tuple[torch.dtype, ...], target: str) -> Iterator[tuple[str, list[Launched]]]:
    """Every launch of a forward and a backward pass."""
    from torch_impl.kernels import decay, gru, scan

    for dtype in dtypes:

        def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        for name, (B, S, N, H) in SHAPES.items():
            x, W, h0 = empty(B, S, N, H), empty(N, H, H), empty(B, N, H, dtype=torch.float32)
            arrays = (x, W) * 3

            def both(arrays=arrays, h0=h0, x=x):
                gru.forward(arrays, h0, None)
                gru.backward(arrays, h0, None, x, x, h0, 1.0)

            with patch.object(torch.version, "hip", None if target.startswith("sm_") else "6"):
                yield f"{dtype} {name}", launches(gru, both)

        x, a, i, dF = empty(8, 16, 4096), empty(8, 16, 512), empty(8, 16, 512, 1), empty(8, 16, 512, 512)

        def sums(x=x):
            scan.rev_cumsum(x)
            scan.rev_cumsum_off_backward(x)

        def matrices(a=a, i=i, dF=dF):
            decay.causal_forget_matrix(a)
            decay.causal_forget_matrix_backward(dF)
            decay.dtilde_matrix(i, i)
            decay.dtilde_matrix_backward(dF, i)

        yield f"{dtype} S4096", launches(scan, sums)
        yield f"{dtype} S512", launches(decay, matrices)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=["sm_90"], metavar="TARGET", help=", ".join(SHARED_MEMORY))
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16", "float32"])
    options = parser.parse_args()
    chosen = tuple(getattr(torch, name) for name in options.dtype or ["bfloat16", "float16", "float32"])
    for gpu in options.targets:
        for compiled in report(cases(chosen, gpu), gpu):
            print(json.dumps(asdict(compiled)), flush=True)
