"""`torch_impl.interop.GRU` next to ``torch.nn.GRU``: values, gradients and interface."""

import copy
import inspect
import pickle

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.torch.loops import relative_error
from torch_impl.interop import GRU

D, H, B, S = 3, 5, 4, 6
LENGTHS = [3, 6, 1, 6]


def pair(**settings):
    """Their layer and ours, with its state dict, in float64."""
    torch.manual_seed(0)
    theirs = torch.nn.GRU(D, H, dtype=torch.float64, **settings)
    ours = GRU(D, H, dtype=torch.float64, **settings)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(kind, batch_first):
    """An input, and the leaf that it was made of."""
    if kind == "unbatched":
        x = torch.randn(S, D, dtype=torch.float64, requires_grad=True)
        return x, x
    x = torch.randn(*((B, S) if batch_first else (S, B)), D, dtype=torch.float64, requires_grad=True)
    if kind == "dense":
        return x, x
    order = LENGTHS if kind == "packed" else sorted(LENGTHS, reverse=True)
    return pack_padded_sequence(x, torch.tensor(order), batch_first, enforce_sorted=kind == "sorted"), x


def agree(theirs, ours, kind="dense", state=True, tolerance=1e-11):
    torch.manual_seed(1)
    x, leaf = inputs(kind, ours.batch_first)
    layers = ours.num_layers * (1 + ours.bidirectional)
    sizes = (layers, H) if kind == "unbatched" else (layers, B, H)
    h = torch.randn(sizes, dtype=torch.float64, requires_grad=True) if state else None
    results = []
    for module in (theirs, ours):
        y, last = module(x, h)
        if isinstance(y, PackedSequence):
            for own, given in zip(y[1:], x[1:], strict=True):
                assert (own is None and given is None) or torch.equal(own, given)
            y = y.data
        leaves, rng = [leaf, *module.parameters(), *([h] if state else [])], torch.Generator().manual_seed(2)
        cotangents = [torch.randn(part.shape, dtype=part.dtype, generator=rng) for part in (y, last)]
        results.append([y, last, *torch.autograd.grad([y, last], leaves, cotangents, retain_graph=True)])
    for expected, got in zip(*results, strict=True):
        assert got.shape == expected.shape and relative_error(got, expected) < tolerance


@pytest.mark.parametrize("kind", ["dense", "unbatched", "packed", "sorted"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_values_and_gradients(kind, batch_first, bidirectional):
    agree(*pair(num_layers=2, batch_first=batch_first, bidirectional=bidirectional), kind)


def test_one_layer_without_biases_and_without_a_state():
    agree(*pair(bias=False), state=False)
    agree(*pair(bias=False), "packed", state=False)


def test_dropout_stands_between_layers_in_training_alone():
    """With a probability of 1 the next layer reads zeros, in both."""
    theirs, ours = pair(num_layers=3, dropout=1.0)
    agree(theirs, ours)
    agree(theirs.eval(), ours.eval())
    _, ours = pair(num_layers=2, dropout=0.5)
    x = torch.randn(S, B, D, dtype=torch.float64)
    torch.manual_seed(0)
    first, again = ours(x)[0], ours(x)[0]
    torch.manual_seed(0)
    assert not torch.equal(first, again) and torch.equal(first, ours(x)[0])


def test_packed_sequences_of_a_list():
    theirs, ours = pair(bidirectional=True, batch_first=True)
    packed = pack_sequence([torch.randn(n, D, dtype=torch.float64) for n in LENGTHS], enforce_sorted=False)
    (expected, of_last), (got, last) = theirs(packed), ours(packed)
    for a, b in zip(pad_packed_sequence(got), pad_packed_sequence(expected), strict=True):
        assert relative_error(a.double(), b.double()) < 1e-12
    assert relative_error(last, of_last) < 1e-12


def test_interface():
    theirs, ours = pair(num_layers=2)
    assert repr(ours) == repr(theirs)
    documented = "input_size hidden_size num_layers bias batch_first dropout bidirectional device dtype".split()
    assert list(inspect.signature(GRU).parameters) == documented
    x = torch.randn(S, B, D, dtype=torch.float64)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(copied(x)[0], ours(x)[0])
    given = {name: p + 0.1 for name, p in theirs.named_parameters()}
    expected, got = (torch.func.functional_call(module, given, (x,))[0] for module in (theirs, ours))
    assert relative_error(got, expected) < 1e-12
    assert {p.device.type for p in GRU(D, H, device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize("compiled", [False, True])
def test_16_bits_and_compilation(compiled):
    theirs, ours = pair(num_layers=2, bidirectional=True)
    x = torch.randn(S, B, D, dtype=torch.float64)
    expected, of_last = theirs(x)
    low = copy.deepcopy(ours).bfloat16()
    call = torch.compile(low, backend="aot_eager", fullgraph=True) if compiled else low
    y, last = call(x.bfloat16(), torch.zeros_like(of_last, dtype=torch.bfloat16))
    assert y.dtype is last.dtype is torch.bfloat16
    assert relative_error(y.double(), expected) < 2e-2 and relative_error(last.double(), of_last) < 2e-2
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("settings", "shape", "state"),
    [
        ({}, (S, B, D + 1), None),
        ({}, (S,), None),
        ({}, (S, B, D), (2, B, H)),
        ({}, (S, B, D), (1, B, H + 1)),
        ({}, (S, B, D), (1, H)),
        ({}, (S, D), (1, B, H)),
        ({"batch_first": True}, (B, S, D), (1, S, H)),
    ],
)
def test_what_theirs_refuses_is_refused(settings, shape, state):
    hx = None if state is None else torch.zeros(state, dtype=torch.float64)
    refused = []
    for module in pair(**settings):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            module(torch.zeros(shape, dtype=torch.float64), hx)
        refused.append(caught.type)
    assert refused[0] is refused[1]


def test_settings_that_theirs_refuses_are_refused():
    for module in (torch.nn.GRU, GRU):
        with pytest.raises(ValueError, match="dropout"):
            module(D, H, dropout=2.0)
        with pytest.warns(UserWarning, match="dropout"):
            module(D, H, dropout=0.5)
        with pytest.raises(ValueError, match="dtype"):
            module(D, H)(torch.zeros(S, B, D, dtype=torch.float64))
