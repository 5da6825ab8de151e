"""Programs that torch.export and torch.jit.trace record: any batch and length, with and without gradients."""

import io

import pytest
import torch
from torch.export import Dim, export

from tests.torch.loops import cotangents, delta_arguments, gru_arguments, mlstm_arguments, relative_error
from torch_impl import (
    GRU,
    MLSTMState,
    causal_forget_matrix,
    dtilde_matrix,
    fwbw_backward,
    fwbw_forward,
    gated_delta_rule,
    gated_delta_step,
    gru,
    mlstm,
    mlstm_step,
    mLSTMBackendFwbw,
    rev_cumsum_off,
)

CONFIG = dict(return_state=True, use_initial_state=True, chunk_size=4, keep_G=True, keep_c=True)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, arrays, state=None, bounds=None):
        return self.function(arrays, state, bounds)


def whole(arrays, state, bounds):
    return mlstm(*arrays, initial_state=state, return_state=True, cu_seqlens=bounds)


def step(arrays, state, bounds):
    return mlstm_step(*arrays, state)


def recurrent(arrays, state, bounds):
    return gru(*arrays, state, 0.3, bounds)


def delta(arrays, state, bounds):
    return gated_delta_rule(*arrays, initial_state=state, cu_seqlens=bounds, chunk_size=4)


def delta_step(arrays, state, bounds):
    return gated_delta_step(*arrays, state)


def by_hand(arrays, state, bounds):
    """The backward pass called as a function, as an optimiser without autograd would."""
    (h, last), context = fwbw_forward(*arrays, CONFIG, *state)
    return h, last, fwbw_backward(context, h.cos(), CONFIG, *last)


layer = mLSTMBackendFwbw(CONFIG)
B, S, T = Dim("B", min=2), Dim("S"), Dim("T")
TOKENS, STATE, PACKED = {0: B, 1: S}, {0: B}, {0: T}


def mlstm_case(B, S, packed=False):
    arrays = [x.detach() for x in mlstm_arguments(B, S, 2, 3, 4, with_state=True, packed=packed)]
    return arrays[:5], MLSTMState(*arrays[5:])


def step_case(B, S):
    tokens, state = mlstm_case(B, S)
    return [x[:, 0] for x in tokens], state


def fwbw_case(B, S):
    tokens, state = mlstm_case(B, S)
    return [x[:, :, 0] for x in tokens], [x[:, 0] for x in state]


def gru_case(B, S, packed=False):
    *arrays, state = (x.detach() for x in gru_arguments(B, S, 3, (4, 2, 1, 4, 2, 1), with_state=True, packed=packed))
    return arrays, state


def delta_case(B, S, packed=False):
    *arrays, state = (x.detach() for x in delta_arguments(B, S, 3, 4, (2, 1, 4, 2, 4), packed=packed))
    return arrays, state


def delta_step_case(B, S):
    tokens, state = delta_case(B, S)
    return [x[:, 0] for x in tokens], state


def gates_case(B, S):
    return [x[..., None] for x in mlstm_case(B, S)[0][3:]], None


def log_gates_case(B, S):
    return [-mlstm_case(B, S)[0][4].abs().movedim(1, -1).contiguous()], None


def per_case(operation):
    return lambda arrays, state, bounds: operation(*arrays)


GRU_TOKENS = [TOKENS, {}] * 3
CASES = {
    "mlstm": (whole, mlstm_case, [TOKENS] * 5, MLSTMState(STATE, STATE, STATE)),
    "mlstm_step": (step, step_case, [STATE] * 5, MLSTMState(STATE, STATE, STATE)),
    "gru": (recurrent, gru_case, GRU_TOKENS, STATE),
    "gated_delta_rule": (delta, delta_case, [TOKENS] * 5, STATE),
    "gated_delta_step": (delta_step, delta_step_case, [STATE] * 5, STATE),
    "fwbw": (lambda arrays, state, bounds: layer(*arrays, *state), fwbw_case, [TOKENS] * 5, [STATE] * 3),
    "fwbw by hand": (by_hand, fwbw_case, [TOKENS] * 5, [STATE] * 3),
    "dtilde_matrix": (per_case(dtilde_matrix), gates_case, [TOKENS] * 2, None),
    "causal_forget_matrix": (per_case(causal_forget_matrix), log_gates_case, [{0: B, 2: S}], None),
    "rev_cumsum_off": (per_case(rev_cumsum_off), log_gates_case, [{0: B, 2: S}], None),
}
BOUNDS = torch.tensor([0, 3, 3, 10])


