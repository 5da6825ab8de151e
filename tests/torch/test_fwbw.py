"""The fwbw interface: its configuration, its context, its gradients, heads by vmap."""

import copy
import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch

import reference
from tests.torch.loops import cotangents, gradients, mlstm_arguments, mlstm_loop, relative_error
from torch_impl import (
    fwbw_backward,
    fwbw_forward,
    mlstm_fwbw_custom_grad,
    mLSTMBackendFwbw,
    mLSTMBackendFwbwConfig,
)

KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")
WHOLE = dict(return_state=True, use_initial_state=True, stabilize_correctly=True, chunk_size=8)


def arguments(B=2, T=29, K=3, V=4, *, with_state=True, seed=0):
    arrays = mlstm_arguments(B, T, 1, K, V, seed=seed, with_state=with_state)
    return [x.detach().squeeze(2 if number < 5 else 1).requires_grad_() for number, x in enumerate(arrays)]


def loop(arrays, *, stabilize_correctly=True):
    """The loop in this layout."""
    tokens = [x.unsqueeze(2) for x in arrays[:5]]
    state = [x.unsqueeze(1) for x in arrays[5:]] or None
    h, *last = mlstm_loop(*tokens, state, stabilize_correctly=stabilize_correctly)
    return [h.squeeze(2), *(part.squeeze(1) for part in last)]


def flat(result):
    return [result[0], *result[1]] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("stabilize_correctly", [True, False])
@pytest.mark.parametrize("T", [0, 1, 8, 29, 64])
@pytest.mark.parametrize("chunk_size", [None, 1, 8, 512])
def test_custom_grad(T, chunk_size, stabilize_correctly):
    arrays = arguments(T=T)
    function = mlstm_fwbw_custom_grad({**WHOLE, "chunk_size": chunk_size, "stabilize_correctly": stabilize_correctly})
    outputs, expected = flat(function(*arrays)), loop(arrays, stabilize_correctly=stabilize_correctly)
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert relative_error(x, y) < 1e-11
    for x, y in zip(gradients(outputs, arrays, upstream), gradients(expected, arrays, upstream), strict=True):
        assert relative_error(x, y) < 1e-11


@pytest.mark.parametrize("keeps", list(product([False, True], repeat=4)), ids=str)
def test_what_is_kept_is_counted_and_changes_no_value(keeps):
    B, T, K, V, L = 2, 29, 3, 4, 8
    chunks = 4
    config = mLSTMBackendFwbwConfig(**WHOLE, **dict(zip(KEEPS, keeps, strict=True)))
    arrays = arguments(B, T, K, V)
    (h, last), context = fwbw_forward(*arrays[:5], config, *arrays[5:])
    shapes = {
        "keep_G": {"G": (B, chunks, L, L)},
        "keep_gates": {"a": (B, chunks, L), "b": (B, chunks, L)},
        "keep_M": {"M": (B, chunks, L)},
        "keep_c": {"C_start": (B, chunks, K, V), "n_start": (B, chunks, K), "m_start": (B, chunks)},
    }
    expected = {
        name: shape for option, keep in zip(KEEPS, keeps, strict=True) if keep for name, shape in shapes[option].items()
    }
    found = {name: tuple(x.shape) for name, x in context.residuals._asdict().items() if x is not None}
    assert found == expected

    bare = {**WHOLE, **dict.fromkeys(KEEPS, False)}
    (plain_h, plain_last), plain_context = fwbw_forward(*arrays[:5], bare, *arrays[5:])
    for x, y in zip((h, *last), (plain_h, *plain_last), strict=True):
        assert torch.equal(x, y)
    upstream = cotangents([h, *last])
    for x, y in zip(
        fwbw_backward(context, upstream[0], config, *upstream[1:]),
        fwbw_backward(plain_context, upstream[0], bare, *upstream[1:]),
        strict=True,
    ):
        assert relative_error(x, y) < 1e-12


def test_what_is_kept_of_no_step():
    arrays = arguments(T=0)
    function = mlstm_fwbw_custom_grad({**WHOLE, **dict.fromkeys(KEEPS, True)})
    outputs = flat(function(*arrays))
    upstream = cotangents(outputs)
    found = gradients(outputs, arrays, upstream)
    assert all(torch.equal(x, d) for x, d in zip(found[5:], upstream[1:], strict=True))


