"""A target may refuse a case, never a law: the law goes on with what is served, and what was found stands."""

import functools
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_impl
from conformance.base.options import RunOptions
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import Runner
from conformance.laws import all_laws
from tests.conformance.judging import judged as on_functions
from tests.conformance.judging import judged_file
from tests.grids import larger

GRU = """
import numpy as np
import reference

def gru(input, weight, forget_input, forget_weight, reset_input, reset_weight, input_state=None, *,
        gradient_clipping=None, cu_seqlens=None, max_seqlen=None, kernel_backend=None):
    {refusal}
    y, state = reference.gru(input, weight, forget_input, forget_weight, reset_input, reset_weight, input_state,
                             gradient_clipping=gradient_clipping, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
    return {result}
"""
CLIPPING = "if gradient_clipping is not None: raise NotImplementedError('clips by another formula')"
PLAIN = (
    "if gradient_clipping is not None or input_state is not None or cu_seqlens is not None or input.shape[1] == 0:\n"
    "        raise NotImplementedError('plain calls only')"
)
SCAN = """
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    {refusal}
    return exact(x)

def rev_cumsum_backward(x, *, dy):
    {refusal}
    return {{"x": {factor} * np.cumsum(dy, axis=-1, dtype=np.float64)}}
"""
EMPTY = "if x.shape[-1] == 0: raise NotImplementedError('no steps')"


judged = partial(judged_file, options=RunOptions(shrink_seconds=2.0))


def test_wrong_values_before_a_refusal_stand(tmp_path: Path) -> None:
    result = judged(tmp_path, GRU.format(refusal=CLIPPING, result="1.001 * y, state"), "gru.value")
    assert result.status == "failed" and result.counterexamples[0].where == "y"
    assert "clipping" not in result.counterexamples[0].case


def test_a_wrong_gradient_beside_a_refusal_is_found(tmp_path: Path) -> None:
    result = judged(tmp_path, SCAN.format(refusal=EMPTY, factor=2), "rev_cumsum.gradient")
    assert result.status == "failed" and result.counterexamples[0].kind.where == "gradient of x"


def test_a_target_that_serves_only_plain_calls_is_judged_on_as_many_examples(tmp_path: Path) -> None:
    whole = judged(tmp_path, GRU.format(refusal="", result="y, state"), "gru.value")
    plain = judged(tmp_path, GRU.format(refusal=PLAIN, result="y, state"), "gru.value")
    assert whole.status == plain.status == "passed"
    assert whole.refused.cases == 0 and plain.refused.cases > 0 and plain.refused.reason.endswith("plain calls only")
    assert plain.examples >= whole.examples - 2
    assert set(plain.refused.features) == {"clipping", "initial state", "S = 0"}


def test_a_law_without_a_served_case_is_not_served(tmp_path: Path) -> None:
    result = judged(tmp_path, GRU.format(refusal=PLAIN, result="y, state"), "gru.packed")
    assert result.status == "not served" and result.examples == 0 and not result.counterexamples
    assert result.reason is not None and re.search("plain calls only", result.reason)
    # Nothing is drawn for ever in the hope of a case that is served.
    assert result.refused.cases < 100


@pytest.mark.parametrize("law", ["gru.permutation", "gru.determinism", "gru.finite"])
def test_other_laws_are_judged_too(tmp_path: Path, law: str) -> None:
    noise = "np.random.default_rng().normal(size=y.shape) * np.where(np.isinf(forget_input).any(), np.nan, 1)"
    text = GRU.format(refusal=PLAIN, result=f"{noise}, state")
    dtype = "float32" if law == "gru.determinism" else "float64"
    assert judged(tmp_path, text, law, dtype).status == "failed"


NO_GRADIENT = """
import numpy as np
import reference

def mlstm_step({arguments}):
    h, state = reference.mlstm_step({arguments})
    return {result}, state

def mlstm_step_backward(*arrays, **options):
    raise NotImplementedError('gradients are not supported')
"""
ARGUMENTS = "q, k, v, i, f, state, *, eps=0.0, kernel_backend=None"
STEP = NO_GRADIENT.replace("{arguments}", ARGUMENTS, 1).replace("{arguments}", "q, k, v, i, f, state, eps=eps")
WITHOUT = ("memory", "dtypes", "determinism", "uninitialised", "finite", "shifted_gates")


@pytest.mark.parametrize("law", WITHOUT)
def test_a_law_that_can_do_without_gradients_is_tried_where_they_are_refused(tmp_path: Path, law: str) -> None:
    result = judged(tmp_path, STEP.format(result="h"), f"mlstm_step.{law}", "float32")
    assert result.status == "passed" and result.examples > 0 and result.refused.cases == 0, result.reason


