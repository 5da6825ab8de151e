"""Strangers with faults: the first cause is the true one, and no coincidence; a right stranger has no cause."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from conformance.base.options import QUICK_EXAMPLES, RunOptions
from conformance.cases import MLSTMCase
from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.causes import array_line
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.faults import Faults
from conformance.diagnosis.patterns import patterns
from conformance.formulas.judged import Clock, Judge
from conformance.frameworks.targets import load
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import run
from conformance.operations import OPERATIONS
from conformance.tolerance.compared import ArrayOutcome
from tests.grids import larger
from tests.suite.diagnosing import cells, diagnosis
from tests.suite.strangers.catalogue import FAULTY, RIGHT, target
from tests.suite.strangers.slstm_loop import NAMED, slstm_loop
from tests.suite.strangers.torch_loops import gru_loop, mlstm_chunks, mlstm_loop, with_output

CONSTANT = "the specification with a fault: normaliser held constant in the gradient"
LOGARITHM = "the specification with a fault: log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0"


@cache
def _diagnosed(name: str) -> Diagnosis:
    stranger = {**RIGHT, **FAULTY}[name]
    return diagnosis(load(target(name), stranger.framework, "cpu"))


def _of_torch(mlstm: Callable) -> TorchImplementation:
    return TorchImplementation("stranger", {"mlstm": mlstm}, "cpu")


def _gru(function: Callable) -> TorchImplementation:
    return TorchImplementation("stranger", {"gru": function}, "cpu")


def test_a_right_stranger_has_no_cause_and_is_right_wherever_it_was_tried():
    found = _diagnosed("torch_gru")
    assert found.causes == ()
    (envelope,) = found.envelopes
    statuses = {cell.value for row in envelope.rows for cell in row.cells.values()}
    assert statuses <= {"right", "not tried"} and "right" in statuses
    assert "Right wherever it was tried" in envelope.summary


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("detached", "The gradient of mlstm equals that of the specification with a fault: normaliser held constant"),
        larger("no_scale", "mlstm equals the specification with a fault: 1/√K left out"),
        larger("reset_after", "gru equals the specification with a fault: reset gate after the recurrent product"),
        ("heads_tiled", "gru equals the specification with a fault: shared heads tiled, not repeated"),
    ],
)
def test_a_known_formula_is_recognised(name, sentence):
    first = _diagnosed(name).causes[0]
    assert first.sentence.startswith(sentence)
    assert first.formula is not None
    assert any(array.nature is not None for array in first.arrays)
    assert first.explains
    assert first.stored["kind"] in ("MLSTMCase", "gruCase")


def test_a_feature_that_a_failure_needs_is_named():
    def undefined(h: Any, q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        """NaN at a step whose forget gate is −∞, and nowhere else."""
        return torch.where(torch.isneginf(f)[..., None], torch.nan, h)

    found = diagnosis(_of_torch(with_output(mlstm_loop(), undefined)), laws=("value", "finite"), max_steps=33)
    assert "forget gates of -inf" in found.causes[0].features and found.causes[0].formula is None
    assert "infinite" in found.causes[0].sentence
    assert cells(found, "forget gates of -inf")["float32"][0] == "wrong"
    assert cells(found, "plain call")["float32"] == ("right", "right")


SUMS = "mlstm equals the specification with a fault: log decays as differences of cumulative sums"


def test_differences_of_cumulative_sums_are_recognised_and_explain_nan_at_resets() -> None:
    chunks = _of_torch(mlstm_chunks("differences of cumulative sums", length=64))
    found = diagnosis(chunks, laws=("finite",), dtypes=("float32", "float64"), examples=3)
    (cause,) = found.causes
    assert cause.sentence == SUMS
    assert {str(check) for check in cause.explains} == {"mlstm.finite (float32)", "mlstm.finite (float64)"}
    for feature in ("forget gates of -1e30", "forget gates of -inf"):
        assert set(cells(found, feature).values()) == {("wrong", "wrong")}
    (envelope,) = found.envelopes
    assert "wrong where a forget gate is minus infinite (a hard reset), and where a finite forget" in envelope.summary


def test_a_logarithm_of_a_sigmoid_is_one_cause_of_nan_at_resets_and_at_large_gates() -> None:
    def guarded(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return mlstm_loop(log_gate=lambda f: torch.log(torch.sigmoid(f)))(q, k, v, i, f, **options)

    found = diagnosis(_of_torch(guarded), laws=("gradient", "finite"), examples=10, max_steps=33)
    cause, *others = found.causes
    # At gates of 6 to 8 the logarithm's gradient loses digits as well (errors of 2e-5 to 6e-5 of an element, 1e-7 with
    # logsigmoid), which is another cause than NaN.
    wrong = {(array.where, array.nature) for other in others for array in other.arrays if array.nature}
    assert wrong <= {("gradient of f", "number")}
    assert {str(check) for check in cause.explains} == {"mlstm.finite (float32)", "mlstm.gradient (float32)"}
    assert cause.sentence == f"The gradient of mlstm equals {LOGARITHM.replace('the ', 'that of the ', 1)}"
    for feature in ("forget gates of -1e30", "forget gates of -inf"):
        assert cells(found, feature)["float32"] == ("right", "wrong")


@pytest.mark.parametrize("dtype", ["bfloat16", larger("float16")])
def test_a_log_gate_in_16_bits_is_one_cause_of_all_laws_that_it_breaks(dtype: str) -> None:
    narrow_dtype = getattr(torch, dtype)

    def rounded(f: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.logsigmoid(f).to(narrow_dtype).to(f.dtype)

    narrow, wide = mlstm_loop(log_gate=rounded), mlstm_loop()

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return (narrow if f.dtype == narrow_dtype else wide)(q, k, v, i, f, **options)

    laws = ("value", "gradient", "accumulation")
    found = diagnosis(_of_torch(mlstm), laws=laws, dtypes=(dtype,), examples=8, max_steps=65)
    (cause,) = found.causes
    assert cause.sentence.startswith(f"mlstm equals the specification with a fault: log σ(f) rounded to {dtype}")
    assert f"mlstm.accumulation ({dtype})" in map(str, cause.explains)


def test_a_decay_matrix_from_differences_of_cumulative_sums_is_recognised() -> None:
    def causal_forget_matrix(a: torch.Tensor) -> torch.Tensor:
        sums = a.cumsum(dim=-1)
        lower = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool).tril()
        return torch.where(lower, sums[..., :, None] - sums[..., None, :], -torch.inf)

    stranger = TorchImplementation("stranger", {"causal_forget_matrix": causal_forget_matrix}, "cpu")
    found = diagnosis(stranger, dtypes=("float64", "float32"), examples=10)
    said = "causal_forget_matrix equals the specification with a fault: differences of cumulative sums"
    assert found.causes[0].sentence == said
    assert {"causal_forget_matrix.value (float32)", "causal_forget_matrix.value (float64)"} <= {
        str(check) for check in found.causes[0].explains
    }


def test_nan_at_resets_is_not_taken_for_differences_of_cumulative_sums() -> None:
    assert all(SUMS not in cause.sentence for cause in _diagnosed("nan_at_resets").causes)


@pytest.mark.parametrize("factor", [4, 16])
def test_the_number_that_has_to_divide_S_is_found(factor: int) -> None:
    loop = gru_loop()

    def dropping(*arrays: torch.Tensor, **options: Any) -> Any:
        """The last steps that do not fill a block are 0."""
        if options.get("cu_seqlens") is not None:
            raise NotImplementedError("no packed sequences")
        y, state = loop(*arrays, **options)
        S = y.shape[1]
        kept = torch.arange(S) < S - S % factor
        return torch.where(kept[None, :, None, None], y, 0.0), state

    found = diagnosis(_gru(dropping), laws=("value",), only="values", examples=3)
    assert found.causes[0].sentence.endswith(f"where S % {factor} ≠ 0")


def test_a_quick_run_names_the_first_cause() -> None:
    refusing = _of_torch(mlstm_loop("normaliser detached", "packed sequences refused"))
    options = RunOptions(ops=("mlstm",), quick=True, examples=QUICK_EXAMPLES)
    results = list(run(refusing, options))
    broken = next(result for result in results if result.status == "failed")
    assert broken.examples == 1 and broken.saved > 0
    found = diagnose(refusing, options, results)
    assert "normaliser held constant in the gradient" in found.causes[0].sentence
    # Experiments have the time that the law saved, which does not suffice for every feature.
    assert cells(found, "plain call") == {"float32": ("right", "wrong")}
    assert cells(found, "layout") == {"float32": ("not tried", "not tried")}
    assert "Not tried for lack of time: " in found.envelopes[0].summary
    assert "without --quick there are more experiments" in found.note


@pytest.mark.parametrize("seed", range(3))
def test_a_quick_run_sees_what_fails_at_a_hard_reset_alone(seed: int) -> None:
    loaded = load(target("differences_of_sums"), "torch", "cpu")
    options = RunOptions(ops=("mlstm",), quick=True, examples=QUICK_EXAMPLES, seed=seed)
    assert [result.law.name for result in run(loaded, options) if result.status == "failed"] == ["value", "gradient"]


def test_of_two_wrong_values_the_one_is_named_that_simple_calls_show() -> None:
    first = _diagnosed("floor_of_1_and_no_initial_m").causes[0]
    assert first.sentence.startswith("mlstm equals the specification with a fault: floor of 1 in the normaliser")


def _patterns(factor: float, *cases: MLSTMCase) -> list[dict[str, str]]:
    """The patterns of each case where h is off by a factor and the normaliser has no gradient."""
    target = _of_torch(with_output(mlstm_loop("normaliser detached"), lambda h, *_, **options: factor * h))
    judge = Judge(target, OPERATIONS["mlstm"], "float32")
    return [patterns([judge(case)]) for case in cases]


def test_no_pattern_is_named_where_the_values_are_too_few_to_tell() -> None:
    one = MLSTMCase(1, 1, 1, 1, 1, removed=("normaliser at its floor",), return_state=False)
    ones, several = replace(one, elements="ones"), replace(one, S=3, K=2, V=4)
    # The gradients of q and k are h there, and nothing else.
    assert _patterns(1.0, ones) == [{}]
    of_ones, of_one, of_several = _patterns(2.0, ones, one, several)
    assert "h" not in of_ones
    assert of_one["h"] == of_several["h"] == "is 2 × what it should be"


def test_a_pattern_is_what_all_calls_show() -> None:
    def one_and_a_half(h: torch.Tensor, q: torch.Tensor, *_: torch.Tensor, **options: Any) -> torch.Tensor:
        return h * torch.where(q[:, :1, :, :1] > 0, 2.0, 0.5)

    target = _of_torch(with_output(mlstm_loop(), one_and_a_half))
    judge = Judge(target, OPERATIONS["mlstm"], "float32", gradients=False)
    trials = [judge(MLSTMCase(1, 1, 1, 2, 3, seed=seed, return_state=False)) for seed in range(6)]
    alone = [patterns([trial]) for trial in trials]
    assert {each["h"] for each in alone} == {"is 2 × what it should be", "is ½ × what it should be"}
    assert patterns(trials) == {}


def test_a_cause_explains_no_checks_of_dtypes_that_it_is_not_seen_in() -> None:
    def rounded(h: torch.Tensor, q: torch.Tensor, *_: torch.Tensor, **options: Any) -> torch.Tensor:
        return h * 1.1 if q.dtype == torch.bfloat16 and q.shape[1] > 1 else h

    found = diagnosis(
        _of_torch(with_output(mlstm_loop("NaN where a gate is minus infinity"), rounded)),
        laws=("value", "finite"),
        dtypes=("float64", "float32", "bfloat16"),
        examples=3,
        max_steps=33,
    )
    of_16_bits = [cause for cause in found.causes if cause.dtype == "bfloat16"]
    assert of_16_bits
    for cause in of_16_bits:
        assert {check.dtype for check in cause.explains} == {"bfloat16"}
    assert {"mlstm.finite (float64)", "mlstm.finite (float32)"} <= {
        str(check) for cause in found.causes for check in cause.explains
    }


def _gru_of_one(*arrays: torch.Tensor, **options: Any) -> Any:
    if arrays[0].shape[-1] != 1:
        raise NotImplementedError("H must be 1")
    y, state = gru_loop()(*arrays, **options)
    return (1.5 * y if y.dtype == torch.bfloat16 else y), state


def test_a_cause_names_no_size_that_refusals_force() -> None:
    found = diagnosis(_gru(_gru_of_one), dtypes=("float64", "bfloat16"), examples=3)
    sentences = [cause.sentence for cause in found.causes]
    assert sentences and not any("where H" in sentence for sentence in sentences)
    # All laws held in float64, and yet each kind of call is tried there, from a plain call that is served.
    (envelope,) = found.envelopes
    statuses = {row.feature: row.cells["float64"].value for row in envelope.rows}
    assert "not tried" not in statuses.values()
    assert statuses["plain call"] == "right" and statuses["H above 32"] == "not served"


def test_an_error_where_next_to_nothing_is_expected_is_a_number_and_not_a_share() -> None:
    def off(error: float, distance: float) -> ArrayOutcome:
        return ArrayOutcome(where="h", nature="number", worst=9.0, error=error, wrong=0.5, distance=distance)

    assert array_line([off(0.5, 2.0)]) == "h 50 % off in 50 % of its elements"
    assert array_line([off(9.0, 18.0)]) == "h 900 % off in 50 % of its elements"
    said = "h off by 3.5e-08 where at most 3.9e-21 is expected in 50 % of its elements"
    assert array_line([off(8.9e12, 3.5e-8)]) == said
    assert array_line([off(math.inf, 3.5e-8)]) == "h off by 3.5e-08 where 0 is expected in 50 % of its elements"
    assert array_line([off(math.inf, math.inf)]) == "h ∞ off in 50 % of its elements"


def test_a_formula_explains_the_calls_in_which_other_faults_show_too() -> None:
    loop = mlstm_loop("normaliser detached")

    def without_gradients(state: Any) -> Any:
        return None if state is None else (state[0], state[1].detach(), state[2].detach())

    def mlstm(*arrays: Any, initial_state: Any = None, return_state: bool = False, **options: Any) -> Any:
        """The n and m of the initial and the final state have no gradient."""
        h, last = loop(*arrays, initial_state=without_gradients(initial_state), return_state=True, **options)
        return (h, without_gradients(last)) if return_state else h

    found = diagnosis(_of_torch(mlstm), laws=("gradient", "functional"), examples=4, max_steps=16)
    first, *others = found.causes
    assert first.formula == CONSTANT
    assert {check for cause in others for check in cause.explains} <= set(first.explains)
    assert all(cause.features for cause in others)


def test_a_value_that_is_wrong_in_one_dtype_is_not_said_to_be_wrong_on_every_call() -> None:
    loop = gru_loop()

    def gru(*arrays: torch.Tensor, **options: Any) -> Any:
        """In float64, y is off by 1e-8 of itself where it is positive."""
        y, state = loop(*arrays, **options)
        return (torch.where(y > 0, y * (1 + 1e-8), y), state) if y.dtype == torch.float64 else (y, state)

    found = diagnosis(_gru(gru), laws=("value",), dtypes=("float64", "float32"), examples=3)
    (cause,) = found.causes
    assert cause.sentence == "The value of gru is wrong on every call that was tried in float64"


def test_a_feature_that_a_plain_call_lacks_is_not_needed() -> None:
    loop = gru_loop()

    def gru(*arrays: torch.Tensor, **options: Any) -> Any:
        """Inexact in 16 bits, but calls of four steps happen to be right."""
        y, state = loop(*arrays, **options)
        inexact = y.dtype == torch.bfloat16 and y.shape[1] != 4
        return (y + (y * 2**-5).to(y.dtype), state) if inexact else (y, state)

    found = diagnosis(_gru(gru), laws=("value",), dtypes=("bfloat16",), only="values", examples=3)
    assert found.causes
    assert not [cause.sentence for cause in found.causes if "multiple" in cause.sentence]


def test_a_feature_is_not_needed_if_other_draws_are_wrong_without_it() -> None:
    def doubled(h: Any, q: Any, k: Any, v: Any, i: Any, f: Any, *, initial_state: Any = None, **options: Any) -> Any:
        """Twice as much where there is an initial state and the first forget gate of the sequence is positive."""
        return torch.where(f[:, :1, :1, None] > 0, 2 * h, h) if initial_state is not None and h.numel() else h

    mlstm = with_output(mlstm_loop("packed sequences refused"), doubled)
    operation = OPERATIONS["mlstm"]
    for seed in range(6):
        judge = Judge(_of_torch(mlstm), operation, "float32", gradients=False)
        faults = Faults(operation, {"float32": judge}, Clock(60.0))
        for fault in faults.explain(MLSTMCase(2, 7, 2, 3, 2, state="random", seed=seed), "float32"):
            assert [feature.name for feature in fault.features] == ["initial state"]


def test_two_faults_in_one_call_are_the_two_that_were_found_in_others() -> None:
    pair = mlstm_loop("normaliser detached", "NaN where a gate is minus infinity")
    found = diagnosis(_of_torch(pair), laws=("gradient", "finite"), examples=4, max_steps=16)
    # Where both gates are −∞, values are NaN, too, which is a third fault.
    assert {cause.formula for cause in found.causes if cause.kind == "gradient"} <= {CONSTANT, LOGARITHM}
    assert {cause.formula for cause in found.causes} >= {CONSTANT, LOGARITHM}


def test_a_sentence_names_every_feature_and_no_number_of_them() -> None:
    def doubled(h: Any, q: Any, k: Any, v: Any, *gates: Any, initial_state: Any = None, **options: Any) -> Any:
        """Wrong where five features meet."""
        B, S, N, K = q.shape if q.ndim == 4 else (1, *q.shape)
        return 2 * h if initial_state is not None and min(B, N, S) > 1 and v.shape[-1] != K else h

    found = diagnosis(
        _of_torch(with_output(mlstm_loop(), doubled)), laws=("value",), examples=20, max_steps=20, only="values"
    )
    (cause,) = found.causes
    where = "a call has an initial state and there is more than one sequence and there is more than one head"
    assert cause.sentence.startswith(f"mlstm: the output h is 2 × what it should be where {where}")
    assert len(cause.features) > 3 and "rare calls" not in cause.sentence
    for clause in ("K differs from V", "S > 1"):
        assert f" and {clause}" in cause.sentence


def test_experiments_on_sizes_share_their_shapes() -> None:
    shapes, loop = set(), mlstm_loop("packed sequences refused", "normaliser detached")

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        shapes.add((*q.shape, v.shape[-1]))
        return loop(q, k, v, i, f, **options)

    implementation = _of_torch(mlstm)
    options = RunOptions(ops=("mlstm",), laws=("gradient",), dtypes=("float32",), examples=1, shrink_seconds=0.0)
    results = list(run(implementation, options))
    shapes.clear()
    found = diagnose(implementation, options, results)
    # Six of them have features beyond the size of a tile, each alone: together they would take long.
    assert len(shapes) <= 16, sorted(shapes)
    for name in ("several heads", "several sequences", "K differs from V", "several chunks"):
        assert cells(found, name) == {"float32": ("right", "wrong")}


@pytest.mark.parametrize("fault", ["n at least 1", *(larger(fault) for fault in NAMED if fault != "n at least 1")])
def test_a_fault_of_an_slstm_is_named_by_its_formula(fault: str) -> None:
    found = diagnosis(TorchImplementation("stranger", {"slstm": slstm_loop(fault)}, "cpu"))
    assert found.causes[0].sentence == NAMED[fault]


def test_a_right_slstm_of_a_stranger_is_accepted() -> None:
    options = RunOptions(ops=("slstm",), laws=("value", "gradient"), dtypes=("bfloat16",), examples=6)
    results = list(run(TorchImplementation("stranger", {"slstm": slstm_loop()}, "cpu"), options))
    assert {result.status for result in results} == {"passed"}


@pytest.mark.parametrize("quick", [larger(False), True], ids=["whole", "quick"])
def test_the_gradient_of_a_forget_gate_without_the_candidate_has_a_name(quick: bool) -> None:
    (first, *_) = diagnosis(_gru(_kept_share_alone), quick=quick).causes
    name = "forget gate's gradient of h in place of h − z"
    assert first.formula == f"the specification with a fault: {name}" and not first.features


def _kept_share_alone(x: Any, W: Any, xf: Any, Wf: Any, xr: Any, Wr: Any, **options: Any) -> Any:
    """A GRU that is differentiated as if its forget gate did not say how much of the candidate is written."""
    h = options.pop("input_state", None)
    if any(option not in (None, False) for option in options.values()):
        raise NotImplementedError("no options")
    N = max(*(a.shape[2] for a in (x, xf, xr)), *(a.shape[0] for a in (W, Wf, Wr)))
    x, xf, xr = (a.repeat_interleave(N // a.shape[2], 2) for a in (x, xf, xr))
    W, Wf, Wr = (a.repeat_interleave(N // a.shape[0], 0) for a in (W, Wf, Wr))
    h = x.new_zeros(x.shape[0], N, x.shape[-1]) if h is None else h.to(x.dtype)
    states = [h]
    for t in range(x.shape[1]):
        f, r = (_gate(states[-1], a[:, t], U) for a, U in ((xf, Wf), (xr, Wr)))
        z = torch.tanh(torch.einsum("bni,nij->bnj", r * states[-1], W) + x[:, t])
        states.append(f * states[-1] + (1 - f.detach()) * z)
    return torch.stack(states[1:], 1) if x.shape[1] else torch.zeros_like(x), states[-1]


def _gate(h: torch.Tensor, x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(torch.einsum("bni,nij->bnj", h, W) + x)


class _Slope(torch.autograd.Function):
    """f, with a gradient times exp(f), which turns a slope of σ(−f) into one of σ(f)."""

    @staticmethod
    def forward(ctx: Any, f: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(f)
        return f.clone()

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
        (f,) = ctx.saved_tensors
        return d * torch.exp(f.clamp(max=80.0))


@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
def test_the_other_sigmoid_in_the_gradient_of_the_forget_gate_has_a_name(quick: bool) -> None:
    loop = mlstm_loop()
    target = _of_torch(lambda q, k, v, i, f, **options: loop(q, k, v, i, _Slope.apply(f), **options))
    first = diagnosis(target, quick=quick).causes[0]
    said = "that of the specification with a fault: forget gate's gradient times sigmoid of the gate"
    assert first.sentence == f"The gradient of mlstm equals {said}"