@pytest.mark.parametrize("keep", KEEPS)
def test_what_is_kept_is_used(keep):
    """A context with NaN in place of a kept tensor gives NaN: the backward pass reads it."""
    config = {**WHOLE, **dict.fromkeys(KEEPS, False), keep: True}
    arrays = arguments()
    (h, _), context = fwbw_forward(*arrays[:5], config, *arrays[5:])
    kept = {name: x for name, x in context.residuals._asdict().items() if x is not None}
    assert kept
    for name, x in kept.items():
        residuals = context.residuals._replace(**{name: torch.full_like(x, torch.nan)})
        found = fwbw_backward(replace(context, residuals=residuals), torch.ones_like(h), config)
        assert any(x.isnan().any() for x in found)


@pytest.mark.parametrize("keep", KEEPS)
def test_autograd_saves_what_is_kept(keep):
    counts = {}
    for value in (False, True):
        packed = []
        function = mlstm_fwbw_custom_grad({**WHOLE, **dict.fromkeys(KEEPS, False), keep: value})
        with torch.autograd.graph.saved_tensors_hooks(lambda x, packed=packed: packed.append(x) or x, lambda x: x):
            function(*arguments())
        counts[value] = len(packed)
    assert counts[True] - counts[False] == {"keep_gates": 2, "keep_c": 3}.get(keep, 1)


def test_forward_and_backward_agree_with_autograd_and_the_reference():
    arrays = arguments()
    config = {**WHOLE, "keep_G": True, "keep_c": True}
    (h, last), context = fwbw_forward(*arrays[:5], config, *arrays[5:])
    upstream = cotangents([h, *last])
    found = fwbw_backward(context, upstream[0], config, *upstream[1:])
    expected = gradients(flat(mlstm_fwbw_custom_grad(config)(*arrays)), arrays, upstream)
    numbers = [x.detach().numpy() for x in arrays]
    (theirs, _), theirs_context = reference.fwbw_forward(*numbers[:5], config, *numbers[5:])
    reference_gradients = reference.fwbw_backward(
        theirs_context, upstream[0].numpy(), config, *(d.numpy() for d in upstream[1:])
    )
    assert relative_error(h, torch.from_numpy(theirs)) < 1e-12
    for x, y, z in zip(found, expected, reference_gradients, strict=True):
        assert relative_error(x, y) < 1e-12 and relative_error(x, torch.from_numpy(z)) < 1e-11
    differentiated = gradients([h, *last], arrays, upstream)
    for x, y in zip(differentiated, expected, strict=True):
        assert relative_error(x, y) < 1e-12


