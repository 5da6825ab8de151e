"""Our operations in models of transformers with Gated DeltaNet layers.

The truth is the model's own code in float64. transformers casts to float32 in many places, and `EveryCastInFloat64`
replaces these casts.
"""

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import reference
from tests.interop.gated_delta_models import KINDS, made, modeling_qwen3_next
from tests.interop.rounding import assert_rounding
from torch_impl.interop import transformers_gated_delta
from torch_impl.interop.transformers import install, uninstall

# Two of transformers' chunks of 64 steps and a part of a third.
LENGTH = 131
# Of float32's last place. Logits and states of ours were at most 46 off, and those of the peer 52.
UNITS = 256


class EveryCastInFloat64(TorchFunctionMode):
    """Within it, code that casts to float32 casts to float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(x: Any) -> Any:
            return torch.float64 if x is torch.float32 else x

        function = Tensor.double if function is Tensor.float else function
        return function(*map(wide, args), **{name: wide(x) for name, x in (kwargs or {}).items()})


def exactly(model: Any, *args: Any, **kwargs: Any) -> Any:
    """What a model on its own code returns, computed in float64."""
    with EveryCastInFloat64():
        return copy.deepcopy(model).double()(*args, **kwargs)


def tokens(B: int, S: int) -> Tensor:
    return torch.randint(1, 97, (B, S), generator=torch.Generator().manual_seed(S))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


DENSE = pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("moe")])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of our operations, in the order in which layers call them."""
    found: list[str] = []

    def counted(name: str) -> Callable:
        operation = getattr(transformers_gated_delta, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return operation(*args, **kwargs)

        return count

    for name in ("gated_delta_rule", "gated_delta_step"):
        monkeypatch.setattr(transformers_gated_delta, name, counted(name))
    return found


@pytest.mark.parametrize("S", [1, 5, LENGTH])
def test_logits(kind: str, S: int, calls: list[str]) -> None:
    with torch.no_grad():
        exact = exactly(made(kind), tokens(2, S), use_cache=False).logits
        ours = install(made(kind))(tokens(2, S), use_cache=False).logits
    assert exact.dtype is torch.float64
    assert_rounding(ours, exact, "ours", UNITS)
    assert calls == ["gated_delta_rule"] * 3


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_padded_sequences(kind: str, side: str) -> None:
    lengths, S = [70, LENGTH, 1], LENGTH
    rows = [tokens(1, length)[0] for length in lengths]
    text, mask = torch.zeros(3, S, dtype=torch.long), torch.zeros(3, S, dtype=torch.long)
    for b, row in enumerate(rows):
        place = slice(S - len(row), S) if side == "left" else slice(0, len(row))
        text[b, place], mask[b, place] = row, 1
    model = install(made(kind))
    with torch.no_grad():
        found = model(text, attention_mask=mask).logits
        for b, row in enumerate(rows):
            alone = exactly(made(kind), row[None]).logits[0]
            assert_rounding(found[b][mask[b] == 1], alone, f"logits of sequence {b}", UNITS)


# The experts of a token are chosen by comparisons, which a rounding to bfloat16 can change.
@DENSE
def test_logits_in_bfloat16(kind: str, calls: list[str]) -> None:
    """A model's errors are those of its own roundings to bfloat16; ours adds none to them."""
    peer = made(kind, torch.bfloat16)
    model = install(made(kind, torch.bfloat16))
    with torch.no_grad():
        exact = exactly(peer, tokens(2, LENGTH), use_cache=False).logits
        theirs, ours = peer(tokens(2, LENGTH), use_cache=False).logits, model(tokens(2, LENGTH), use_cache=True)
    assert ours.logits.dtype is torch.bfloat16 and calls == ["gated_delta_rule"] * 3
    assert {state.dtype for state in states(ours)} == {torch.float32}
    errors = [(logits.double() - exact).square().mean().sqrt() for logits in (ours.logits, theirs)]
    # Over the root mean square of the logits, those of the peer were 2.0 to 3.2 units of bfloat16's last place.
    assert errors[1] < 8 * torch.finfo(torch.bfloat16).eps * exact.square().mean().sqrt()
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize("S", [1, LENGTH])
def test_generate_gives_the_same_tokens(kind: str, S: int, calls: list[str]) -> None:
    options = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones(2, S, dtype=torch.long)}
    theirs = made(kind).generate(tokens(2, S), **options)
    ours = install(made(kind)).generate(tokens(2, S), **options)
    assert torch.equal(ours, theirs)
    assert ours.shape == (2, S + 20) and ours[:, S:].unique().numel() > 3
    # Three layers: the prompt once, then one token at a time.
    assert calls == ["gated_delta_rule"] * 3 + ["gated_delta_step"] * 3 * 19


