"""The fwbw interface with steps sharded over gloo processes: equal to the unsharded call, by autograd and by hand."""

import pytest
import torch

from tests.torch.loops import relative_error
from tests.torch.processes import on_ranks
from tests.torch.test_dtensor import message
from tests.torch.test_sequence_parallel import Recorded
from torch_impl import fwbw_backward, fwbw_forward, mlstm_fwbw_custom_grad, mLSTMBackendFwbw

B, K, V = 2, 3, 4
RANKS = 3
KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")
CONFIGURATIONS = {
    "all": {},
    "kept": dict.fromkeys(KEEPS, True),
    "floor of 1": {"stabilize_correctly": False, "chunk_size": None},
    "no state": {"use_initial_state": False, "return_state": False},
}


def configuration(**fields):
    return {"return_state": True, "use_initial_state": True, "stabilize_correctly": True, "chunk_size": 3, **fields}


def inputs(*lead, T, seed=0):
    """q to f, with gates of both forms and hard resets among them, the initial state, and all cotangents."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((T, K), (T, K), (T, V), (T, 1), (T,), (K, V), (K,), (), (T, V), (K, V), (K,), ())
    found = [torch.randn(*lead, B, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    found[4][torch.rand(found[4].shape, generator=generator) < 0.2] = -torch.inf
    return found


def local(arrays, cuts, rank, lead=0):
    """The steps of this rank of arrays of tokens."""
    return [x.narrow(lead + 1, cuts[rank], cuts[rank + 1] - cuts[rank]) for x in arrays]


def by_autograd(function, tokens, state, cotangents, mapped=False):
    """Results and gradients."""
    leaves = [x.clone().requires_grad_() for x in (*tokens, *state)]
    result = (torch.func.vmap(function) if mapped else function)(*leaves)
    outputs = [result[0], *result[1]] if isinstance(result, tuple) else [result]
    return [*outputs, *torch.autograd.grad(outputs, leaves, cotangents)]


def by_hand(config, tokens, state, cotangents, **options):
    result, context = fwbw_forward(*tokens[:5], config, *state, **options)
    outputs = [result[0], *result[1]] if isinstance(result, tuple) else [result]
    return [*outputs, *(x for x in fwbw_backward(context, cotangents[0], config, *cotangents[1:]) if x is not None)]


def parts(found, config, cuts, rank, lead=0):
    """Of the results of a whole call, those of this rank."""
    states = 3 * config["return_state"]
    tokens = [0, *range(1 + states, 6 + states)]
    return [local([x], cuts, rank, lead)[0] if at in tokens else x for at, x in enumerate(found)]


def off_by(one, other):
    """The largest error, relative to the largest gradient of a token."""
    scale = max((float(x.abs().max()) for x in other if x.numel()), default=0.0)
    return max(relative_error(x, y, scale) for x, y in zip(one, other, strict=True))


def agreements(group):
    rank, found = group.rank(), {}
    for name, changes in CONFIGURATIONS.items():
        config = configuration(**changes)
        for cuts in ([0, 5, 5, 13],):
            *arrays, dh, dC, dn, dm = inputs(T=cuts[-1])
            tokens, state = arrays[:5], arrays[5:] if config["use_initial_state"] else []
            last = [dC, dn, dm] if config["return_state"] else []
            whole = by_autograd(mlstm_fwbw_custom_grad(config), tokens, state, [dh, *last])
            expected = parts(whole, config, cuts, rank)
            mine, own_dh = local(tokens, cuts, rank), local([dh], cuts, rank)
            sharded = mlstm_fwbw_custom_grad(config, sequence_group=group)
            found[name, "autograd", *cuts] = off_by(by_autograd(sharded, mine, state, [*own_dh, *last]), expected)
            hand = by_hand(config, mine, state, [*own_dh, *last], sequence_group=group)
            found[name, "by hand", *cuts] = off_by(hand, expected)
    return found


def others(group):
    """A state that is left out, heads by vmap, the module, a compiled function, and the messages of both passes."""
    rank, cuts, config, found = group.rank(), [0, 5, 5, 13], configuration(), {}
    *arrays, dh, dC, dn, dm = inputs(T=13)
    tokens, state = arrays[:5], arrays[5:]
    mine, cotangents = local(tokens, cuts, rank), [*local([dh], cuts, rank), dC, dn, dm]

    zeros = [torch.zeros_like(x) for x in state]
    expected = parts(by_hand(config, tokens, zeros, [dh, dC, dn, dm]), config, cuts, rank)
    found["zeros"] = off_by(by_hand(config, mine, [], cotangents, sequence_group=group), expected)

    *arrays, dh, dC, dn, dm = inputs(2, T=13)
    heads, states = arrays[:5], arrays[5:]
    whole = by_autograd(mlstm_fwbw_custom_grad(config), heads, states, [dh, dC, dn, dm], mapped=True)
    own = [*local([dh], cuts, rank, 1), dC, dn, dm]
    sharded = mlstm_fwbw_custom_grad(config, sequence_group=group)
    one = by_autograd(sharded, local(heads, cuts, rank, 1), states, own, mapped=True)
    found["vmap"] = off_by(one, parts(whole, config, cuts, rank, 1))

    layer = mLSTMBackendFwbw({**config, "return_state": False})
    h, last = layer(*tokens[:5], *state, return_last_states=True)
    own_h, own_last = layer(*mine[:5], *state, return_last_states=True, sequence_group=group)
    found["module"] = off_by([own_h, *own_last], [*local([h], cuts, rank), *last])

    compiled = torch.compile(sharded, fullgraph=True, backend="aot_eager")
    found["compiled"] = off_by(*(by_autograd(each, mine, state, cotangents) for each in (compiled, sharded)))

    with Recorded() as mode:
        by_hand(config, mine, state, cotangents, sequence_group=group)
    found["sent"] = [(name, count) for name, count, _ in mode.sent]
    return found


def refusals(group):
    odd, config = group.rank() == 1, configuration()
    arrays = inputs(T=4)
    tokens, state, dh = arrays[:5], arrays[5:8], arrays[8]
    sharded = mlstm_fwbw_custom_grad(config, sequence_group=group)
    layer = mLSTMBackendFwbw({"use_initial_state": True})
    _, context = fwbw_forward(*tokens[:5], config, *state, sequence_group=group)
    own_n = [state[0], state[1].clone().requires_grad_(odd), state[2]]
    return {
        "return": message(
            lambda: fwbw_forward(*tokens[:5], {**config, "return_state": odd}, *state, sequence_group=group)
        ),
        "floor": message(
            lambda: fwbw_forward(*tokens[:5], {**config, "stabilize_correctly": odd}, *state, sequence_group=group)
        ),
        "state": message(lambda: sharded(*tokens, *(() if odd else state))),
        "gradient": message(lambda: layer(*tokens, *own_n, sequence_group=group)),
        "backward": message(lambda: fwbw_backward(context, dh[:, :1] if odd else dh, config)),
    }


def on_rank(rank):
    group = torch.distributed.group.WORLD
    return {"errors": agreements(group), "others": others(group), "refused": refusals(group)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(on_rank, RANKS, tmp_path_factory.mktemp("ranks"))


def test_sharded_is_whole(ranks):
    """Results and gradients, for uneven and empty shards, of the differentiated function and of both passes."""
    for rank in ranks:
        assert {name: error for name, error in rank["errors"].items() if not error < 1e-11} == {}


@pytest.mark.parametrize("name", ["zeros", "vmap", "module", "compiled"])
def test_other_calls(ranks, name):
    assert max(rank["others"][name] for rank in ranks) < 1e-11


def test_what_crosses_the_wire(ranks):
    """By hand, the backward pass repeats the messages of the forward pass before it sends its own."""
    summary, state = B * (K * V + K + 3), ("all_reduce", B * (K * V + K + 1))
    for rank, found in enumerate(ranks):
        shifts = [("all_to_all_single", summary * (rank + 1 < RANKS))] * 2
        mirrored = [("all_to_all_single", summary * (rank > 0))] * 2
        agreed = ("mlstm_first_token", 0)
        assert found["others"]["sent"] == [agreed, *shifts, state, agreed, *shifts, *mirrored, state]


EXPECTED = {
    "return": "ValueError: fwbw_forward: `config.return_state` is True on rank 1; expected False, as on rank 0",
    "floor": "ValueError: fwbw_forward: `config.stabilize_correctly` is True on rank 1; expected False, as on rank 0",
    "state": "ValueError: fwbw_forward: `initial_C` is None on rank 1; expected a state, as on rank 0",
    "gradient": "ValueError: fwbw_forward: `n_initial` is an array that requires a gradient on rank 1; expected an "
    "array that requires no gradient, as on rank 0",
    "backward": "ValueError: fwbw_backward: `dh` is f64[2,1,4]; expected [B=2, T=4, V=4] to match `q` (on rank 1)",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_all_ranks_refuse_alike(ranks, name):
    assert [rank["refused"][name] for rank in ranks] == [EXPECTED[name]] * RANKS
