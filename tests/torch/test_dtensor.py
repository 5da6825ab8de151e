"""DTensors on two gloo processes: placements that the law `sharding` does not have, a layer, and what is refused."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.torch.functions import with_state
from tests.torch.loops import cotangents, gru_arguments, mlstm_arguments, relative_error
from tests.torch.processes import on_ranks
from torch_impl import (
    GRU,
    fwbw_backward,
    fwbw_forward,
    gru,
    mlstm,
    rev_cumsum,
)

BOUNDS = torch.tensor([0, 3, 3, 7])
CONFIG = dict(return_state=True, use_initial_state=True, chunk_size=2, keep_G=True, keep_c=True)


whole, packed = with_state(), with_state(cu_seqlens=BOUNDS)


def by_hand(*arrays):
    (h, last), context = fwbw_forward(*arrays, CONFIG)
    with torch.no_grad():
        return (h, *last, *fwbw_backward(context, 2 * h, CONFIG, *last)[:5])


def gru_packed(*arrays):
    return gru(*arrays, cu_seqlens=BOUNDS)


def detached(arrays):
    return [x.detach() for x in arrays]


def cases():
    """Function, arrays, and by name the placements of the arrays on a mesh of two."""
    dense = detached(mlstm_arguments(3, 7, 2, 3, 2, with_state=True))
    tokens = detached(mlstm_arguments(3, 7, 2, 3, 2, with_state=True, packed=True))
    recurrent = detached(gru_arguments(3, 5, 2, (4, 2, 1, 4, 2, 1), with_state=True))
    of_tokens = detached(gru_arguments(3, 7, 2, (2, 2, 2, 2, 2, 2), with_state=True, packed=True))
    one_head = [x[:, :, 0] for x in dense[:5]]
    batch, heads, everywhere = Shard(0), Shard(2), Replicate()
    return {
        # Three sequences on two processes: one holds two of them.
        "mlstm over batch": (whole, dense, [batch] * 8),
        "mlstm with a replicated array": (whole, dense, [batch, everywhere] * 4),
        "mlstm replicated": (whole, dense, [everywhere] * 8),
        "mlstm packed over heads": (packed, tokens, [Shard(1)] * 8),
        "fwbw by hand over batch": (by_hand, one_head, [batch] * 5),
        # The one head of the third input, and of its weight, is read by the heads of both processes.
        "gru over heads": (gru, recurrent, [heads, Shard(0)] * 2 + [everywhere] * 2 + [Shard(1)]),
        "gru packed over heads": (gru_packed, of_tokens, [Shard(1), Shard(0)] * 3 + [Shard(1)]),
    }


def off_by(got, expected):
    pairs = list(zip(got, expected, strict=True))
    assert all(isinstance(x, DTensor) and x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
    return max(relative_error(x.full_tensor(), y) for x, y in pairs)


def found(mesh, function, arrays, placements):
    """The error of the values, that of the gradients, and the placements of the results."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    expected = function(*leaves)
    upstream = cotangents(expected)
    differentiable = function is not by_hand
    sharded = [distribute_tensor(x, mesh, [p]).requires_grad_() for x, p in zip(arrays, placements, strict=True)]
    outputs = function(*sharded)
    errors = [off_by(outputs, expected)]
    if differentiable:
        # Every process has its own part of the cotangents; a sum of all is what the whole call would have.
        total = sum(
            (y * distribute_tensor(d, mesh, [Replicate()])).sum() for y, d in zip(outputs, upstream, strict=True)
        )
        errors.append(off_by(torch.autograd.grad(total, sharded), torch.autograd.grad(expected, leaves, upstream)))
    return errors, [str(y.placements[0]) for y in outputs]


