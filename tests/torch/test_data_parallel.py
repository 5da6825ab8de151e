"""Gradient accumulation on four gloo ranks: the full batch's gradient, in one message for all minibatches."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.loops import relative_error
from tests.torch.processes import on_ranks
from torch_impl import accumulate_gradients, mlstm, split_array_over_mesh

RANKS, ROWS, S, SIZE, HEADS, MINIBATCHES = 4, 16, 6, 3, 2, 2


class Messages(TorchDispatchMode):
    """The number of collectives of this rank, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("c10d", "_c10d_functional") and name != "wait_tensor":
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def made():
    """Parameters, one of them in 16 bits, and rows with unequal numbers of tokens that count; rank 1 has none."""
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.randn(SIZE, HEADS * SIZE, generator=generator) for name in "qkv"}
    params |= {name: torch.randn(SIZE, HEADS, generator=generator) for name in "if"}
    params["b"] = torch.full((HEADS * SIZE,), 0.5, dtype=torch.bfloat16)
    batch = {"x": torch.randn(ROWS, S, SIZE, generator=generator)}
    batch["y"] = torch.randn(ROWS, S, HEADS, SIZE, generator=generator)
    counts = torch.randint(0, S + 1, (ROWS,), generator=generator)
    counts[ROWS // RANKS : 2 * ROWS // RANKS] = 0
    batch["counts"] = torch.arange(S) < counts[:, None]
    return params, batch


def squares(params, rows):
    values = (rows["x"] @ params["v"] + params["b"].float()).unflatten(-1, (HEADS, SIZE))
    q, k = ((rows["x"] @ params[name]).unflatten(-1, (HEADS, SIZE)) for name in "qk")
    h = mlstm(q, k, values, rows["x"] @ params["i"], rows["x"] @ params["f"] + 1)
    return ((h - rows["y"]).square() * rows["counts"][..., None, None]).sum()


def loss_fn(params, apply_fn, minibatch, rng):
    """The mean over the tokens that count; NaN if none does."""
    found = squares(params, minibatch)
    return found / minibatch["counts"].sum(), ({"squares": found}, None)


def on_rank(rank):
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("data",))
    params, batch = made()
    own = {name: split_array_over_mesh(x, "data", 0, mesh=mesh) for name, x in batch.items()}
    weights = own["counts"].reshape(MINIBATCHES, -1).sum(1)
    total = batch["counts"].sum()  # every rank knows it here; elsewhere it is an all-reduce of one number
    state = SimpleNamespace(params=params, apply_fn=None)
    with Messages() as local:
        gradients, metrics, _ = accumulate_gradients(
            state, own, 0, MINIBATCHES, loss_fn, weights=weights, total_weight=total
        )
    with Messages() as step:
        sums = [*gradients.values(), metrics["squares"]]
        message = torch.cat([x.flatten().float() for x in sums])
        torch.distributed.all_reduce(message)
    summed = [x.view_as(like) for x, like in zip(message.split([x.numel() for x in sums]), sums, strict=True)]
    return {
        "gradients": dict(zip(gradients, summed, strict=False)),
        "squares": summed[-1],
        "tokens": int(weights.sum()),
        "messages": (local.counts.total(), step.counts),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(on_rank, RANKS, tmp_path_factory.mktemp("ranks"))


def test_the_gradient_of_the_mean_over_all_tokens(ranks):
    params, batch = made()
    leaves = {name: x.float().requires_grad_() for name, x in params.items()}
    total = squares(leaves, batch)
    expected = dict(zip(leaves, torch.autograd.grad(total / batch["counts"].sum(), leaves.values()), strict=True))
    assert [rank["tokens"] == 0 for rank in ranks] == [False, True, False, False]
    for rank in ranks:
        assert relative_error(rank["squares"], total.detach()) < 1e-5
        for name, x in expected.items():
            # The gradients of a parameter in 16 bits are rounded for each minibatch and rank.
            assert relative_error(rank["gradients"][name], x) < (2**-7 if name == "b" else 1e-5), name


def test_one_message_whatever_the_number_of_minibatches(ranks):
    assert [rank["messages"] for rank in ranks] == [(0, {"allreduce_": 1})] * RANKS
