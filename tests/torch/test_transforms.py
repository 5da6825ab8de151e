"""PyTorch's transformations in ways that no law tries: compiled for any size, one argument mapped, autocast."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

from tests.torch.functions import fwbw, step, with_state
from tests.torch.loops import cotangents, delta_arguments, gru_arguments, mlstm_arguments, relative_error
from torch_impl import MLSTMState, causal_forget_matrix, dtilde_matrix, gated_delta_rule, gated_delta_step, gru, mlstm
from torch_impl._mlstm import composed

BOUNDS = [0, 5, 5, 12]


mlstm_dense = with_state(chunk_size=4)
by_fwbw = fwbw(chunk_size=4, keep_G=True, keep_M=True, keep_c=True)


def mlstm_packed(q, k, v, i, f, C, n, m, cu_seqlens):
    state = MLSTMState(C, n, m)
    h, last = mlstm(q, k, v, i, f, initial_state=state, return_state=True, cu_seqlens=cu_seqlens, max_seqlen=7)
    return h, *last


def gru_dense(*arrays):
    return gru(*arrays, gradient_clipping=0.3)


def gru_packed(*arrays):
    return gru(*arrays[:-1], 0.3, arrays[-1], 7)


def delta_dense(*arrays):
    return gated_delta_rule(*arrays[:5], initial_state=arrays[5], qk_norm_eps=0.1, chunk_size=4)


def delta_packed(*arrays):
    return gated_delta_rule(*arrays[:5], initial_state=arrays[5], cu_seqlens=arrays[6], max_seqlen=7, chunk_size=4)


def dtilde(igate, fgate):
    return (dtilde_matrix(igate, fgate).nan_to_num(0.0, 0.0, 0.0),)


def without_head(arrays):
    return [x.squeeze(2 if number < 5 else 1) for number, x in enumerate(arrays)]


dense = mlstm_arguments(2, 10, 2, 3, 4, with_state=True)
packed = mlstm_arguments(3, 12, 2, 3, 4, with_state=True, packed=True)
gates = mlstm_arguments(2, 5, 1, 1, 1)
CASES = {
    "mlstm": (mlstm_dense, dense),
    "mlstm packed": (mlstm_packed, packed),
    "mlstm_step": (step, [x[:, 0] if number < 5 else x for number, x in enumerate(dense)]),
    "gru": (gru_dense, gru_arguments(2, 6, 3, (4, 2, 1, 4, 2, 1), with_state=True)),
    "gru packed": (gru_packed, gru_arguments(3, 12, 3, (4, 2, 1, 4, 2, 1), with_state=True, packed=True)),
    "gated_delta_rule": (delta_dense, delta := delta_arguments(2, 10, 3, 4, (2, 1, 4, 2, 4))),
    "gated_delta_rule packed": (delta_packed, delta_arguments(3, 12, 3, 4, (2, 1, 4, 2, 4), packed=True)),
    "gated_delta_step": (gated_delta_step, [x[:, 0] if number < 5 else x for number, x in enumerate(delta)]),
    "fwbw": (by_fwbw, without_head(mlstm_arguments(2, 10, 1, 3, 4, with_state=True))),
    "dtilde": (dtilde, gates[3:]),
}


@pytest.fixture(params=CASES)
def case(request):
    """The function, its floating arguments, and a scalar of them that weighs every output."""
    function, arrays = CASES[request.param]
    arrays = [x.detach().clone() for x in arrays]
    if "packed" in request.param:
        bounds, of_arrays = torch.tensor(BOUNDS, dtype=torch.int32), function

        def function(*arrays):
            return of_arrays(*arrays, bounds)

    weights = cotangents(function(*arrays))

    def loss(*arrays):
        return sum((y * d).sum() for y, d in zip(function(*arrays), weights, strict=True))

    leaves = [x.clone().requires_grad_() for x in arrays]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    everything = tuple(range(len(arrays)))
    yield SimpleNamespace(
        name=request.param, function=function, arrays=arrays, loss=loss, gradients=expected, everything=everything
    )
    torch._dynamo.reset()


def agree(got, expected, bound=1e-12):
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == y.dtype and relative_error(x, y) < bound


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager", **options})


def test_compile_for_any_size(case):
    leaves = [x.clone().requires_grad_() for x in case.arrays]
    function = compiled(case.loss, dynamic=True)
    agree(torch.autograd.grad(function(*leaves), leaves), case.gradients)
    agree(compiled(case.function, dynamic=True)(*case.arrays), case.function(*case.arrays))


def test_compile_with_changing_chunk_size_and_room():
    function = compiled(lambda *x, **options: mlstm(*x, **options)[0])
    q, k, v, i, f = (x.detach() for x in torch.randn(5, 12, 2, 3, dtype=torch.float64))
    packed = (q, k, v, i[..., 0], f[..., 0])
    for chunk_size, room in ((4, 7), (5, 8), (7, 12)):
        options = {"cu_seqlens": torch.tensor([0, 5, 12]), "max_seqlen": room, "chunk_size": chunk_size}
        agree([function(*packed, **options)], [mlstm(*packed, **options)[0]])
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_compile_with_inductor():
    loss = compiled(lambda *arrays: sum(y.square().sum() for y in mlstm_dense(*arrays)), backend="inductor")
    leaves = [x.detach().clone().requires_grad_() for x in dense]
    expected = torch.autograd.grad(sum(y.square().sum() for y in mlstm_dense(*leaves)), leaves)
    agree(torch.autograd.grad(loss(*leaves), leaves), expected)
    torch._dynamo.reset()


def stacked(arrays):
    return [torch.stack([x, 0.5 * x, x + 0.1]) for x in arrays]


def by_row(function, arrays):
    rows = [function(*(x[b] for x in arrays)) for b in range(3)]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def test_vmap_over_one_argument(case):
    arrays = stacked(case.arrays)
    for only in case.everything:
        in_dims = [0 if number == only else None for number in case.everything]
        mixed = [x if dim == 0 else x[0] for x, dim in zip(arrays, in_dims, strict=True)]
        expected = by_row(
            case.function, [x if dim == 0 else x.expand(3, *x.shape) for x, dim in zip(mixed, in_dims, strict=True)]
        )
        agree(vmap(case.function, in_dims=tuple(in_dims))(*mixed), expected)


def test_vmap_of_the_last_axis_and_nested(case):
    arrays = stacked(case.arrays)
    expected = by_row(case.function, arrays)
    last = [x.movedim(0, -1) for x in arrays]
    agree(vmap(case.function, in_dims=-1, out_dims=0)(*last), expected)
    twice = [torch.stack([x, x], 1) for x in arrays]
    agree([y[:, 1] for y in vmap(vmap(case.function))(*twice)], expected)


def test_grad_of_vmap(case):
    arrays = stacked(case.arrays)
    expected = by_row(grad(case.loss, case.everything), arrays)
    agree(grad(lambda *x: vmap(case.loss)(*x).sum(), case.everything)(*arrays), expected)
    leaves = [x.clone().requires_grad_() for x in arrays]
    agree(torch.autograd.grad(vmap(case.loss)(*leaves).sum(), leaves), expected)


@pytest.mark.parametrize("case", ["mlstm", "gru packed"], indirect=True)
def test_compile_of_vmap_of_grad(case):
    arrays = stacked(case.arrays)
    one = vmap(grad(case.loss, case.everything))
    agree(compiled(one)(*arrays), one(*arrays))


def test_reentrant_checkpoint(case):
    leaves = [x.clone().requires_grad_() for x in case.arrays]
    checkpoint(case.loss, *leaves, use_reentrant=True).backward()
    agree([x.grad for x in leaves], case.gradients)


def test_checkpoint_of_a_call_that_returns_a_state():
    def call(*arrays):
        return mlstm(*arrays, return_state=True)

    leaves = [x.detach().clone().requires_grad_() for x in dense[:5]]
    expected = torch.autograd.grad(call(*leaves)[1].C.square().sum(), leaves[1:])
    state = checkpoint(call, *leaves, use_reentrant=False)[1]
    agree(torch.autograd.grad(state.C.square().sum(), leaves[1:]), expected)
    # PyTorch's other form loses it, as docs/transforms.md says.
    assert not checkpoint(call, *leaves, use_reentrant=True)[1].C.requires_grad


def test_packings_that_differ_along_a_vmapped_axis():
    bounds = torch.tensor([[0, 5, 5, 12], [0, 1, 2, 12], [0, 0, 0, 12]])
    for function, arrays in (
        (mlstm_packed, packed),
        (gru_packed, CASES["gru packed"][1]),
        (delta_packed, CASES["gated_delta_rule packed"][1]),
    ):
        arrays = stacked([x.detach() for x in arrays])
        function = compiled_free(function)
        agree(vmap(function)(*arrays, bounds), by_row(function, [*arrays, bounds]))

        def loss(*arguments, function=function):
            return sum(y.square().sum() for y in function(*arguments))

        one = grad(loss, tuple(range(len(arrays))))
        agree(vmap(one)(*arrays, bounds), by_row(one, [*arrays, bounds]))


def compiled_free(function):
    """Without the promise about the longest sequence."""
    if function is mlstm_packed:
        return lambda *a: (lambda h, last: (h, *last))(
            *mlstm(*a[:5], initial_state=a[5:8], return_state=True, cu_seqlens=a[8])
        )
    if function is delta_packed:
        return lambda *a: gated_delta_rule(*a[:5], initial_state=a[5], cu_seqlens=a[6])
    return lambda *a: gru(*a[:-1], 0.3, a[-1])


@pytest.mark.parametrize("bounds", [[1, 5, 5, 12], [0, 9, 5, 99]], ids=str)
def test_bad_packings_that_no_check_can_read_never_reach_memory(bounds):
    """Inside a compiled function the operator itself refuses them."""
    for function, arrays in (
        (mlstm_packed, packed),
        (gru_packed, CASES["gru packed"][1]),
        (delta_packed, CASES["gated_delta_rule packed"][1]),
    ):
        arrays = [x.detach() for x in arrays]
        with pytest.raises(ValueError, match="`cu_seqlens` is an array that"):
            compiled(compiled_free(function))(*arrays, torch.tensor(bounds))
        torch._dynamo.reset()


OPERATORS = torch.ops.gatespec


def test_opcheck():
    q, k, v, i, f, C, n, m = (x.detach() for x in dense)
    dh = torch.ones_like(v)
    bounds = torch.tensor(BOUNDS)
    token_arrays = [x.detach() for x in packed]
    stateless = None, None, None, bounds, 0, 0.0, True, False, "torch"
    keep = composed.Residuals._fields
    kept = OPERATORS.mlstm_forward(q, k, v, i, f, C, n, m, None, 4, 0.1, True, True, "torch", keep)[4:]
    x = [y.detach() for y in CASES["gru"][1]]
    xp = [y.detach() for y in CASES["gru packed"][1]]
    states = ("z", "rf", "states")
    _, _, *walked = OPERATORS.gru_forward(*x, None, None, None, False, "torch", states)
    bias, dy = x[1].new_ones(x[1].shape[:2]), x[1].new_ones(2, 6, 4, 3)
    _, _, *walked_after = OPERATORS.gru_forward(*x, bias, None, None, True, "torch", states)
    igate, fgate = (y.detach() for y in gates[3:])
    *tokens, S = (y.detach() for y in CASES["gated_delta_rule"][1])
    *packed_tokens, packed_S = (y.detach() for y in CASES["gated_delta_rule packed"][1])
    options, do = (0.5, 0.1, 4, "torch"), tokens[2].new_ones(2, 10, 4, 4)
    _, _, *starts = OPERATORS.gated_delta_rule_forward(*tokens, S, None, *options, ("starts",))
    packed_call = *packed_tokens, packed_S, bounds, *options
    _, _, *packed_starts = OPERATORS.gated_delta_rule_forward(*packed_call, ("starts",))
    for operator, arguments in (
        (OPERATORS.mlstm_forward, (q, k, v, i, f, C, n, m, None, 4, 0.1, True, True, "torch", keep)),
        (OPERATORS.mlstm_forward, (q, k, v, i, f, None, None, None, None, 0, 0.0, False, True, "torch", ())),
        (OPERATORS.mlstm_forward, (*token_arrays, bounds, 0, 0.0, True, True, "torch", ())),
        (OPERATORS.mlstm_forward, (*token_arrays[:5], *stateless, ())),
        (OPERATORS.mlstm_backward, (*token_arrays[:5], *stateless, token_arrays[2], None, None, None, [])),
        (
            OPERATORS.mlstm_backward,
            (q, k, v, i, f, C, n, m, None, 4, 0.1, True, True, "torch", dh, C, n, m, kept),
        ),
        (
            OPERATORS.mlstm_backward,
            (q, k, v, i, f, None, None, None, None, 0, 0.0, True, True, "torch", dh, None, None, m, []),
        ),
        (OPERATORS.mlstm_step_forward, (q[:, 0], k[:, 0], v[:, 0], i[:, 0], f[:, 0], C, n, m, 0.0, "torch", ())),
        (OPERATORS.gru_forward, (*x, None, None, 0.5, False, "torch", states)),
        (OPERATORS.gru_forward, (*x, bias, None, 0.5, True, "torch", states)),
        (OPERATORS.gru_forward, (*xp, None, bounds, None, False, "torch", ())),
        (OPERATORS.gru_backward, (*x, None, None, 0.5, False, "torch", dy, x[6], walked)),
        (OPERATORS.gru_backward, (*x, bias, None, 0.5, True, "torch", dy, x[6], walked_after)),
        (OPERATORS.gated_delta_rule_forward, (*tokens, S, None, *options, ("starts",))),
        (OPERATORS.gated_delta_rule_forward, (*tokens[:4], None, None, None, *options, ())),
        (OPERATORS.gated_delta_rule_forward, (*packed_call, ())),
        (OPERATORS.gated_delta_rule_backward, (*tokens, S, None, *options, do, S, starts)),
        (OPERATORS.gated_delta_rule_backward, (*tokens[:4], None, None, None, *options, do, None, [None])),
        (OPERATORS.gated_delta_rule_backward, (*packed_call, None, packed_S, packed_starts)),
        (OPERATORS.gated_delta_step_forward, (*(x[:, 0] for x in tokens), S, 0.5, 0.1, "torch", ())),
        (OPERATORS.dtilde_matrix_forward, (igate, fgate, "torch")),
        (OPERATORS.dtilde_matrix_backward, (torch.ones(2, 5, 5).double(), fgate, "torch")),
    ):
        torch.library.opcheck(operator.default, arguments)


def test_no_gradient_is_uninitialised_memory(monkeypatch):
    """The operator has an output for the gradient of a bias that is not given, too."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    x = [y.detach() for y in CASES["gru"][1]]
    dy = x[1].new_ones(2, 6, 4, 3)
    torch.use_deterministic_algorithms(True)
    try:
        _, _, *walked = OPERATORS.gru_forward(*x, None, None, None, False, "torch", ("z", "rf", "states"))
        gradients = OPERATORS.gru_backward(*x, None, None, None, False, "torch", dy, x[6], walked)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(gradient.isnan().any() for gradient in gradients)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast(low):
    """Values and weights in autocast's dtype, gates and states in float32, whatever they come in."""
    arrays = [x.detach().float().requires_grad_() for x in dense]
    with torch.autocast("cpu", dtype=low):
        outputs = mlstm_dense(*arrays)
        stepped = step(*(x[:, 0] if number < 5 else x for number, x in enumerate(arrays)))
    cast = [x.detach().to(low) for x in arrays[:3]] + [x.detach() for x in arrays[3:]]
    agree(outputs, mlstm_dense(*cast))
    assert outputs[0].dtype == stepped[0].dtype == low and outputs[1].dtype == torch.float32
    found = torch.autograd.grad(outputs, arrays, cotangents(outputs))
    leaves = [x.clone().requires_grad_() for x in cast]
    expected = torch.autograd.grad(mlstm_dense(*leaves), leaves, cotangents(outputs))
    agree(found, [x.float() for x in expected])

    arrays = [x.detach().float().requires_grad_() for x in CASES["gru"][1]]
    with torch.autocast("cpu", dtype=low):
        outputs = gru_dense(*arrays)
        inside = torch.autograd.grad(outputs, arrays, cotangents(outputs), retain_graph=True)
    assert [y.dtype for y in outputs] == [low, torch.float32]
    agree(outputs, gru_dense(*(x.detach().to(low) for x in arrays[:6]), arrays[6].detach()))
    agree(inside, torch.autograd.grad(outputs, arrays, cotangents(outputs)))

    arrays = [x.detach().float() for x in delta]
    with torch.autocast("cpu", dtype=low):
        outputs = delta_dense(*arrays)
        stepped = gated_delta_step(*(x[:, 0] for x in arrays[:5]), arrays[5])
    assert [y.dtype for y in (*outputs, *stepped)] == [low, torch.float32] * 2
    agree(outputs, delta_dense(*(x.to(low) for x in arrays[:3]), *arrays[3:]))
    with torch.autocast("cpu", dtype=low):
        assert dtilde_matrix(gates[3].to(low), gates[4].float()).dtype == torch.float32
        assert causal_forget_matrix(gates[3].to(low)[..., 0]).dtype == torch.float32
        assert mlstm(*(x.detach() for x in dense[:5])).dtype == torch.float64


