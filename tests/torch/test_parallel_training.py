"""Models with our operators under FSDP2 and under a tensor-parallel plan, on two gloo processes: their gradients are
those of one process that has all parameters and the whole batch."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.torch.loops import relative_error
from tests.torch.processes import on_ranks
from torch_impl import GRU, gru, mlstm, slstm

SIZE, HEADS, DIM, B, S = 6, 4, 3, 4, 7
RANKS = 2
PROJECTIONS = ("q", "k", "v", "i", "f", "o")


class Block(nn.Module):
    """Projections by heads, an mLSTM, an sLSTM and a GRU that read them, and an output projection."""

    def __init__(self):
        super().__init__()
        widths = dict(zip(PROJECTIONS, (DIM, DIM, DIM, 1, 1, DIM), strict=True))
        for name, width in widths.items():
            setattr(self, name, nn.Linear(SIZE, HEADS * width))
        self.recurrent = nn.Parameter(torch.randn(7, HEADS, DIM, DIM) / DIM)
        self.output = nn.Linear(HEADS * DIM, SIZE)

    def forward(self, x):
        q, k, v, o = (getattr(self, name)(x).unflatten(-1, (HEADS, DIM)) for name in "qkvo")
        i, f = self.i(x), self.f(x) + 2
        h = mlstm(q, k, v, i, f)
        z, r, s, t, *weights = self.recurrent.unbind()
        h = h + slstm(h, q, k, o, z, r, s, t)
        output, _ = gru(h, weights[0], v, weights[1], o, weights[2])
        return x + self.output((h + output).flatten(-2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = GRU(SIZE, DIM, SIZE, 2, 2, 2, 2, 2, 2, add_bias=True, gradient_clipping=None)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)[0]


def made():
    torch.manual_seed(0)
    model, x = Model().double(), torch.randn(B, S, SIZE, dtype=torch.float64)
    return model, x


def gradients(model, x):
    model(x).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def off_by(found, expected):
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in found.items()}
    assert whole.keys() == expected.keys()
    scale = max(float(x.abs().max()) for x in expected.values())
    return max(relative_error(whole[name], x, scale) for name, x in expected.items())


def under_fsdp(mesh):
    """Each rank has half of the batch, and of every parameter; blocks and the model are sharded one by one."""
    model, x = made()
    expected, sharded = gradients(copy.deepcopy(model), x), model
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    found = gradients(sharded, x.chunk(RANKS)[mesh.get_local_rank()])
    local = {name: parameter.to_local().numel() for name, parameter in sharded.named_parameters()}
    held = sum(local.values()) / sum(parameter.numel() for parameter in made()[0].parameters())
    return off_by(found, expected), held


def under_tensor_parallelism(mesh):
    """Each rank has half of the heads of every block; the model around it is replicated."""
    model, x = made()
    expected, sharded = gradients(copy.deepcopy(model), x), model
    by_heads = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    plan = {f"blocks.*.{name}": by_heads for name in PROJECTIONS}
    plan["blocks.*.output"] = RowwiseParallel(input_layouts=Shard(-1))
    parallelize_module(sharded, mesh, plan)
    kinds = []
    for block in sharded.blocks:
        recurrent = DTensor.from_local(block.recurrent.detach(), mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
        block.recurrent = nn.Parameter(recurrent)
        block.output.register_forward_pre_hook(lambda _, x: kinds.append(str(x[0].placements)))
    return off_by(gradients(sharded, x), expected), kinds


def on_rank(rank):
    mesh = init_device_mesh("cpu", (RANKS,))
    return {"fsdp": under_fsdp(mesh), "heads": under_tensor_parallelism(mesh)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(on_rank, RANKS, tmp_path_factory.mktemp("ranks"))


def test_fully_sharded_parameters(ranks):
    for rank in ranks:
        error, held = rank["fsdp"]
        assert error < 1e-12 and 0.4 < held < 0.6


def test_heads_by_a_tensor_parallel_plan(ranks):
    for rank in ranks:
        error, kinds = rank["heads"]
        assert error < 1e-12 and kinds == ["(Shard(dim=2),)"] * 2
