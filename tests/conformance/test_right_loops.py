"""The definition as anybody would write it, differentiated by the framework, is not refused; with a fault it is.

Only dense calls: the loops serve no packed ones.
"""

from functools import partial
from typing import Any

import pytest
import torch

from conformance.base.options import MAX_STEPS, RunOptions
from conformance.judge.outcome import LawResult
from tests.conformance import judging
from tests.suite.definitions import mlstm_jax, mlstm_torch

VALUE, GRADIENT = "mlstm.value", "mlstm.gradient"
DEFINITIONS = {"torch": mlstm_torch, "jax": mlstm_jax}
DTYPES = ("float64", "float32", "bfloat16", "float16")


def judged(framework: str, law: str, dtype: str, seed: int, **options: object) -> LawResult:
    """The suite's verdict on a loop; with seed 0 also on sequences of more than a thousand steps."""
    given = RunOptions(seed=seed, max_steps=130 if seed else MAX_STEPS, shrink_seconds=0.0)
    mlstm = partial(DEFINITIONS[framework].mlstm, **options)
    return judging.judged(law, dtype, given, framework=framework, mlstm=mlstm)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loop_under_autograd_holds_in_torch(dtype: str, seed: int) -> None:
    for law in (VALUE, GRADIENT):
        result = judged("torch", law, dtype, seed)
        assert result.status == "passed" and result.examples >= 18, result.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loop_under_autograd_holds_in_jax(dtype: str) -> None:
    for law in (VALUE, GRADIENT):
        result = judged("jax", law, dtype, 0)
        assert result.status == "passed" and result.examples >= 10, result.reason


def one_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    state: tuple,
    *,
    eps: float = 0.0,
) -> tuple[torch.Tensor, tuple]:
    """`mlstm_step` as the loop over a sequence of one step."""
    sequence = (x[:, None] for x in (q, k, v, i, f))
    h, state = mlstm_torch.mlstm(*sequence, initial_state=state, return_state=True, eps=eps)
    return h[:, 0], state


def test_autograd_of_autograd_is_a_second_derivative() -> None:
    """Wide heads, whose gradients are sums of many terms, are rounded, which a difference quotient magnifies."""

    def of_16(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arrays: Any, **options: Any) -> Any:
        if (q.shape[-1], v.shape[-1]) != (16, 16):
            raise NotImplementedError("head dims other than 16")
        return one_step(q, k, v, *arrays, **options)

    options = RunOptions(shrink_seconds=0.0)
    result = judging.judged("mlstm_step.second_derivative", "float64", options, mlstm_step=of_16)
    assert result.status == "passed", result.reason
    assert result.worst is not None and result.worst < 0.3


def exact_decays(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    state: tuple,
    *,
    eps: float = 0.0,
) -> tuple[torch.Tensor, tuple]:
    """`mlstm_step` whose weights are exact, also where its m is rounded."""
    a, (C, n, before) = torch.nn.functional.logsigmoid(f), state
    m = torch.maximum(a + before, i).detach()
    kept, written = torch.exp(a - (m - before)), torch.exp(i - m)
    n = kept[..., None] * n + written[..., None] * k
    C = kept[..., None, None] * C + (written[..., None] * k)[..., None] * v[..., None, :]
    q = q / q.shape[-1] ** 0.5
    Y = torch.maximum((q * n).sum(-1).abs(), torch.exp(-m.clamp(max=64.0))) + eps
    return torch.einsum("bnk,bnkv->bnv", q, C) / Y[..., None], (C, n, m)


def test_a_step_whose_m_is_always_the_nearest_number_loses_a_memory_at_huge_gates() -> None:
    """Whoever claims the contract has to choose the side to which m is rounded."""
    for contract, status in ((False, "differs"), (True, "failed")):
        options = RunOptions(examples=4, shrink_seconds=0.0, contract=contract)
        assert judging.judged("mlstm_step.huge_gates", "float32", options, mlstm_step=exact_decays).status == status


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework", DEFINITIONS)
def test_the_same_loop_with_its_normaliser_detached_is_broken(framework: str, dtype: str) -> None:
    result = judged(framework, GRADIENT, dtype, 0, normalise=DEFINITIONS[framework].divide_by_constant)
    assert result.status == "failed" and result.worst is not None and result.worst > 10


def test_a_stabiliser_out_of_the_gradient_is_wrong_for_the_cotangents_of_states() -> None:
    result = judged("torch", GRADIENT, "float64", 0, detach_m=True)
    assert result.status == "failed"
    assert {found.kind.where for found in result.counterexamples} <= {
        "gradient of i",
        "gradient of f",
        "gradient of m0",
    }
