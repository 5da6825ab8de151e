"""The mLSTM with steps sharded over four gloo processes: isolation, compilation, bytes between ranks, and refusals.

The law `mlstm.sharding_over_steps` compares any sequences and packings with the specification.
"""

import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.loops import mlstm_arguments, relative_error
from tests.torch.processes import on_ranks
from tests.torch.test_dtensor import message
from torch_impl import MLSTMState, explain_backend, mlstm
from torch_impl._mlstm.agreement import NUMBERS

B, N, K, V = 2, 2, 3, 4


def arguments(S, bounds=None, given=True):
    """q, k, v, i, f and, if one is given, the initial state."""
    sequences = B if bounds is None else len(bounds) - 1
    arrays = mlstm_arguments(sequences, S, N, K, V, with_state=given, packed=bounds is not None)
    return [x.detach() for x in arrays]


def results(arrays, cotangents, **options):
    """h, the final state, and the gradients of all arrays."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    initial = MLSTMState(*leaves[5:]) if len(leaves) > 5 else None
    h, last = mlstm(*leaves[:5], initial_state=initial, return_state=True, **options)
    return [h, *last, *torch.autograd.grad([h, *last], leaves, cotangents)]


def cotangents_of(arrays, sequences, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = (arrays[2].shape, (sequences, N, K, V), (sequences, N, K), (sequences, N))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def local(found, cuts, rank, packed, tokens=(0, 4, 5, 6, 7, 8)):
    """The shards of this rank of the arrays of tokens among results, or among the arrays at ``tokens``."""
    part = slice(cuts[rank], cuts[rank + 1])
    return [(x[part] if packed else x[:, part]) if at in tokens else x for at, x in enumerate(found)]


def across_a_reset(group):
    """The largest gradient before a reset on the second rank of what is read from it on."""
    cuts, rank = [0, *range(5, 1 + 5 * group.size(), 5)], group.rank()
    arrays = [x.float() for x in arguments(cuts[-1])]
    arrays[4][:, 7] = -torch.inf
    cotangents = [x.float() for x in cotangents_of(arrays, B, 1)]
    cotangents[0][:, :7] = 0.0
    mine, upstream = local(arrays, cuts, rank, False, range(5)), local(cotangents, cuts, rank, False, (0,))
    _, *found = results(mine, upstream, sequence_group=group)[4:]
    before = max(7 - cuts[rank], 0)
    return max(float(x.abs().max()) for x in [*(x[:, :before] for x in found[:4]), *found[4:]] if x.numel())


def beside_a_nan(group):
    """The largest difference that a NaN in the second of three sequences makes to the others."""
    bounds, rank = [0, 5, 14, 16], group.rank()
    cuts = [round(16 * each / group.size()) for each in range(group.size() + 1)]
    clean = arguments(16, bounds)
    cotangents = cotangents_of(clean, 3, 1)
    options = {"cu_seqlens": torch.tensor(bounds), "sequence_group": group}
    upstream = local(cotangents, cuts, rank, True, (0,))
    expected = results(local(clean, cuts, rank, True, range(5)), upstream, **options)
    others = torch.tensor([*range(5), *range(14, 16)])
    others = others[(others >= cuts[rank]) & (others < cuts[rank + 1])] - cuts[rank]
    worst = 0.0
    for name in range(5):
        arrays = [x.clone() for x in clean]
        arrays[name][5:14] = torch.nan
        got = results(local(arrays, cuts, rank, True, range(5)), upstream, **options)
        for at, (one, other) in enumerate(zip(got, expected, strict=True)):
            kept = others if at in (0, 4, 5, 6, 7, 8) else torch.tensor([0, 2])
            worst = max(worst, float((one[kept] - other[kept]).abs().sum()), key=lambda x: (x != x, x))
    return worst


def compiled(group):
    """The largest difference between a compiled call and a call that is not, gradients included."""
    bounds, rank, mesh = [0, 3, 3, 8], group.rank(), init_device_mesh("cpu", (group.size(),))
    cuts = [round(8 * each / group.size()) for each in range(group.size() + 1)]
    arrays = arguments(8, bounds)
    mine, upstream = (
        local(arrays, cuts, rank, True, range(5)),
        local(cotangents_of(arrays, 3, 1), cuts, rank, True, (0,)),
    )

    def call(*x):
        options = {"initial_state": MLSTMState(*x[5:]), "cu_seqlens": torch.tensor(bounds), "sequence_group": mesh}
        return mlstm(*x[:5], return_state=True, **options)

    both = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in mine]
        h, last = function(*leaves)
        both.append([h, *last, *torch.autograd.grad([h, *last], leaves, upstream)])
    return max(relative_error(x, y) for x, y in zip(*both, strict=True))


class Recorded(TorchDispatchMode):
    """The numbers that this rank sends, by collective; those of the agreement are inside an operator of their own."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")
        if name[0] in ("_c10d_functional", "c10d") and name[2] != "wait_tensor":
            self.sent.append((name[2], args[0].numel(), args[0].dtype))
        if name[2] == "mlstm_first_token":
            self.sent.append((name[2], 0, None))
        return func(*args, **(kwargs or {}))


