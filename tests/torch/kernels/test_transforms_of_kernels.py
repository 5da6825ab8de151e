"""PyTorch's transformations of a call with ``kernel_backend="triton"``: compile, map, trace, differentiate it twice."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_impl import MLSTMState, SLSTMState, gru, mlstm, mlstm_step, slstm, slstm_step

# Largest difference between the two backends, relative to the largest element, over what follows: 1e-6.
BOUND = 1e-5


def draw(device, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def mlstm_shapes(*lead: int, N: int = 2, K: int = 3, V: int = 4) -> list[tuple[int, ...]]:
    return [(*lead, N, K), (*lead, N, K), (*lead, N, V), (*lead, N), (*lead, N)]


STATE = [(2, 2, 3, 4), (2, 2, 3), (2, 2)]
WEIGHTS = (2, 3, 3)


def dense(backend, *x):
    h, last = mlstm(*x[:5], initial_state=MLSTMState(*x[5:]), return_state=True, kernel_backend=backend)
    return h, *last


def packed(backend, *x):
    bounds = torch.tensor([0, 2, 6], device=x[0].device)
    return (mlstm(*x, cu_seqlens=bounds, kernel_backend=backend),)


def step(backend, *x):
    h, last = mlstm_step(*x[:5], MLSTMState(*x[5:]), kernel_backend=backend)
    return h, *last


def gru_dense(backend, *x):
    return gru(*x, kernel_backend=backend, gradient_clipping=0.5)


def gru_packed(backend, *x):
    return gru(*x[:6], None, None, torch.tensor([0, 2, 6], device=x[0].device), kernel_backend=backend)


def gru_reset_after(backend, *x):
    return gru(*x[:7], reset_after=True, recurrent_bias=x[7], kernel_backend=backend)


def slstm_dense(backend, *x):
    c, n, m, h = x[8:]
    state = SLSTMState(c, n.exp(), m, h)
    y, last = slstm(*x[:8], initial_state=state, return_state=True, gradient_clipping=0.5, kernel_backend=backend)
    return y, *last


def slstm_packed(backend, *x):
    bounds = torch.tensor([0, 2, 6], device=x[0].device)
    return (slstm(*x, forget_gate="exp", cu_seqlens=bounds, kernel_backend=backend),)


def one_slstm_step(backend, *x):
    c, n, m, h = x[8:]
    y, last = slstm_step(*x[:8], SLSTMState(c, n.exp(), m, h), kernel_backend=backend)
    return y, *last


# The heads of the GRU differ: one input head and two weight heads serve two.
CASES = {
    "mlstm": (dense, [*mlstm_shapes(2, 5), *STATE]),
    "mlstm packed": (packed, mlstm_shapes(6)),
    "mlstm_step": (step, [*mlstm_shapes(2), *STATE]),
    "gru": (gru_dense, [(2, 4, 1, 3), WEIGHTS, (2, 4, 2, 3), WEIGHTS, (2, 4, 1, 3), (1, 3, 3), (2, 2, 3)]),
    "gru packed": (gru_packed, [(6, 2, 3), WEIGHTS] * 3),
    "gru reset after": (gru_reset_after, [*[(2, 4, 2, 3), (1, 3, 3)] * 3, (2, 2, 3), (1, 3)]),
    "slstm": (slstm_dense, [*[(2, 4, 2, 3)] * 4, *[WEIGHTS] * 4, *[(2, 2, 3)] * 4]),
    "slstm packed": (slstm_packed, [*[(6, 2, 3)] * 4, *[WEIGHTS] * 4]),
    "slstm_step": (one_slstm_step, [*[(2, 2, 3)] * 4, *[WEIGHTS] * 4, *[(2, 2, 3)] * 4]),
}


def scalar(function, backend, arrays) -> torch.Tensor:
    return sum((y.sin().sum() for y in function(backend, *arrays)), torch.zeros((), device=arrays[0].device))


def gradients(function, backend):
    """A function of the arrays: the gradients of `scalar`."""

    def of(*arrays):
        return torch.func.grad(lambda *x: scalar(function, backend, x), argnums=tuple(range(len(arrays))))(*arrays)

    return of


def agree(found, expected) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert (x - y).abs().max() <= BOUND * y.abs().max() + 1e-30


@pytest.mark.parametrize("name", CASES)
def test_compiled_without_a_break(name, device) -> None:
    function, shapes = CASES[name]
    arrays = [x.requires_grad_() for x in draw(device, *shapes)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: function("triton", *x), fullgraph=True, backend="aot_eager")
    found = sum(y.sin().sum() for y in compiled(*arrays))
    agree(torch.autograd.grad(found, arrays), gradients(function, "torch")(*(x.detach() for x in arrays)))


@pytest.mark.parametrize("name", CASES)
def test_mapped(name, device) -> None:
    function, shapes = CASES[name]
    arrays = draw(device, *((2, *shape) for shape in shapes))
    agree(*(torch.func.vmap(gradients(function, backend))(*arrays) for backend in ("triton", "torch")))


@pytest.mark.parametrize("name", CASES)
def test_traced(name, device) -> None:
    """The operators stand in the graph as they are, the gradient's beside the forward one, and give what was traced."""
    function, shapes = CASES[name]
    arrays = draw(device, *shapes)
    traced = make_fx(gradients(function, "triton"))(*arrays)
    operators = [str(node.target) for node in traced.graph.nodes if "gatespec" in str(node.target)]
    kind = name.partition(" ")[0].replace("slstm_step", "slstm")
    backward = "mlstm_backward" if kind == "mlstm_step" else f"{kind}_backward"
    assert operators == [f"gatespec.{kind}_forward.default", f"gatespec.{backward}.default"]
    agree(traced(*arrays), gradients(function, "torch")(*arrays))


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_known_without_running(name, device, monkeypatch) -> None:
    from torch_impl._mlstm.triton import launch as mlstm_kernels
    from torch_impl._recurrent.triton import launch as recurrent_kernels

    function, shapes = CASES[name]
    arrays = draw(device, *shapes)
    expected = function("triton", *arrays)
    for module in (recurrent_kernels, mlstm_kernels):
        monkeypatch.setattr(module, "launch", lambda *args, **constants: pytest.fail("a kernel was launched"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = function("triton", *(mode.from_tensor(x) for x in arrays))
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype, x.stride(), x.device) == (y.shape, y.dtype, y.stride(), y.device)


@pytest.mark.parametrize("name", ["mlstm", "gru", "slstm"])
def test_a_second_derivative_is_refused_by_name(name, device) -> None:
    function, shapes = CASES[name]
    arrays = [x.requires_grad_() for x in draw(device, *shapes)]
    (first, *_) = torch.autograd.grad(scalar(function, "triton", arrays), arrays, create_graph=True)
    with pytest.raises(RuntimeError, match=f"^{name}: second derivatives are not available"):
        torch.autograd.grad(first.sum(), arrays)


def test_opcheck_of_the_gru(device) -> None:
    operators = torch.ops.gatespec
    x, W, xf, Wf, xr, Wr, h0 = draw(device, *CASES["gru"][1])
    y, last = operators.gru_forward(x, W, xf, Wf, xr, Wr, h0, None, None, 0.5, False, "triton", ("output",))
    flat = draw(device, *CASES["gru packed"][1])
    bounds = torch.tensor([0, 2, 6], device=device)
    *after, bias = draw(device, *CASES["gru reset after"][1])
    after = (*after, bias, None, None, True, "triton")
    h, h_last = operators.gru_forward(*after, ("output",))
    for operator, arguments in (
        (operators.gru_forward, (x, W, xf, Wf, xr, Wr, h0, None, None, 0.5, False, "triton", ("output",))),
        (operators.gru_forward, (*flat, None, None, bounds, None, False, "triton", ())),
        (operators.gru_backward, (x, W, xf, Wf, xr, Wr, h0, None, None, 0.5, False, "triton", y, last, [y])),
        (operators.gru_forward, (*after, ("output",))),
        (operators.gru_forward, (*(x.bfloat16() for x in flat), None, None, bounds, None, False, "triton", ("h",))),
        (operators.gru_backward, (*after, h, h_last, [h])),
    ):
        torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))