def message(call):
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def refusals(mesh):
    dense = detached(mlstm_arguments(2, 6, 2, 3, 2))
    recurrent = detached(gru_arguments(2, 4, 2, (3, 3, 3, 3, 3, 3)))

    def sharded(arrays, axes):
        return [distribute_tensor(x, mesh, [Shard(axis)]) for x, axis in zip(arrays, axes, strict=True)]

    mixed = [*sharded(dense[:1], [0]), *dense[1:]]
    flat = [x[0] for x in dense]
    return {
        "steps": message(lambda: mlstm(*sharded(dense, [1] * 5))),
        "features": message(lambda: mlstm(*sharded(dense, [3, 0, 0, 0, 0]))),
        "both": message(lambda: mlstm(*sharded(dense, [0, 2, 2, 2, 2]))),
        "tokens": message(lambda: mlstm(*sharded(flat, [0] * 5), cu_seqlens=torch.tensor([0, 6]))),
        "mixed": message(lambda: mlstm(*mixed)),
        "heads": message(lambda: gru(*sharded(recurrent, [2, 0] * 3))),
        "scan": message(lambda: rev_cumsum(*sharded(dense[3:4], [2]))),
        "fwbw": message(lambda: fwbw_forward(*sharded([x[:, :, 0] for x in dense], [1] * 5), {})),
    }


def layer(mesh):
    torch.manual_seed(0)
    module = GRU(5, 3, 4, 2, 1, 1, 2, 1, 1, True, None).double()
    x = torch.randn(4, 6, 5).double()
    expected = torch.autograd.grad(module(x)[0].square().sum(), list(module.parameters()))
    module = torch.distributed.tensor.distribute_module(module, mesh)
    y, _ = module(distribute_tensor(x, mesh, [Shard(0)]))
    parameters = list(module.parameters())
    return off_by(torch.autograd.grad(y.square().sum(), parameters), expected), str(y.placements[0])


def on_mesh(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("x",))
    torch.manual_seed(0)
    found_here = {name: found(mesh, *case) for name, case in cases().items()}
    return {"cases": found_here, "refused": refusals(mesh), "layer": layer(mesh)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(on_mesh, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", cases())
def test_sharded_calls(ranks, name):
    """Values and gradients of the whole call, and results that stay sharded as the arrays are."""
    for rank in ranks:
        errors, placements = rank["cases"][name]
        assert max(errors) < 1e-12, errors
        sharded = "replicated" not in name or "a replicated" in name
        assert all(placement.startswith("S") is sharded for placement in placements), placements


def test_a_layer(ranks):
    for rank in ranks:
        error, placement = rank["layer"]
        assert error < 1e-12 and placement == "S(0)"


REPLICATED = "expected it replicated there: only"
REFUSED = {
    "steps": f"mlstm: `q` is sharded over axis 1 (S) by mesh axis 'x'; {REPLICATED} batch and heads can be sharded",
    "features": f"mlstm: `q` is sharded over axis 3 (K) by mesh axis 'x'; {REPLICATED} batch and heads can be sharded",
    "both": "mlstm: `k` is sharded over heads (N) by mesh axis 'x'; expected batch (B), as another array is",
    "tokens": f"mlstm: `q` is sharded over axis 0 (T) by mesh axis 'x'; {REPLICATED} heads can be sharded in packed "
    "sequences",
    "mixed": "mlstm: `k` is f64[2,6,2,3] on cpu; expected it on cpu over a mesh of x=2 (ranks [0, 1]) to match `q`",
    "heads": "gru: `input` is an array of 3 heads sharded by mesh axis 'x'; expected a multiple of its size, 2",
    "scan": f"rev_cumsum: `x` is sharded over axis 2 (S) by mesh axis 'x'; {REPLICATED} leading axes can be sharded",
    "fwbw": f"fwbw_forward: `q` is sharded over axis 1 (S) by mesh axis 'x'; {REPLICATED} batch and heads can be "
    "sharded",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sharded_is_refused_by_name(ranks, name):
    assert [rank["refused"][name] for rank in ranks] == [f"ValueError: {REFUSED[name]}"] * 2