def traffic(group):
    """What this rank sends in both passes, for few and for many steps; with and without states."""
    found = {}
    for steps, packed, states in itertools.product((4, 40), (False, True), (False, True)):
        bounds = [0, 1, steps * group.size()] if packed else None
        arrays = arguments(steps * group.size(), bounds, given=states)
        cuts = [steps * rank for rank in range(group.size() + 1)]
        leaves = [x.requires_grad_() for x in local(arrays, cuts, group.rank(), packed, range(5))]
        initial = MLSTMState(*leaves[5:]) if states else None
        cu_seqlens = torch.tensor(bounds) if packed else None
        with Recorded() as mode:
            options = {"initial_state": initial, "cu_seqlens": cu_seqlens, "sequence_group": group}
            found_here = mlstm(*leaves[:5], **options, return_state=states)
            forward, mode.sent = mode.sent, []
            outputs = [found_here[0], *found_here[1]] if isinstance(found_here, tuple) else [found_here]
            torch.autograd.grad([x.sum() for x in outputs], leaves)
        found[steps, packed, states] = forward, mode.sent
    return found


def refusals(group):
    rank = group.rank()
    x, flat = arguments(4, given=False), arguments(4, [0, 4], given=False)
    state = MLSTMState(*arguments(4)[5:])
    odd = rank == 1

    def dense(*arrays, **options):
        return message(lambda: mlstm(*(arrays or x), **{"sequence_group": group, **options}))

    def packed(*bounds):
        return message(lambda: mlstm(*flat, cu_seqlens=torch.tensor(bounds), sequence_group=group))

    wide = [*x[:2], torch.cat([x[2], x[2]], -1), *x[3:]]
    own_k = [x[0], x[1].clone().requires_grad_(odd), *x[2:]]
    end, mesh = 4 * group.size(), init_device_mesh("cpu", (group.size(),))
    return {
        "dtensor": dense(*(distribute_tensor(part, mesh, [Replicate()]) for part in x)),
        "name": dense(sequence_group="sp"),
        "mesh": dense(sequence_group=init_device_mesh("cpu", (1, group.size()))),
        "batch": dense(*([part[:1] for part in x] if odd else x)),
        "heads": dense(*([part[:, :, :1] for part in x] if odd else x)),
        "values": dense(*(wide if odd else x)),
        "dtype": dense(*([part.float() for part in x] if odd else x)),
        "state": dense(initial_state=state if odd else None),
        "return": dense(return_state=odd),
        "eps": dense(eps=1e-6 if odd else 0.0),
        "values of the state": dense(initial_state=state._replace(n=state.n + 1e-9) if odd else state),
        "gradient": dense(*own_k),
        "one refuses": dense(*([x[0], x[1][:, :1], *x[2:]] if odd else x)),
        "all refuse": dense(eps=-1.0),
        "sequences": packed(*([0, 2, end] if odd else [0, end])),
        "packing": packed(0, 3 if odd else 2, end),
        "end": packed(0, end + 1),
        "mixed": message(lambda: mlstm(*(flat if odd else x), cu_seqlens=torch.tensor([0, 4]) if odd else None,
                                       sequence_group=group)),
    }  # fmt: skip


def on_rank(rank):
    group = torch.distributed.group.WORLD
    found = {"refused": refusals(group), "traffic": traffic(group), "compiled": compiled(group)}
    found |= {"reset": across_a_reset(group), "nan": beside_a_nan(group)}
    found["explained"] = explain_backend("mlstm", *arguments(4, given=False), sequence_group=group).chosen.value
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(on_rank, 4, tmp_path_factory.mktemp("ranks"))


def test_nothing_flows_through_a_reset(ranks):
    """Not even roundoff."""
    assert [rank["reset"] for rank in ranks] == [0.0] * len(ranks)