def reloaded(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def flat(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if x is not None]


def with_gradients(arguments):
    def leaf(x):
        return x.detach().clone().requires_grad_() if x.is_floating_point() else x

    return torch.utils._pytree.tree_map_only(torch.Tensor, leaf, arguments)


def agree(got, expected):
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert relative_error(x.nan_to_num(0.0, 0.0, 0.0), y.nan_to_num(0.0, 0.0, 0.0)) < 1e-12


def gradients(function, arguments):
    arguments = with_gradients(arguments)
    leaves = [x for x in flat(arguments) if x.is_floating_point()]
    outputs = [y.nan_to_num(0.0, 0.0, 0.0) for y in flat(function(*arguments))]
    return torch.autograd.grad(outputs, leaves, cotangents(outputs))


def same(program, function, arguments, differentiable=True):
    agree(flat(program(*arguments)), flat(function(*arguments)))
    with torch.no_grad():
        agree(flat(program(*arguments)), flat(function(*arguments)))
    if differentiable:
        agree(gradients(program, arguments), gradients(function, arguments))


@pytest.mark.parametrize("name, strict", [*((name, False) for name in CASES), ("mlstm", True)])
def test_export(name, strict):
    """Exported at one size, saved, loaded, and run at others, on both sides of what the backward pass recomputes."""
    function, case, tokens, state = CASES[name]
    module = Function(function)
    example = case(2, 10)
    if strict:
        example = with_gradients(example)
    shapes = {"arrays": tokens, "state": state, "bounds": None}
    program = export(module, (*example, None), dynamic_shapes=shapes, strict=strict)
    module, program = (lambda *x: function(*x, None)), reloaded(program)
    for sizes in ((3, 7), (2, 300)) if name in ("mlstm", "gru", "gated_delta_rule", "fwbw") else ((3, 7),):
        same(lambda *x: program(*x, None), module, case(*sizes), differentiable=name != "fwbw by hand")


@pytest.mark.parametrize("name", ["mlstm", "gru", "gated_delta_rule"])
def test_export_of_packed_sequences(name):
    function, case, tokens, state = CASES[name]
    tokens = [PACKED if shape is TOKENS else shape for shape in tokens]
    shapes = {"arrays": tokens, "state": state, "bounds": {0: B + 1}}
    example = case(3, 10, packed=True)
    program = reloaded(export(Function(function), (*example, BOUNDS), dynamic_shapes=shapes))
    for bounds in ([0, 4, 10], [0, 300, 300, 300, 301]):
        arguments = *case(len(bounds) - 1, bounds[-1], packed=True), torch.tensor(bounds)
        same(program, function, arguments)


def layer_of(dtype=torch.float64):
    return GRU(5, 3, 6, 2, 1, 1, 2, 1, 1, True, None).to(dtype)


def parameters_gradients(call, module, x):
    outputs = flat(call(x))
    return torch.autograd.grad(outputs, list(module.parameters()), cotangents(outputs))


# PyTorch 2.11 loads parameters from a buffer that cannot be written to, and warns of that.
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_export_of_a_layer():
    module = layer_of()
    program = export(module, (torch.randn(2, 10, 5).double(),), dynamic_shapes=(TOKENS,))
    for call in (program.module(), reloaded(program)):
        for x in (torch.randn(3, 4, 5).double(), torch.randn(2, 300, 5).double()):
            agree(flat(call(x)), flat(module(x)))
            agree(parameters_gradients(call, call, x), parameters_gradients(module, module, x))
            with torch.no_grad():
                agree(flat(call(x)), flat(module(x)))
            x.requires_grad_()
            agree(torch.autograd.grad(call(x)[0].sum(), x), torch.autograd.grad(module(x)[0].sum(), x))


def test_a_saved_state_is_loaded_as_weights():
    _, state = mlstm_case(2, 3)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert type(found) is MLSTMState
    agree(found, state)


def test_a_recorded_program_keeps_no_residuals():
    """What a backward pass needs is computed when the program is run with gradients, not written into it."""
    program = export(layer_of(), (torch.randn(2, 10, 5).double(),), dynamic_shapes=(TOKENS,))
    (node,) = (node for node in program.graph.nodes if "gatespec" in str(node.target))
    assert node.target is torch.ops.gatespec.gru.default and len(node.meta["val"]) == 2


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_decomposed_and_compiled_programs():
    arrays, state = mlstm_case(2, 10)
    module = Function(whole)
    shapes = {"arrays": [TOKENS] * 5, "state": MLSTMState(STATE, STATE, STATE), "bounds": None}
    program = export(module, (arrays, state, None), dynamic_shapes=shapes)
    decomposed = program.run_decompositions().module()
    compiled = torch.compile(program.module(), backend="aot_eager")
    for call in (decomposed, compiled):
        same(lambda *x, call=call: call(*x, None), lambda *x: whole(*x, None), mlstm_case(3, 7))
    torch._dynamo.reset()


def test_a_transformed_program_names_its_operator():
    (q, k, v, i, f), state = mlstm_case(2, 10)
    program = export(Function(whole), ([q, k, v, i, f], state, None)).module()
    with pytest.raises(RuntimeError, match=r"gatespec::mlstm: torch\.func cannot differentiate a recorded program"):
        torch.func.grad(lambda q: program([q, k, v, i, f], state, None)[0].sum())(q)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["mlstm", "mlstm_step", "gru", "dtilde_matrix"])
def test_jit_trace(name):
    function, case, _, _ = CASES[name]
    arrays, state = case(2, 10)
    state_parts = [] if state is None else [state] if isinstance(state, torch.Tensor) else list(state)

    def traced(*leaves):
        given = list(leaves[len(arrays) :])
        given = None if state is None else given[0] if isinstance(state, torch.Tensor) else MLSTMState(*given)
        return tuple(flat(function(leaves[: len(arrays)], given, None)))

    leaves = (*arrays, *state_parts)
    program = torch.jit.trace(traced, leaves)
    same(program, traced, leaves)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
def test_jit_trace_of_a_layer():
    module = layer_of()
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, torch.randn(2, 10, 5).double()), file)
    file.seek(0)
    program = torch.jit.load(file)
    x = torch.randn(3, 7, 5).double()
    agree(flat(program(x)), flat(module(x)))
    agree(parameters_gradients(program, program, x), parameters_gradients(module, module, x))
