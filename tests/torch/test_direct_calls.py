"""A plain call on a CPU runs an operator's implementation without PyTorch's dispatcher; whoever watches operators sees
each one nevertheless."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_impl import MLSTMState, gated_delta_rule, gated_delta_step, gru, mlstm, mlstm_step
from torch_impl._gated_delta_rule import autograd as delta
from torch_impl._gru.autograd import GRU
from torch_impl._mlstm.autograd import SEQUENCES, STEP

B, S, N, H = 2, 5, 2, 4


def arrays(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def step(*x):
    h, state = mlstm_step(*x[:5], MLSTMState(*x[5:]))
    return (h, *state)


def packed(*x):
    return (mlstm(*x, cu_seqlens=torch.tensor([0, 2, S])),)


CALLS = {
    "step": (STEP, step, arrays(*[(B, N, H)] * 3, *[(B, N)] * 2, (B, N, H, H), (B, N, H), (B, N))),
    "dense": (SEQUENCES, lambda *x: (mlstm(*x),), arrays(*[(B, S, N, H)] * 3, *[(B, S, N)] * 2)),
    "packed": (SEQUENCES, packed, arrays(*[(S, N, H)] * 3, *[(S, N)] * 2)),
    "delta": (delta.SEQUENCES, gated_delta_rule, arrays(*[(B, S, N, H)] * 3, *[(B, S, N)] * 2)),
    "delta step": (delta.STEP, gated_delta_step, arrays(*[(B, N, H)] * 3, *[(B, N)] * 2, (B, N, H, H))),
    "gru": (GRU, gru, arrays(*[(B, S, N, H), (N, H, H)] * 3)),
}


@pytest.fixture(params=CALLS)
def call(request):
    return CALLS[request.param]


def name_of(operation):
    return f"gatespec::{operation.name}_forward"


@pytest.fixture
def reached(call, monkeypatch):
    """The number of calls of the operator."""
    operation, calls = call[0], []
    operator = operation.operator

    def counted(*args):
        calls.append(args)
        return operator(*args)

    monkeypatch.setattr(operation, "operator", counted)
    return calls


def test_a_plain_call_is_direct_and_gives_what_the_operator_gives(call, reached, monkeypatch):
    _, function, x = call
    direct = function(*x)
    assert not reached
    monkeypatch.setattr("torch_impl._differentiable.unobserved", lambda *tensors: False)
    for y, expected in zip(direct, function(*x), strict=True):
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        assert y._is_view() == expected._is_view() and y._version == expected._version
        assert y.stride() == expected.stride() and y.requires_grad == expected.requires_grad
    assert len(reached) == 1


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name() if hasattr(func, "name") else "")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Seen, SeenFunctions])
def test_a_mode_sees_the_operator(call, mode):
    operation, function, x = call
    with mode() as seen:
        function(*x)
    assert name_of(operation) in seen.names


def test_a_profiler_sees_the_operator(call):
    operation, function, x = call
    # Without `acc_events`, PyTorch 2.11 warns that there are no events of earlier cycles.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        function(*x)
    assert name_of(operation) in {event.name for event in profile.events()}


def test_autocast_reaches_the_operator_and_is_off_in_it(call, reached):
    _, function, x = call
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(*x)[0].dtype is torch.bfloat16
    assert len(reached) == 1


def test_a_trace_contains_the_operator(call):
    operation, function, x = call
    graph = make_fx(lambda x: function(*x))(x).graph
    assert any(str(node.target) == f"gatespec.{operation.name}_forward.default" for node in graph.nodes)


class Subclass(torch.Tensor):
    """A tensor that is computed as a plain one."""


def test_other_tensors_reach_the_operator(call, reached):
    _, function, x = call
    function(x[0].as_subclass(Subclass), *x[1:])
    function(torch._neg_view(x[0]), *x[1:])
    with torch.inference_mode():
        function(x[0] + 1, *x[1:])
    with FakeTensorMode() as mode:
        function(*map(mode.from_tensor, x))
    assert len(reached) == 4


SHAPES = {
    SEQUENCES: lambda S: [*[(B, S, N, H)] * 3, *[(B, S, N)] * 2, (B, N, H, H), (B, N, H), (B, N)],
    GRU: lambda S: [*[(B, S, N, H), (N, H, H)] * 3, (B, N, H)],
}


def assert_apart(tensors):
    places = [x.untyped_storage().data_ptr() for x in tensors if x.numel()]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("steps", [0, 1, S])
@pytest.mark.parametrize("operation", SHAPES, ids=lambda operation: operation.name)
def test_outputs_share_no_memory(operation, steps):
    """Implementations run below the part of PyTorch that records views; it would not notice that two outputs do."""
    x = arrays(*SHAPES[operation](steps))
    arguments = operation.arguments(*x)
    keep = operation.implementations["torch"].residuals._fields
    with torch.no_grad():
        outputs = operation.operator(*arguments, keep)
        cotangents = operation.cotangents(*outputs[: len(operation.results._fields)])
        gradients = operation.gradients(arguments, cotangents, operation.residuals_of(arguments, keep, outputs))
    assert_apart([*x, *outputs, *gradients])


def test_outputs_of_a_step_share_no_memory():
    _, function, x = CALLS["step"]
    assert_apart([*x, *function(*x)])