def test_a_nan_stays_in_its_sequence(ranks):
    assert max(rank["nan"] for rank in ranks) < 1e-10
    assert all(rank["nan"] == rank["nan"] for rank in ranks)


def test_compiled_without_a_break(ranks):
    assert all(rank["compiled"] < 1e-12 and rank["explained"] == "torch" for rank in ranks)


def test_what_crosses_the_wire(ranks):
    """At most one summary a round, whatever S is, and as much for the gradient; states are one all-reduce each."""
    assert f"({NUMBERS} numbers each)" in str(mlstm.__doc__)
    size = len(ranks)
    distances = [1, *(2**power for power in range(size) if 2**power < size - 1)]
    for rank, found in enumerate(ranks):
        for (steps, packed, states), (forward, backward) in found["traffic"].items():
            assert found["traffic"][4, packed, states] == (forward, backward), steps
            numbers = (1 if packed else B) * N * (K * V + K + 3)
            shifts = [numbers if rank + distance < size else 0 for distance in distances]
            mirrored = [numbers if rank >= distance else 0 for distance in reversed(distances)]
            state = [("all_reduce", B * N * (K * V + K + 1), torch.float64)] if states else []
            assert forward == [
                ("mlstm_first_token", 0, None),
                *(("all_to_all_single", count, torch.float64) for count in shifts),
                *state,
            ]
            assert backward == [*(("all_to_all_single", count, torch.float64) for count in mirrored), *state]


EXPECTED_GROUP = "expected a torch.distributed.ProcessGroup or a DeviceMesh of one dimension, both with this process"
REFUSED = {
    "name": f"TypeError: mlstm: `sequence_group` is 'sp'; {EXPECTED_GROUP}",
    "mesh": f"ValueError: mlstm: `sequence_group` is a mesh of 2 dimensions; {EXPECTED_GROUP}",
    "dtensor": "TypeError: mlstm: `q` is a DTensor; expected the local tensor of this rank, with `sequence_group`",
    "batch": "ValueError: mlstm: `q` is an array with B=1 on rank 1; expected an array with B=2, as on rank 0",
    "heads": "ValueError: mlstm: `q` is an array with N=1 on rank 1; expected an array with N=2, as on rank 0",
    "values": "ValueError: mlstm: `v` is an array with V=8 on rank 1; expected an array with V=4, as on rank 0",
    "dtype": "ValueError: mlstm: `q` is an array of float32 on rank 1; expected an array of float64, as on rank 0",
    "state": "ValueError: mlstm: `initial_state` is a state on rank 1; expected None, as on rank 0",
    "eps": "ValueError: mlstm: `eps` is 1e-06 on rank 1; expected 0.0, as on rank 0",
    "return": "ValueError: mlstm: `return_state` is True on rank 1; expected False, as on rank 0",
    "gradient": "ValueError: mlstm: `k` is an array that requires a gradient on rank 1; expected an array that "
    "requires no gradient, as on rank 0",
    "one refuses": "ValueError: mlstm: `k` is f64[2,1,2,3]; expected [B=2, S=4, N=2, K=3] to match `q` (on rank 1)",
    "all refuse": "ValueError: mlstm: `eps` is -1.0; expected a finite number of at least 0",
    "sequences": "ValueError: mlstm: `cu_seqlens` is an array of 2 sequences on rank 1; expected an array of 1 "
    "sequences, as on rank 0",
    "mixed": "ValueError: mlstm: `cu_seqlens` is an array on rank 1; expected None, as on rank 0",
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_ranks_refuse_alike(ranks, name):
    assert [rank["refused"][name] for rank in ranks] == [REFUSED[name]] * len(ranks)


def test_packings_that_differ_or_end_elsewhere_are_refused(ranks):
    names = ("packing", "end", "values of the state")
    (packing,), (end,), (state,) = ({rank["refused"][name] for rank in ranks} for name in names)
    assert state.startswith("ValueError: mlstm: `initial_state` is a state with the hash "), state
    assert packing.startswith("ValueError: mlstm: `cu_seqlens` is a packing with the hash ")
    assert " on rank 1; expected a packing with the hash " in packing and packing.endswith(", as on rank 0")
    T = 4 * len(ranks)
    expected = f"expected T={T} to match `q` of all shards"
    assert end == f"ValueError: mlstm: `cu_seqlens` is an array that ends at {T + 1}; {expected}"
