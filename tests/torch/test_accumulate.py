"""Gradient accumulation: seeds, the gradients that are held, and operators with a state of their own."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.torch.loops import relative_error
from torch_impl import accumulate_gradients, accumulate_gradients_loop, accumulate_gradients_scan, mlstm
from torch_impl._accumulate import split

BOTH = pytest.mark.parametrize("accumulate", [accumulate_gradients_loop, accumulate_gradients_scan])


def apply_fn(params, x):
    return torch.tanh(x @ params["layer"]["w"]) @ params["out"] + params["b"]


def loss_fn(params, apply_fn, minibatch, rng):
    error = apply_fn(params, minibatch["x"]) - minibatch["y"]
    loss = error.square().mean()
    metrics = {"loss": loss, "count": error.shape[0], "largest": (error.abs().max(), torch.tensor(1))}
    return loss, (metrics, {"mean": minibatch["x"].mean(0), "nothing": None})


@pytest.fixture
def state():
    torch.manual_seed(0)
    params = {"layer": {"w": torch.randn(3, 4)}, "out": torch.randn(4), "b": torch.zeros((), dtype=torch.bfloat16)}
    return SimpleNamespace(params=params, apply_fn=apply_fn)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(12, 3, generator=generator), "y": torch.randn(12, generator=generator), "unused": None}


@BOTH
def test_seeds(accumulate, state, batch):
    seen = []

    def seeded(params, apply_fn, minibatch, rng):
        seen.append(rng)
        return loss_fn(params, apply_fn, minibatch, rng)

    accumulate(state, batch, 5, 4, seeded)
    spawned = np.random.SeedSequence(5, spawn_key=(0,)).spawn(4)
    assert seen == split(5, 4) == [int(seed.generate_state(1, np.uint64)[0]) for seed in spawned]
    assert all(type(seed) is int for seed in seen) and len(set(seen)) == 4


def test_one_minibatch_of_gradients_is_held_at_a_time(state, batch, monkeypatch):
    """When the last minibatch starts, there is the sum, and of the others' gradients the latest at most."""
    state = SimpleNamespace(params=state.params["out"], apply_fn=lambda out, x: x.sum(1, keepdim=True) @ out[:1])
    real = torch.func.grad_and_value
    for accumulate in (accumulate_gradients, accumulate_gradients_loop, accumulate_gradients_scan):
        gradients, counts = [], []

        def spying(function, real=real, gradients=gradients, counts=counts, **options):
            def call(*args):
                counts.append(sum(gradient() is not None for gradient in gradients))
                result = real(function, **options)(*args)
                gradients.append(weakref.ref(result[0][0]))
                return result

            return call

        monkeypatch.setattr(torch.func, "grad_and_value", spying)
        accumulate(state, batch, 0, 6, loss_fn)
        assert len(counts) == 6 and counts[-1] <= 1


def test_parameters_that_require_a_gradient_and_operators_of_ours(batch):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 8))
    state = SimpleNamespace(params=[weight], apply_fn=lambda params, x: x @ params[0])

    def with_mlstm(params, apply_fn, minibatch, rng):
        y = apply_fn(params, minibatch["x"]).reshape(-1, 1, 1, 8)
        return mlstm(y, y, y, y[..., 0], y[..., 1]).square().sum(), ({}, None)

    (gradient,), _, _ = accumulate_gradients(state, batch, 0, 3, with_mlstm, use_scan=True)
    loss, _ = with_mlstm(state.params, state.apply_fn, batch, 0)
    loss.backward()
    assert not gradient.requires_grad and relative_error(gradient, weight.grad / 3) < 1e-5


def test_weights_that_are_not_read(state, batch):
    """Under a transform, those that would be refused make every gradient NaN; float64 sums keep their precision."""
    state.params["out"] = state.params["out"].double()

    def of_row(params, apply_fn, minibatch, rng):
        error = torch.tanh(minibatch["x"] @ params["layer"]["w"]).double() @ params["out"] + params["b"]
        loss = (error - minibatch["y"]).square().mean()
        return loss, ({}, None)

    def run(weights):
        return accumulate_gradients(state, batch, 0, 3, of_row, weights=weights)[0]

    many = torch.tensor([[2**24 + 1, 2, 0], [1, 0, 3], [0, 0, 0], [-1, 2, 2]])
    found = torch.func.vmap(run)(many)
    for at in range(2):
        expected = run(many[at])
        assert expected["b"].dtype is torch.bfloat16
        for name in ("out", "b"):
            assert relative_error(found[name][at], expected[name]) < 1e-12
    assert found["out"][2:].isnan().all() and found["layer"]["w"][2:].isnan().all()
    parts = [{name: batch[name][4 * b : 4 * b + 4] for name in "xy"} for b in range(2)]
    each = [accumulate_gradients(state, part, 0, 1, of_row)[0]["out"] for part in parts]
    exact = ((2**24 + 1) * each[0] + 2 * each[1]) / (2**24 + 3)
    assert relative_error(run(many[0])["out"], exact) < 1e-14
    weighted = accumulate_gradients(state, batch, 0, 3, of_row, weights=many[1].float().requires_grad_())[0]
    assert relative_error(weighted["out"], found["out"][1]) < 1e-12 and not weighted["out"].requires_grad
