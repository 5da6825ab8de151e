"""Steps that are sharded over two gloo processes, each of which computes its own with Triton's interpreted kernels."""

from datetime import timedelta

import pytest
import torch

from tests.calls.torch_launches import launches
from tests.torch.loops import mlstm_arguments, relative_error
from tests.torch.test_sharding import free_port
from torch_impl import MLSTMState, mlstm

S, CUT, BOUNDS = 9, 5, [0, 2, 2, 9]


def results(arrays, bounds, backend, group, cotangents):
    leaves = [x.clone().requires_grad_() for x in arrays]
    h, last = mlstm(
        *leaves[:5], initial_state=MLSTMState(*leaves[5:]), return_state=True, cu_seqlens=bounds,
        kernel_backend=backend, sequence_group=group,
    )  # fmt: skip
    return [h, *last, *torch.autograd.grad([h, *last], leaves, cotangents)]


def on_rank(rank, port, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
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
    torch.save(found, folder / str(rank))
    torch.distributed.destroy_process_group()


def test_sharded_is_whole(tmp_path, monkeypatch):
    """Dense and packed, values and gradients, as the composed code computes the whole sequences."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.multiprocessing.spawn(on_rank, args=(free_port(), tmp_path), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / str(rank), weights_only=False)
        assert max(found.values()) < 1e-5, found