def test_autocast_of_fwbw_and_compile():
    arrays = [x.detach().float() for x in CASES["fwbw"][1]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, *_ = by_fwbw(*arrays)
        again, *_ = compiled(by_fwbw)(*arrays)
    assert h.dtype == torch.bfloat16 and torch.equal(h, again)
    torch._dynamo.reset()


def test_autocast_leaves_the_operators_in_their_own_precision():
    """With 16-bit products inside, states would be wrong by 1e-3."""
    arrays = [x.detach() for x in dense]
    half = [x.bfloat16() for x in arrays[:3]] + [x.float() for x in arrays[3:]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mlstm_dense(*half)
    agree(inside, mlstm_dense(*half))


def test_fake_tensors(case):
    expected = [(y.shape, y.dtype) for y in case.function(*case.arrays)]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in case.arrays]
        assert [(y.shape, y.dtype) for y in case.function(*fakes)] == expected


def test_meta_tensors():
    arrays = [x.detach().to("meta") for x in dense]
    h, C, _, m = mlstm_dense(*arrays)
    assert h.is_meta and h.shape == (2, 10, 2, 4) and C.shape == (2, 2, 3, 4) and m.shape == (2, 2)
    assert gru_dense(*(x.detach().to("meta") for x in CASES["gru"][1]))[0].shape == (2, 6, 4, 3)
    o, S = delta_dense(*(x.detach().to("meta") for x in delta))
    assert o.is_meta and o.shape == (2, 10, 4, 4) and S.shape == (2, 4, 3, 4)


def test_inference_mode():
    arrays = [x.detach() for x in dense]
    with torch.inference_mode():
        agree(mlstm_dense(*arrays), [y.clone() for y in mlstm_dense(*arrays)])
        agree(gru_dense(*(x.detach() for x in CASES["gru"][1])), gru_dense(*(x.detach() for x in CASES["gru"][1])))


def test_maps_over_an_axis_of_size_0():
    """With weights that are not mapped, with packings that are, and nested; tests/both has the other maps."""
    x = [torch.zeros(0, 1, 5, 2, 3), torch.ones(2, 3, 3)] * 3
    y, h = vmap(gru, in_dims=(0, None) * 3)(*x)
    assert (y.shape, h.shape) == ((0, 1, 5, 2, 3), (0, 1, 2, 3))
    shapes = [(5, 2, 3)] * 3 + [(5, 2)] * 2
    ends = torch.zeros(0, 3, dtype=torch.int64)
    tokens = [torch.zeros(0, *shape) for shape in shapes]
    assert vmap(lambda ends, *x: mlstm(*x, cu_seqlens=ends))(ends, *tokens).shape == (0, 5, 2, 3)
    nested = vmap(vmap(mlstm))(*(torch.zeros(2, 0, 1, *shape) for shape in shapes))
    assert nested.shape == (2, 0, 1, 5, 2, 3)
