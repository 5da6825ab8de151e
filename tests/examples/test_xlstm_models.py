"""The PyTorch and the Flax model of `examples.xlstm` are one function of the same parameters."""

import dataclasses
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from examples.xlstm import flax_model, torch_model  # noqa: E402
from examples.xlstm.config import XLSTMConfig  # noqa: E402
from examples.xlstm.parameters import from_flax, from_torch, to_flax, to_torch  # noqa: E402
from examples.xlstm.tensors import CheckpointError, tensor_shapes  # noqa: E402
from tests.examples.xlstm_tools import SMALL, random_arrays  # noqa: E402

TOKENS = np.random.default_rng(1).integers(0, SMALL.vocab_size, (2, 13))
LENGTHS = np.array([0, 4, 4, 13])
ONE = dataclasses.replace(SMALL, num_blocks=1)
BIASED = dataclasses.replace(ONE, use_bias=True, norm_reduction_force_float32=False)


def both(config: XLSTMConfig = SMALL) -> tuple[torch_model.XLSTM, flax_model.XLSTM, Any]:
    arrays = random_arrays(config)
    return to_torch(config, arrays), flax_model.XLSTM(config), to_flax(config, arrays)


def error(x: Any, y: Any) -> float:
    x, y = (np.asarray(z.detach() if isinstance(z, torch.Tensor) else z, np.float64) for z in (x, y))
    assert x.shape == y.shape
    return float(np.abs(x - y).max() / np.abs(y).max())


@pytest.mark.parametrize("config", [SMALL, BIASED], ids=["published", "with biases"])
def test_new_parameters_have_the_published_names_and_shapes(config: XLSTMConfig) -> None:
    expected = tensor_shapes(config)
    ours = from_torch(torch_model.XLSTM(config))
    assert {name: x.shape for name, x in ours.items()} == expected and list(ours) == list(expected)
    made = jax.eval_shape(flax_model.XLSTM(config).init, jax.random.key(0), TOKENS)
    flat = jax.tree_util.tree_leaves_with_path(made["params"])
    assert {".".join(key.key for key in path): leaf.shape for path, leaf in flat} == expected


def test_both_start_from_the_same_distribution() -> None:
    config = XLSTMConfig(vocab_size=64, hidden_size=64, num_blocks=1, num_heads=4)
    ours = from_torch(torch_model.XLSTM(config))
    theirs = from_flax(jax.jit(flax_model.XLSTM(config).init)(jax.random.key(0), TOKENS[:, :1]))
    for name, x in ours.items():
        y = theirs[name]
        if x.ndim == 1 or "igate" in name or "fgate" in name:
            assert np.allclose(x, y), name
        else:
            assert abs(x.std() / y.std() - 1) < 0.1 and abs(x.mean()) < x.std() / 10, name


@pytest.mark.parametrize("config", [ONE, BIASED], ids=["published", "with biases"])
def test_logits_states_and_gradients_agree(config: XLSTMConfig) -> None:
    ours, model, params = both(config)
    weight = np.random.default_rng(2).standard_normal((*TOKENS.shape, config.vocab_size)).astype(np.float32)

    def loss(params: Any) -> Any:
        logits, state = model.apply(params, TOKENS, return_state=True)
        return (logits * weight).mean(), (logits, state)

    gradients, (logits, state) = jax.jit(jax.grad(loss, has_aux=True))(params)
    for parameter in ours.parameters():
        parameter.requires_grad_()
    expected, memories = ours(torch.from_numpy(TOKENS), return_state=True)
    (expected * torch.from_numpy(weight)).mean().backward()
    assert error(logits, expected) < 2e-5
    for x, y in zip(jax.tree.leaves(state), (part for memory in memories for part in memory), strict=True):
        assert error(x, y) < 2e-5
    by_name = from_flax(gradients)
    for name, parameter in ours.named_parameters():
        assert error(by_name[name], parameter.grad) < 2e-4, name