def test_generate_after_left_padding(kind: str) -> None:
    lengths, S = [70, LENGTH], LENGTH
    text, mask = torch.zeros(2, S, dtype=torch.long), torch.zeros(2, S, dtype=torch.long)
    for b, length in enumerate(lengths):
        text[b, S - length :], mask[b, S - length :] = tokens(1, length)[0], 1
    options = {"max_new_tokens": 8, "do_sample": False}
    together = install(made(kind)).generate(text, attention_mask=mask, **options)
    for b, length in enumerate(lengths):
        alone = made(kind).generate(tokens(1, length), attention_mask=mask[b : b + 1, S - length :], **options)
        assert torch.equal(together[b, S:], alone[0, length:])


def states(output: Any) -> list[Tensor]:
    return [layer.recurrent_states[0] for layer in output.past_key_values.layers if hasattr(layer, "recurrent_states")]


def test_a_cache_continues_a_prompt(kind: str) -> None:
    """The peer's cache is read and written as before, and holds what the peer would write."""
    model, text = install(made(kind)), tokens(2, LENGTH)
    with torch.no_grad():
        exact = exactly(made(kind), text, use_cache=True)
        first = model(text[:, :67], use_cache=True)
        rest = model(text[:, 67:], past_key_values=first.past_key_values, use_cache=True)
    assert_rounding(torch.cat([first.logits, rest.logits], 1), exact.logits, "logits", UNITS)
    assert len(states(rest)) == 3
    for layer, (mine, expected) in enumerate(zip(states(rest), states(exact), strict=True)):
        assert_rounding(mine, expected, f"state {layer}", UNITS)


def gradients(model: Any, **options: Any) -> dict[str, Tensor]:
    """The model's loss under the name "loss", and its gradient by each parameter."""
    text = tokens(2, LENGTH)
    loss = model.train()(text, labels=text, **options).loss
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters()}


