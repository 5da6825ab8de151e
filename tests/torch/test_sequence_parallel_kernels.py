"""Steps that are sharded over two gloo processes, each of which computes its own with Triton's interpreted kernels."""

import pytest
import torch

from tests.calls.torch_launches import launches
from tests.torch.loops import mlstm_arguments, relative_error
from tests.torch.processes import on_ranks
from torch_impl import MLSTMState, mlstm

S, CUT, BOUNDS = 9, 5, [0, 2, 2, 9]


def results(arrays, bounds, backend, group, cotangents):
    leaves = [x.clone().requires_grad_() for x in arrays]
    h, last = mlstm(
        *leaves[:5], initial_state=MLSTMState(*leaves[5:]), return_state=True, cu_seqlens=bounds,
        kernel_backend=backend, sequence_group=group,
    )  # fmt: skip
    return [h, *last, *torch.autograd.grad([h, *last], leaves, cotangents)]


def on_rank(rank):
    group, found = torch.distributed.group.WORLD, {}
    for packed in (False, True):
        arrays = [x.detach().float() for x in mlstm_arguments(3, S, 2, 3, 4, with_state=True, packed=packed)]
        bounds = torch.tensor(BOUNDS) if packed else None
        generator = torch.Generator().manual_seed(0)
        cotangents = [torch.randn(x.shape, generator=generator) for x in (arrays[2], *arrays[5:])]
        whole = results(arrays, bounds, "torch", None, cotangents)
        axis, length = (0 if packed else 1), (CUT, S - CUT)[rank]
        own = [x.narrow(axis, rank * CUT, length) if at < 5 else x for at, x in enumerate(arrays)]
        upstream = [cotangents[0].narrow(axis, rank * CUT, length), *cotangents[1:]]
        with launches() as launched:
            got = results(own, bounds, "triton", group, upstream)
        assert launched
        expected = [x.narrow(axis, rank * CUT, length) if at in (0, *range(4, 9)) else x for at, x in enumerate(whole)]
        found[packed] = max(relative_error(x, y) for x, y in zip(got, expected, strict=True))
    return found


def test_sharded_is_whole(tmp_path, monkeypatch):
    """Dense and packed, values and gradients, as the composed code computes the whole sequences."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for found in on_ranks(on_rank, 2, tmp_path):
        assert max(found.values()) < 1e-5, found