@pytest.mark.parametrize("given", [(), (0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_cotangents_of_the_final_state_are_used(given):
    arrays = arguments()
    (h, last), context = fwbw_forward(*arrays[:5], WHOLE, *arrays[5:])
    upstream = cotangents([h, *last])
    final = [d if number in given else None for number, d in enumerate(upstream[1:])]
    found = fwbw_backward(context, upstream[0], WHOLE, *final)
    zeros = [torch.zeros_like(d) if x is None else x for x, d in zip(final, upstream[1:], strict=True)]
    expected = gradients(loop(arrays), arrays, [upstream[0], *zeros])
    for x, y in zip(found, expected, strict=True):
        assert relative_error(x, y) < 1e-11


def test_without_an_initial_state():
    arrays = arguments(with_state=False)
    expected = loop(arrays)
    upstream = cotangents(expected)
    want = gradients(expected, arrays, upstream)
    for use in (False, True):
        config = {**WHOLE, "use_initial_state": use}
        outputs = flat(mlstm_fwbw_custom_grad(config)(*arrays))
        for x, y in zip(gradients(outputs, arrays, upstream), want, strict=True):
            assert relative_error(x, y) < 1e-11
        _, context = fwbw_forward(*arrays, config)
        found = fwbw_backward(context, upstream[0], config, *upstream[1:])
        for x, y in zip(found[:5], want, strict=True):
            assert relative_error(x, y) < 1e-11
        assert all((part is not None) == use for part in found[5:])


def test_gates_with_a_trailing_axis():
    arrays = arguments()
    wide = [x.detach().unsqueeze(-1).requires_grad_() for x in arrays[3:5]]
    wide = [*arrays[:3], *wide, *arrays[5:]]
    function = mlstm_fwbw_custom_grad(WHOLE)
    outputs, expected = flat(function(*wide)), flat(function(*arrays))
    upstream = cotangents(outputs)
    for x, y in zip(outputs, expected, strict=True):
        assert torch.equal(x, y)
    for x, y in zip(gradients(outputs, wide, upstream), gradients(expected, arrays, upstream), strict=True):
        assert torch.equal(x.reshape(y.shape), y)
    _, context = fwbw_forward(*wide[:5], WHOLE, *wide[5:])
    assert fwbw_backward(context, upstream[0], WHOLE)[3].shape == (2, 29, 1)


@pytest.mark.parametrize("keep", [False, True])
def test_heads_by_vmap(keep):
    """A vmapped head axis, and two of them nested, give what a loop over heads gives; gradients too."""
    config = {**WHOLE, **dict.fromkeys(KEEPS, keep)}
    function = mlstm_fwbw_custom_grad(config)
    heads = [[arguments(seed=10 * g + n) for n in range(2)] for g in range(3)]
    stacked = [
        torch.stack([torch.stack([heads[g][n][place].detach() for n in range(2)], 1) for g in range(3)])
        for place in range(8)
    ]

    def loss(*arrays):
        outputs = flat(function(*arrays))
        return sum((y * d).sum() for y, d in zip(outputs, cotangents(outputs), strict=True))

    everything = tuple(range(8))
    mapped = torch.func.vmap(torch.func.vmap(function, in_dims=1, out_dims=1))
    mapped_gradient = torch.func.vmap(torch.func.vmap(torch.func.grad(loss, everything), in_dims=1, out_dims=1))
    values, found = flat(mapped(*stacked)), mapped_gradient(*stacked)
    for g, n in product(range(3), range(2)):
        for x, y in zip(values, flat(function(*heads[g][n])), strict=True):
            assert relative_error(x[g, :, n], y) < 1e-12
        want = torch.autograd.grad(loss(*heads[g][n]), heads[g][n])
        for x, y in zip(found, want, strict=True):
            assert relative_error(x[g, :, n], y) < 1e-11


def test_forward_and_backward_under_vmap():
    config = {**WHOLE, "keep_G": True, "keep_M": True, "keep_c": True}
    arrays = arguments()
    stacked = [torch.stack([x.detach(), 0.5 * x.detach()]) for x in arrays]
    (h, _), context = torch.func.vmap(lambda *x: fwbw_forward(*x[:5], config, *x[5:]))(*stacked)
    found = torch.func.vmap(lambda ctx, dh: fwbw_backward(ctx, dh, config))(context, torch.ones_like(h))
    (expected, _), one = fwbw_forward(*arrays[:5], config, *arrays[5:])
    assert relative_error(h[0], expected) < 1e-12
    for x, y in zip(found, fwbw_backward(one, torch.ones_like(expected), config), strict=True):
        assert relative_error(x[0], y) < 1e-12


def test_module():
    arrays = arguments()
    module = mLSTMBackendFwbw(mLSTMBackendFwbwConfig(use_initial_state=True, chunk_size=8))
    assert module.config_class is mLSTMBackendFwbwConfig and module.can_vmap_over_heads
    assert module.state_dict() == {} and "chunk_size=8" in repr(module)
    h = module(*arrays)
    again, last = module(*arrays, return_last_states=True)
    assert torch.equal(h, again) and len(last) == 3
    assert relative_error(h, loop(arrays, stabilize_correctly=False)[0]) < 1e-11
    named = module(*arrays[:5], c_initial=arrays[5], n_initial=arrays[6], m_initial=arrays[7])
    assert torch.equal(named, h)
    module.config.assign_model_config_params(mLSTMBackendFwbwConfig(use_initial_state=True, chunk_size=4))
    assert module.config.chunk_size == 4
    with pytest.raises(ValueError, match="`n_initial` is None; expected an array together with `c_initial`"):
        module(*arrays[:5], c_initial=arrays[5])


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        # Five steps are two chunks of 3 as they are two of 4.
        ({"chunk_size": 3, "keep_c": True}, {"chunk_size": 4, "keep_c": True}, "chunk_size=3; expected chunk_size=4"),
        ({}, {"keep_G": True}, "keep_G=False; expected keep_G=True"),
        ({"keep_M": True, "keep_gates": False}, {"keep_G": True, "keep_gates": False}, "keep_G=False; expected"),
        ({}, {"use_initial_state": True}, "use_initial_state=False; expected use_initial_state=True"),
        ({}, {"stabilize_correctly": True}, "stabilize_correctly=False; expected stabilize_correctly=True"),
    ],
)
def test_a_context_of_another_configuration_is_refused(made, given, message):
    arrays = arguments(T=5, with_state=False)
    h, context = fwbw_forward(*arrays, made)
    with pytest.raises(ValueError, match=f"^fwbw_backward: `ctx` is made with {message}"):
        fwbw_backward(context, h, given)
    assert fwbw_backward(context, h, {**made, "return_state": True})[0].shape == arrays[0].shape


def test_what_is_no_context_is_refused():
    arrays = arguments(with_state=False)
    h, context = fwbw_forward(*arrays, {})
    numbers = [x.detach().numpy() for x in arrays]
    _, foreign = reference.fwbw_forward(*numbers, {})
    expected = "; expected the context that this package's fwbw_forward returned"
    parts = tuple(vars(context).values())
    for ctx, got in ((None, "None"), (h, r"f64\[2,29,4\]"), (parts, "a tuple"), (foreign, "a reference.FwbwContext")):
        with pytest.raises(TypeError, match=f"^fwbw_backward: `ctx` is {got}.*{expected}"):
            fwbw_backward(ctx, h, {})


def test_a_configuration_is_read_when_a_function_is_made_of_it():
    arrays = arguments(with_state=False)
    config = mLSTMBackendFwbwConfig(chunk_size=8, keep_c=True)
    function = mlstm_fwbw_custom_grad(config)
    _, context = fwbw_forward(*arrays, config)
    h, config.chunk_size = function(*arrays), -5
    assert torch.equal(function(*arrays), h) and context.config.chunk_size == 8


def test_a_context_is_a_pytree_of_its_tensors():
    arrays = [x.detach() for x in arguments()]
    (h, _), context = fwbw_forward(*arrays[:5], {**WHOLE, "keep_c": True}, *arrays[5:])
    leaves, tree = torch.utils._pytree.tree_flatten(context)
    assert all(isinstance(x, torch.Tensor) for x in leaves) and len(leaves) == 8 + 2 + 3
    again = torch.utils._pytree.tree_unflatten(leaves, tree)
    assert again.config == context.config and again.backend == "torch"
    found = fwbw_backward(again, torch.ones_like(h), {**WHOLE, "keep_c": True})
    expected = fwbw_backward(context, torch.ones_like(h), {**WHOLE, "keep_c": True})
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["q", "f", "initial_C"])
def test_an_input_that_was_overwritten_is_refused(name):
    arrays = [x.detach() for x in arguments()]
    (h, _), context = fwbw_forward(*arrays[:5], WHOLE, *arrays[5:])
    expected = fwbw_backward(context, torch.ones_like(h), WHOLE)
    getattr(context, name).mul_(2.0)
    with pytest.raises(RuntimeError, match=f"^fwbw_backward: `{name}` was overwritten after fwbw_forward had saved it"):
        fwbw_backward(context, torch.ones_like(h), WHOLE)
    (h, _), context = fwbw_forward(*arrays[:5], WHOLE, *arrays[5:])
    assert not torch.equal(fwbw_backward(context, torch.ones_like(h), WHOLE)[0], expected[0])


def test_a_context_of_inference_tensors_is_taken():
    with torch.inference_mode():
        arrays = [x.detach().clone() for x in arguments()]
        (h, _), context = fwbw_forward(*arrays[:5], WHOLE, *arrays[5:])
        assert context.versions is None and len(fwbw_backward(context, torch.ones_like(h), WHOLE)) == 8


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda context: pickle.loads(pickle.dumps(context))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_context_is_a_context(copied):
    arrays = [x.detach().clone() for x in arguments()]
    (h, _), context = fwbw_forward(*arrays[:5], WHOLE, *arrays[5:])
    twin = copied(context)
    for x, y in zip(fwbw_backward(twin, h, WHOLE), fwbw_backward(context, h, WHOLE), strict=True):
        assert torch.equal(x, y)
    twin.k.mul_(2.0)
    with pytest.raises(RuntimeError, match=r"^fwbw_backward: `k` was overwritten"):
        fwbw_backward(twin, h, WHOLE)
    with pytest.raises(RuntimeError, match=r"^FwbwContext: `k` was overwritten"):
        copied(twin)