@functools.cache
def exact_gradients(kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients in float64, and how far each moves if the weights move by half a unit of float32's last place."""
    found = []
    for seed in range(7):
        model, generator = made(kind).double(), torch.Generator().manual_seed(seed)
        for parameter in model.parameters() if seed else ():
            change = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
            parameter.data *= 1 + torch.finfo(torch.float32).eps * change
        with EveryCastInFloat64():
            found.append(gradients(model, use_cache=False))
    exact, *near = found
    return exact, {name: max((each[name] - x).abs().max() for each in near) for name, x in exact.items()}


def assert_gradients(found: dict[str, Tensor], kind: str) -> None:
    """Rounding the whole computation moves a gradient by a few times what rounding the weights alone does.

    The largest of our errors, over all parameters of the four models, was 5.0 times as large. The peer's largest was
    491 times as large, in the gradient of `A_log` of Qwen3.5-MoE, because it subtracts sums of gates over 64 steps.
    """
    exact, moves = exact_gradients(kind)
    assert found.keys() == exact.keys() and len(found) > 40
    for name, gradient in found.items():
        error = (gradient - exact[name]).abs().max()
        move = max(moves[name], torch.finfo(torch.float32).eps * exact[name].abs().max())
        assert error <= 16 * move, f"{name}: {error / move:.1f} times what rounding the weights does; at most 16"


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_training_step(kind: str, use_cache: bool) -> None:
    assert_gradients(gradients(install(made(kind)), use_cache=use_cache), kind)


def test_a_training_step_over_two_parts_of_a_sequence(kind: str) -> None:
    """transformers overwrites the states in its cache before the backward pass; its own code refuses that."""
    model, text = install(made(kind)).train(), tokens(2, LENGTH)
    first = model(text[:, :67], use_cache=True)
    rest = model(text[:, 67:], past_key_values=first.past_key_values, use_cache=True)
    logits = torch.cat([first.logits, rest.logits], 1)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    assert_gradients({"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters()}, kind)


def test_gradient_checkpointing_changes_nothing(kind: str) -> None:
    plain, model = install(made(kind)), install(made(kind))
    model.activation_checkpointing_enable()
    exact, found = gradients(plain, use_cache=False), gradients(model, use_cache=False)
    assert all(torch.equal(found[name], exact[name]) for name in exact)


# transformers' loop over experts has as many turns as the data say.
@DENSE
def test_torch_compile_takes_a_model_in_one_graph(kind: str) -> None:
    model, text = install(made(kind)), tokens(2, 67)
    with torch.no_grad():
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(text, use_cache=False).logits
        assert_rounding(found, exactly(made(kind), text, use_cache=False).logits, "compiled", UNITS)


@pytest.mark.parametrize("gates", ["strong", "reset"])
def test_strong_gates_lose_no_digits(gates: str) -> None:
    """One step in ten forgets almost everything or all.

    The peer subtracts sums of g over 64 steps: its error of o is 2e-4 of the largest element with g = −1000, and
    g = −∞ gives NaN.
    """
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 2, LENGTH, 2, 16, generator=generator)
    v, beta = torch.randn(2, LENGTH, 4, 8, generator=generator), torch.rand(2, LENGTH, 4, generator=generator)
    g, forget = -0.1 * torch.rand(2, 2, LENGTH, 4, generator=generator)
    g[forget > -0.01] = -1000 if gates == "strong" else -torch.inf
    options: Any = {"g": g, "beta": beta, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    exact = reference.gated_delta_rule(*(x.double().numpy() for x in (q, k, v, g, beta)), qk_norm_eps=1e-6)
    for mine, expected in zip(transformers_gated_delta.run(q, k, v, **options), exact, strict=True):
        assert_rounding(mine, expected, "ours")
    options["initial_state"] = transformers_gated_delta.run(q, k, v, **options)[1]
    one = {name: x[:, -1:] if name in ("g", "beta") else x for name, x in options.items()}
    theirs = modeling_qwen3_next.torch_recurrent_gated_delta_rule(q[:, -1:], k[:, -1:], v[:, -1:], **one)
    ours = transformers_gated_delta.run(q[:, -1:], k[:, -1:], v[:, -1:], **one)
    for mine, expected in zip(ours, theirs, strict=True):
        assert_rounding(mine, expected, "a step")


def test_what_is_not_asked_for() -> None:
    """No norm, and no state."""
    generator = torch.Generator().manual_seed(4)
    q, k = 0.2 * torch.randn(2, 2, LENGTH, 2, 16, generator=generator)
    v, beta = torch.randn(2, LENGTH, 4, 8, generator=generator), torch.rand(2, LENGTH, 4, generator=generator)
    g = -torch.rand(2, LENGTH, 4, generator=generator)
    theirs, _ = modeling_qwen3_next.torch_chunk_gated_delta_rule(q, k, v, g=g, beta=beta)
    ours, state = transformers_gated_delta.run(q, k, v, g=g, beta=beta)
    assert state is None
    assert_rounding(ours, theirs.double(), "without a norm")


def test_packed_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's convolution keeps them apart by `seq_idx`, for which transformers needs the package causal_conv1d."""
    lengths = [70, 1, 60]
    own = modeling_qwen3_next.causal_conv1d_fn

    def convolution(x: Tensor, *args: Any, seq_idx: Tensor, **kwargs: Any) -> Tensor:
        sizes = torch.bincount(seq_idx[0]).tolist()
        return torch.cat([own(part, *args, activation=kwargs["activation"]) for part in x.split(sizes, -1)], -1)

    model: Any = install(made("qwen3_next"))
    layer, x = model.model.layers[0].linear_attn, torch.randn(1, sum(lengths), 64)
    places = {"cu_seq_lens_q": torch.tensor([0, 70, 71, 131], dtype=torch.int32)}
    seq_idx = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None].int()
    with pytest.raises(ValueError, match=r"gated_delta_rule: `cu_seqlens` is given with B=1, and `seq_idx` is None"):
        layer(x, **places)
    with pytest.raises(ValueError, match=r"gated_delta_rule: `cu_seqlens` is given with B=2"):
        layer(x.expand(2, -1, -1), **places)
    uninstall(model)
    alone = [layer(part) for part in x.split(lengths, 1)]
    monkeypatch.setattr(modeling_qwen3_next, "causal_conv1d_fn", convolution)
    install(model)
    assert_rounding(layer(x, **places, seq_idx=seq_idx).detach(), torch.cat(alone, 1).detach().double(), "packed")


def test_uninstall_puts_back_what_was_there(kind: str, calls: list[str]) -> None:
    model, other, text = made(kind), made(kind), tokens(2, 67)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        logits = model(text).logits
        install(model)
        assert not torch.equal(model(text).logits, logits) and len(calls) == 3
        copied = copy.deepcopy(model)
        assert torch.equal(other(text).logits, logits)
        assert uninstall(model) is model
        assert torch.equal(model(text).logits, logits) and len(calls) == 3
        copied(text)
        assert len(calls) == 6
        assert torch.equal(uninstall(copied)(text).logits, logits) and len(calls) == 6
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any("forward" in vars(part) for part in model.modules() if hasattr(part, "A_log"))
    with pytest.raises(ValueError, match=f"uninstall: `model` is a {type(model).__name__}; expected one that"):
        uninstall(model)


def test_what_is_not_served_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"install: `model` is a Linear; expected an xLSTM .* Qwen3-Next, Qwen3.5, "):
        install(nn.Linear(2, 2))
    model = made(kind)
    with pytest.raises(ValueError, match=r"install: `apply_attention_mask` is True; expected False for a model with"):
        install(model, apply_attention_mask=True)
    layer = next(part for part in model.modules() if hasattr(part, "A_log"))
    layer.forward = layer.forward
    with pytest.raises(ValueError, match=f"install: the `forward` of a {type(layer).__name__} has been replaced"):
        install(model)
    del layer.forward
    install(model)
    with pytest.raises(ValueError, match="install: `model` runs on gatespec already"):
        install(model)


def test_a_decorator_that_hides_the_layers_function_is_refused() -> None:
    model = made("qwen3_next")
    layer = model.model.layers[0].linear_attn
    own = type(layer).forward

    @functools.wraps(own)
    def forward(*args: Any, function: Callable = own) -> Any:
        return function(*args)

    layer.__class__ = type("Decorated", (type(layer),), {"forward": forward})
    with pytest.raises(ValueError, match=r"install: a decorator of \S+\.forward does not hold in a variable what it"):
        install(model)


def test_pickle_refuses_what_it_cannot_restore(kind: str) -> None:
    model = install(made(kind))
    with pytest.raises((pickle.PicklingError, AttributeError), match="pickle"):
        pickle.dumps(model)
    pickle.dumps(uninstall(model))