def test_gradients_that_are_refused_are_still_not_served(tmp_path: Path) -> None:
    result = judged(tmp_path, STEP.format(result="h"), "mlstm_step.gradient", "float32")
    assert result.status == "not served" and "gradients are not supported" in str(result.reason)


NOISE = "h + np.random.default_rng().normal(size=h.shape)"


# Where h is float32, the target computes in the dtype of its arguments, and its states have to be float32, too.
@pytest.mark.parametrize(("law", "result", "where"), [("dtypes", "np.float32(h)", "C"), ("determinism", NOISE, "h")])
def test_a_break_is_found_without_gradients(tmp_path: Path, law: str, result: str, where: str) -> None:
    found = judged(tmp_path, STEP.format(result=result), f"mlstm_step.{law}", "float32")
    assert found.status == "failed" and found.counterexamples[0].where == where


FEW = GRU.replace("gradient_clipping=None, cu_seqlens=None, max_seqlen=None, kernel_backend=None", "max_seqlen=None")
FEW = FEW.replace("gradient_clipping=gradient_clipping, cu_seqlens=cu_seqlens, max_seqlen", "max_seqlen")


def test_a_keyword_that_a_target_does_not_have_is_refused(tmp_path: Path) -> None:
    few = FEW.format(refusal="", result="y, state")
    value = judged(tmp_path, few, "gru.value")
    assert value.status == "passed" and value.refused.features == ("clipping",)
    for law, keyword in (("packed", "cu_seqlens"), ("reset_after", "reset_after")):
        result = judged(tmp_path, few, f"gru.{law}")
        assert result.status == "not served" and result.reason is not None
        assert re.fullmatch(f"gru takes no (`.*` and no )?`{keyword}`", result.reason)


@pytest.mark.parametrize("inside", ["np.sum(input, axes=0)", "reference.gru(input, mask=None)"])
def test_another_type_error_breaks_the_law(tmp_path: Path, inside: str) -> None:
    result = judged(tmp_path, GRU.format(refusal=inside, result="y, state"), "gru.value")
    assert result.status == "failed" and "unexpected keyword argument" in result.counterexamples[0].problem


def test_gatespecs_contract_asks_for_every_keyword() -> None:
    result = on_functions("gru.packed", own=True, gru=lambda *arrays, max_seqlen=None: arrays)
    assert result.status == "failed" and "unexpected keyword argument" in result.counterexamples[0].problem


def _limits(q: torch.Tensor, v: torch.Tensor) -> dict[str, bool]:
    S, K, V = q.shape[1], q.shape[-1], v.shape[-1]
    return {
        "S a multiple of 64": bool(S % 64) or S == 0,
        "head dims multiples of 16": bool(K % 16 or V % 16),
        "head dims of 64": K != 64 or V != 64,
        "head dims of 1": K != 1 or V != 1,
        "K is V": K != V,
        "S at most 16": S > 16,
    }


SHORT = RunOptions(max_steps=130, shrink_seconds=0.0)
DENSE = ("value", "gradient", "linearity", "causality", "permutation")
"""Laws that any call can be tried on."""


@functools.cache
def _examples(law: str) -> int:
    """The number of cases on which a target without limits is judged."""
    return on_functions(law, options=SHORT, mlstm=torch_impl.mlstm).examples


@pytest.mark.long
@pytest.mark.parametrize(
    "limits",
    [
        larger(("packed", "initial state", "head dims multiples of 16", "S a multiple of 64")),
        larger(("packed", "head dims of 64", "S a multiple of 64")),
        ("head dims of 1",),
        ("K is V", "chunk size"),
        ("S at most 16", "initial state"),
    ],
    ids=" and ".join,
)
def test_a_target_with_limits_is_judged_on_all_other_calls(limits: tuple[str, ...]) -> None:
    def mlstm(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor, **options: Any
    ) -> Any:
        given = {"packed": "cu_seqlens", "initial state": "initial_state", "chunk size": "chunk_size"}
        refused = {name: options.get(option) is not None for name, option in given.items()} | _limits(q, v)
        for limit in limits:
            if refused[limit]:
                raise NotImplementedError(f"not served: {limit}")
        return torch_impl.mlstm(q, k, v, i, f, **options)

    runner = Runner(TorchImplementation("limited", {"mlstm": mlstm}, "cpu"), SHORT)
    for law in (each for each in all_laws() if each.op == "mlstm" and each.name in (*DENSE, "packed")):
        result = runner.result(law, "float32")
        if law.name == "packed" and "packed" in limits:
            assert result.status == "not served" and str(result.reason).endswith("not served: packed")
            continue
        assert result.status == "passed", (law.id, result.status, result.reason)
        assert result.examples >= 0.7 * _examples(law.id), (law.id, result.refused)
        assert result.refused.features or not result.refused.cases
        assert "several steps" not in result.refused.features
