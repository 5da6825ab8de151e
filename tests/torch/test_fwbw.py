"""The fwbw interface: what is kept, its context as a pytree and a copy, the layer."""

import copy
import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.torch.loops import mlstm_arguments, relative_error
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


def flat(result):
    return [result[0], *result[1]] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("keeps", list(product([False, True], repeat=4)), ids=str)
def test_what_is_kept_is_counted(keeps):
    B, T, K, V, L = 2, 29, 3, 4, 8
    chunks = 4
    config = mLSTMBackendFwbwConfig(**WHOLE, **dict(zip(KEEPS, keeps, strict=True)))
    arrays = arguments(B, T, K, V)
    _, context = fwbw_forward(*arrays[:5], config, *arrays[5:])
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
    assert module.state_dict() == {} and "chunk_size=8" in repr(module)
    with pytest.raises(ValueError, match="`n_initial` is None; expected an array together with `c_initial`"):
        module(*arrays[:5], c_initial=arrays[5])


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