def test_packed_sequences_and_steps_are_the_dense_call() -> None:
    ours, model, params = both(ONE)
    packed = torch.from_numpy(TOKENS[0])
    with torch.no_grad():
        logits = ours(packed, cu_seqlens=torch.from_numpy(LENGTHS))
        assert error(logits[:4], ours(packed[None, :4])[0]) < 1e-5
        assert error(logits[4:], ours(packed[None, 4:])[0]) < 1e-5
        theirs = jax.jit(lambda p, x, lengths: model.apply(p, x, cu_seqlens=lengths))(params, TOKENS[0], LENGTHS)
        assert error(theirs, logits) < 2e-5

        dense = ours(torch.from_numpy(TOKENS))
        _, before = ours(torch.from_numpy(TOKENS[:, :9]), return_state=True)
        assert error(ours(torch.from_numpy(TOKENS[:, 9:]), before), dense[:, 9:]) < 1e-5
        state, memories = ours.initial_state(2), flax_model.initial_state(ONE, 2)
        step = jax.jit(lambda p, x, s: model.apply(p, x, s, method="step"))
        for t in range(TOKENS.shape[1]):
            one, state = ours.step(torch.from_numpy(TOKENS[:, t]), state)
            other, memories = step(params, TOKENS[:, t], memories)
            assert error(one, dense[:, t]) < 1e-5 and error(other, dense[:, t]) < 2e-5


def test_mixed_precision_keeps_residuals_and_logits_in_float32() -> None:
    ours, _, params = both(ONE)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = ours(torch.from_numpy(TOKENS))
        features, _ = ours.features(torch.from_numpy(TOKENS))
    with torch.no_grad():
        full = ours(torch.from_numpy(TOKENS))
    low_flax, state = jax.jit(flax_model.XLSTM(ONE, dtype="bfloat16").apply, static_argnames="return_state")(
        params, TOKENS, return_state=True
    )
    assert low.dtype is features.dtype is torch.float32 and low_flax.dtype == state[0].C.dtype == "float32"
    assert 1e-4 < error(low, full) < 0.1 and 1e-4 < error(low_flax, full) < 0.1


def test_arrays_are_shared_with_pytorch_and_return_as_they_were() -> None:
    for dtype in ("float32", "bfloat16", "float64"):
        arrays = random_arrays(dataclasses.replace(SMALL, dtype=dtype))
        model = to_torch(SMALL, arrays)
        back = from_torch(model)
        assert all(back[name].dtype == x.dtype and np.array_equal(back[name], x) for name, x in arrays.items())
        assert all(np.shares_memory(back[name], x) for name, x in arrays.items())
        tree = to_flax(SMALL, arrays)
        assert all(x is arrays[name] for name, x in from_flax(tree).items())


def test_parameters_that_do_not_fit_are_refused() -> None:
    for convert in (to_torch, to_flax):
        arrays: dict[str, Any] = random_arrays()
        removed = arrays.pop("backbone.blocks.1.ffn.proj_up.weight")
        with pytest.raises(
            CheckpointError, match=r"`backbone\.blocks\.1\.ffn\.proj_up\.weight` is missing; .*\[64, 24\]"
        ):
            convert(SMALL, arrays)
        arrays["backbone.blocks.1.ffn.proj_up.weight"] = removed[:, :5]
        with pytest.raises(CheckpointError, match=r"proj_up\.weight` is float32\[64, 5\]; expected float32\[64, 24\]"):
            convert(SMALL, arrays)
        arrays["backbone.blocks.1.ffn.proj_up.weight"] = removed.astype(np.float16)
        with pytest.raises(CheckpointError, match=r"is float16\[64, 24\]; expected float32\[64, 24\]"):
            convert(SMALL, arrays)
        arrays["backbone.blocks.1.ffn.proj_up.weight"] = removed
        with pytest.raises(CheckpointError, match="`surplus` is not a tensor of this model"):
            convert(SMALL, {**arrays, "surplus": removed})


def test_wrong_tokens_and_states_are_refused() -> None:
    ours, model, params = both()
    calls = (
        lambda x, state=None, **k: ours(torch.from_numpy(x), state, **k),
        lambda x, state=None, **k: model.apply(params, x, state, **k),
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"`tokens` is (torch\.)?float64; expected integers"):
            call(TOKENS.astype(np.float64))
        with pytest.raises(ValueError, match=r"`tokens` has shape \[13\]; expected \(B, S\)"):
            call(TOKENS[0])
        with pytest.raises(ValueError, match=r"`state` has 0 memories; expected 2, one per block"):
            call(TOKENS, ())
