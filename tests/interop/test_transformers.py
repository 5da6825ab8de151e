"""Our operations in `xLSTMForCausalLM` of transformers, on mlstm_kernels and on transformers' own fallback."""

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import xLSTMConfig
from transformers.models.xlstm import modeling_xlstm

from tests.interop.rounding import assert_rounding
from torch_impl.interop.transformers import MLSTMBackend, install, uninstall


def without_xlstm() -> ModuleType:
    """The model's module as it is where the package xlstm is not installed."""
    name = f"{modeling_xlstm.__name__}_fallback"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, modeling_xlstm.__file__)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patch.setattr(transformers.utils, "is_xlstm_available", lambda: False)
            spec.loader.exec_module(module)
        assert module.external_xlstm is False and modeling_xlstm.external_xlstm is True
    return sys.modules[name]


@pytest.fixture(params=["mlstm_kernels", "fallback"])
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield modeling_xlstm if request.param == "mlstm_kernels" else without_xlstm()


def made(module: ModuleType, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A small model with random weights, the same ones at every call."""
    sizes = {"hidden_size": 128, "num_heads": 4, "num_hidden_layers": 2, "vocab_size": 97, "chunk_size": 16}
    norms = {"norm_reduction_force_float32": False}
    config = xLSTMConfig(**(sizes | norms | settings), bos_token_id=None, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    model = module.xLSTMForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.normal_(generator=generator)
        else:
            parameter.data.mul_(4)
    return model.to(dtype).eval()


def tokens(B: int, S: int) -> Tensor:
    return torch.randint(1, 97, (B, S), generator=torch.Generator().manual_seed(S))


def backends(model: nn.Module) -> list[nn.Module]:
    return [part.mlstm_backend for part in model.modules() if hasattr(part, "mlstm_backend")]


@pytest.mark.parametrize("S", [1, 5, 37])
@pytest.mark.parametrize("mode", ["inference", "train"])
def test_logits(module: ModuleType, mode: str, S: int) -> None:
    if mode == "train" and S % 16:
        S = 48
    with torch.no_grad():
        exact = made(module, torch.float64, mode=mode)(tokens(3, S), use_cache=False).logits
        ours = install(made(module, mode=mode))(tokens(3, S), use_cache=False).logits
    assert_rounding(ours, exact, "ours")


@pytest.mark.parametrize("S", [1, 6, 33])
def test_generate_gives_the_same_tokens(module: ModuleType, S: int) -> None:
    options = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones(2, S, dtype=torch.long)}
    theirs = made(module).generate(tokens(2, S), **options)
    model = install(made(module))
    calls = {"step": 0, "sequences": 0}
    for backend in backends(model):
        backend.register_forward_pre_hook(
            lambda _, args, kwargs: calls.__setitem__(
                name := "step" if [*args, *kwargs.values()][0].shape[2] == 1 else "sequences", calls[name] + 1
            ),
            with_kwargs=True,
        )
    ours = model.generate(tokens(2, S), **options)
    assert torch.equal(ours, theirs)
    assert ours.shape == (2, S + 20) and ours[:, S:].unique().numel() > 3
    # Two layers: the prompt once (a single token is a step), then one token at a time.
    assert calls == {"step": 2 * (19 + (S == 1)), "sequences": 2 * (S > 1)}


def test_a_cache_continues_a_prompt(module: ModuleType) -> None:
    """The peer's cache object is read and written as before, and holds what the peer would write."""
    model, peer = install(made(module)), made(module)
    text = tokens(2, 31)
    with torch.no_grad():
        whole = model(text, use_cache=False).logits
        first, theirs = model(text[:, :20], use_cache=True), peer(text[:, :20], use_cache=True)
        for layer, state in first.cache_params.rnn_state.items():
            for mine, expected in zip(state, theirs.cache_params.rnn_state[layer], strict=True):
                assert_rounding(mine, expected, f"state of layer {layer}", units=256)
        rest = model(text[:, 20:], cache_params=first.cache_params, use_cache=True)
    assert_rounding(torch.cat([first.logits, rest.logits], 1), whole, "logits")


def gradients(model: Any, text: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.train()
    loss = model(text, labels=text, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(found: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """Compare the parameters of each layer at once: a gate's bias has a gradient that cancels almost to nothing."""
    assert found.keys() == exact.keys()
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in found):
        names = [name for name in found if name.rpartition(".")[0] == layer]
        pair = [torch.cat([gradients[name].flatten() for name in names]) for gradients in (found, exact)]
        assert_rounding(*pair, layer, units=1024)


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_training_step(module: ModuleType, mode: str) -> None:
    """Both peers differentiate automatically here, which is exact."""
    exact_loss, exact = gradients(made(module, torch.float64, mode=mode, eps=0.0), tokens(2, 48))
    loss, found = gradients(install(made(module, mode=mode, eps=0.0)), tokens(2, 48))
    assert_rounding(loss, exact_loss, "loss")
    assert len(found) > 20
    assert_same_gradients(found, exact)


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_training_step_with_a_cache_is_one_without(module: ModuleType, mode: str) -> None:
    """transformers uses a cache by default, and overwrites its states before the backward pass."""
    model, text = install(made(module, mode=mode)).train(), tokens(2, 48)
    found = []
    for use_cache in (True, False):
        model.zero_grad()
        loss = model(text, labels=text, use_cache=use_cache).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_cache_that_does_not_fit_and_a_model_without_states_are_refused(module: ModuleType) -> None:
    odd = install(made(module, hidden_size=96))
    with pytest.raises(
        ValueError, match=r"mlstm_backend: `c_initial` has the head dims \(16, 32\); expected \(12, 24\)"
    ):
        odd(tokens(2, 4), use_cache=True)
    assert odd(tokens(2, 4), use_cache=False).logits.isfinite().all()
    with pytest.raises(ValueError, match=r"install: `config\.return_last_states` is False with `config.mode` 'train'"):
        install(made(module, mode="train", return_last_states=False))
    install(made(module, mode="inference", return_last_states=False))(tokens(2, 4))


def test_gradient_checkpointing_changes_nothing(module: ModuleType) -> None:
    _, exact = gradients(install(made(module)), tokens(2, 21))
    model = install(made(module))
    model.activation_checkpointing_enable()
    _, found = gradients(model, tokens(2, 21))
    assert_same_gradients(found, exact)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_mask_makes_a_batch_what_its_sequences_are_alone(module: ModuleType, side: str) -> None:
    lengths, S = [9, 17, 1], 17
    rows = [tokens(1, length)[0] for length in lengths]
    text, mask = torch.zeros(3, S, dtype=torch.long), torch.zeros(3, S, dtype=torch.long)
    for b, row in enumerate(rows):
        place = slice(S - len(row), S) if side == "left" else slice(0, len(row))
        text[b, place], mask[b, place] = row, 1
    masked = install(made(module), apply_attention_mask=True)
    ignoring, peer = install(made(module)), made(module)
    parts = install(made(module, max_inference_chunksize=5), apply_attention_mask=True)
    with torch.no_grad():
        found = masked(text, attention_mask=mask, use_cache=True)
        assert_rounding(ignoring(text, attention_mask=mask).logits, peer(text, attention_mask=mask).logits, "ignored")
        in_parts = parts(text, attention_mask=mask).logits
        for b, row in enumerate(rows):
            alone = peer(row[None], use_cache=True)
            assert_rounding(found.logits[b][mask[b] == 1], alone.logits[0], f"logits of sequence {b}")
            assert_rounding(in_parts[b][mask[b] == 1], alone.logits[0], f"logits of sequence {b}, in parts")
            for layer, state in found.cache_params.rnn_state.items():
                for mine, expected in zip(state, alone.cache_params.rnn_state[layer], strict=True):
                    assert_rounding(mine[b], expected[0], f"state of sequence {b}", units=256)
    if side == "left":
        options = {"max_new_tokens": 8, "do_sample": False}
        together = masked.generate(text, attention_mask=mask, **options)
        for b, row in enumerate(rows):
            alone = peer.generate(row[None], attention_mask=torch.ones(1, len(row), dtype=torch.long), **options)
            assert torch.equal(together[b, S:], alone[0, len(row) :])


def test_a_model_in_bfloat16(module: ModuleType) -> None:
    model = install(made(module, torch.bfloat16))
    exact = made(module).to(torch.bfloat16).double()
    with torch.no_grad():
        found = model(tokens(2, 21), use_cache=True)
        expected = exact(tokens(2, 21)).logits
    assert {part.dtype for state in found.cache_params.rnn_state.values() for part in state} == {torch.bfloat16}
    assert (found.logits - expected).abs().max() < 16 * torch.finfo(torch.bfloat16).eps * expected.abs().max()


def test_uninstall_puts_back_what_was_there(module: ModuleType) -> None:
    model = made(module)
    text, before, names = tokens(2, 21), backends(model), list(model.state_dict())
    with torch.no_grad():
        logits = model(text).logits
        install(model, apply_attention_mask=True)
        assert all(isinstance(each, MLSTMBackend) for each in backends(model))
        assert list(model.state_dict()) == names
        assert not torch.equal(model(text).logits, logits)
        assert uninstall(model) is model
        assert backends(model) == before
        assert torch.equal(model(text).logits, logits)
    assert not model.backbone._forward_pre_hooks
    with pytest.raises(ValueError, match="uninstall: `model` is a xLSTMForCausalLM; expected one that"):
        uninstall(model)


def test_what_is_no_xlstm_is_refused(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="install: `model` is a Linear; expected an xLSTM of transformers"):
        install(nn.Linear(2, 2))
    model = install(made(module), apply_attention_mask=True)
    with pytest.raises(ValueError, match="install: `model` runs on gatespec already"):
        install(model)
    with pytest.raises(ValueError, match=r"xLSTM: `attention_mask` is \[2, 3\]; expected \[B=2, S\], S at least 4"):
        model(tokens(2, 4), attention_mask=torch.ones(2, 3))
