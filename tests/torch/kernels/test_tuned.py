"""How a plan is chosen and kept, with a clock that is none; and that every plan offered computes the same."""

import json
from functools import partial
from itertools import product
from typing import NamedTuple

import pytest
import torch

from tests.torch.kernels.test_mlstm_kernels import Case
from torch_impl._gru import arguments as gru_arguments
from torch_impl._gru.triton import launch as gru
from torch_impl._mlstm.arguments import Arguments, Cotangents
from torch_impl._mlstm.triton import launch as mlstm
from torch_impl._mlstm.triton import plans as mlstm_plans
from torch_impl._recurrent.triton import launch as recurrent
from torch_impl._recurrent.triton.plans import plans as recurrent_plans
from torch_impl._slstm import arguments as slstm_arguments
from torch_impl._slstm.triton import launch as slstm
from torch_impl._triton import tuning
from torch_impl._triton.launch import Launch

GPU = torch.device("cuda", 0)


class Plan(NamedTuple):
    L: int
    how: Launch


PLANS = Plan(64, Launch(4, 2)), Plan(32, Launch(4, 2)), Plan(32, Launch(8, 1))


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """A GPU on which the plans take as long as the list says; ``clock.runs`` counts what was measured."""

    class Clock:
        def __init__(self):
            self.times = dict(zip(PLANS, (3.0, 1.0, 2.0), strict=True))
            self.runs: list[Plan] = []
            self.file = tmp_path / "plans" / "triton-plans.json"

        def choose(self, sizes="bfloat16 K128", plans=PLANS):
            return tuning.tuned("kernel", sizes, lambda: plans, GPU, self.run)

        def run(self, plan):
            self.runs.append(plan)

    def milliseconds(run):
        run()
        return clock.times[clock.runs[-1]]

    clock = Clock()
    monkeypatch.setattr(tuning, "_milliseconds", milliseconds)
    monkeypatch.setattr(tuning, "_device_name", lambda device: "some GPU")
    monkeypatch.setattr(tuning, "_triton_version", lambda: "3.6.0")
    monkeypatch.setattr(tuning, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setenv("GATESPEC_CACHE", str(clock.file.parent))
    monkeypatch.setenv("GATESPEC_AUTOTUNE", "1")
    tuning.forget()
    yield clock
    tuning.forget()


def test_nothing_is_measured_unasked(clock, monkeypatch) -> None:
    monkeypatch.delenv("GATESPEC_AUTOTUNE")
    assert clock.choose() == PLANS[0]
    assert not clock.runs and not clock.file.exists()


def test_the_fastest_is_measured_once_and_outlives_the_process(clock, monkeypatch) -> None:
    assert clock.choose() == clock.choose() == PLANS[1]
    assert clock.runs == list(PLANS)
    tuning.forget()
    monkeypatch.delenv("GATESPEC_AUTOTUNE")
    assert clock.choose() == PLANS[1]
    assert clock.runs == list(PLANS)
    (key,) = json.loads(clock.file.read_text())
    assert key == "some GPU | triton 3.6.0 | kernel | bfloat16 K128"
    assert [path.name for path in clock.file.parent.iterdir()] == [clock.file.name]


def test_each_set_of_sizes_is_measured_and_kept_beside_the_others(clock) -> None:
    clock.choose("bfloat16 K128")
    clock.choose("bfloat16 K64")
    assert len(clock.runs) == 6
    assert len(json.loads(clock.file.read_text())) == 2


def test_the_file_can_be_left_aside(clock, monkeypatch) -> None:
    clock.choose()
    monkeypatch.setenv("GATESPEC_AUTOTUNE", "0")
    assert clock.choose() == PLANS[0]


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"some GPU | triton 3.6.0 | kernel | bfloat16 K128": 3}'])
def test_a_file_that_is_none_counts_for_nothing(text, clock, monkeypatch) -> None:
    clock.file.parent.mkdir()
    clock.file.write_text(text)
    monkeypatch.delenv("GATESPEC_AUTOTUNE")
    assert clock.choose() == PLANS[0]
    monkeypatch.setenv("GATESPEC_AUTOTUNE", "1")
    assert clock.choose() == PLANS[1]
    assert len(json.loads(clock.file.read_text())) == 1


def test_a_plan_that_is_not_offered_counts_for_nothing(clock) -> None:
    clock.choose()
    tuning.forget()
    assert clock.choose(plans=(PLANS[0], PLANS[2])) == PLANS[2]


def test_a_plan_that_does_not_fit_is_no_candidate(clock, monkeypatch) -> None:
    errors = pytest.importorskip("triton.runtime.errors")

    def run(plan):
        clock.runs.append(plan)
        if plan is PLANS[1]:
            raise errors.OutOfResources(300, 227, "shared memory")

    monkeypatch.setattr(clock, "run", run)
    assert clock.choose() == PLANS[2]

    def fails(plan):
        raise ZeroDivisionError

    monkeypatch.setattr(clock, "run", fails)
    with pytest.raises(ZeroDivisionError):
        clock.choose("others")


def test_nothing_is_measured_while_a_graph_is_captured(clock, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert clock.choose() == PLANS[0]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert clock.choose() == PLANS[1]


def test_a_directory_that_cannot_be_written_is_a_warning(clock) -> None:
    clock.file.parent.write_text("a file where the directory should be")
    with pytest.warns(RuntimeWarning, match="the measured plans cannot be saved in"):
        assert clock.choose() == PLANS[1]


def test_what_plans_hang_on_is_nothing_of_the_batch(monkeypatch) -> None:
    seen = []
    for module in (mlstm, recurrent):
        monkeypatch.setattr(
            module, "tuned", lambda kernel, sizes, plans, device, run: (seen.append((kernel, sizes)), plans()[0])[1]
        )
        monkeypatch.setattr(module, "launch", lambda *args, **constants: None)
    for B, S, N in ((1, 7, 2), (3, 90, 5)):
        tokens = [torch.empty(B, S, N, *c, device="meta") for c in ((8,), (8,), (16,), (), ())]
        mlstm.mlstm_forward(Arguments(*tokens))
        mlstm.mlstm_backward(Arguments(*tokens), Cotangents(tokens[2]))
        arrays = (torch.empty(B, S, N, 16, device="meta"), torch.empty(N, 16, 16, device="meta")) * 3
        (y, _), _ = gru.gru_forward(gru_arguments.Arguments(*arrays))
        gru.gru_backward(gru_arguments.Arguments(*arrays), gru_arguments.Cotangents(y), gru.Residuals(y))
        call = slstm_arguments.Arguments(*[arrays[0]] * 4, *[arrays[1]] * 4)
        results, kept = slstm.slstm_forward(call, slstm.Residuals._fields)
        kept = kept._replace(h=results.h, c_last=results.c_last, n_last=results.n_last)
        slstm.slstm_backward(call, slstm_arguments.Cotangents(y), kept)
    assert seen[:6] == seen[6:]
    names = ["mlstm_forward", "mlstm_backward", "gru_forward", "gru_backward", "slstm_forward", "slstm_backward"]
    assert [kernel for kernel, _ in seen[:6]] == names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide", [True, False])
def test_plans_differ_in_no_block_length_and_are_few(dtype, wide) -> None:
    for K, V, chunk in ((128, 256, 0), (512, 512, 0), (16, 16, 0), (64, 64, 32)):
        for plans in (mlstm_plans.forward_plans, mlstm_plans.backward_plans):
            offered = plans(dtype, K, V, chunk, wide)
            assert {plan.L for plan in offered} == {mlstm_plans.block_length(dtype, chunk)}
            assert len(offered) <= 6
            assert all(plan.every >= 1 and plan.BK >= 16 and plan.BV >= 16 for plan in offered)
    for H, gates in product((16, 32, 64, 128, 256, 1024), (3, 4)):
        for capability in (None, 8, 9, 10):
            assert len(recurrent_plans(H, dtype is torch.float32, capability, gates)) <= 6


@pytest.mark.parametrize("number", range(1, 6))
def test_every_plan_computes_the_same(number, device) -> None:
    case = Case(1, 70, 1, 20, 40, device)
    both = mlstm_plans.forward_plans(torch.float32, 20, 40), mlstm_plans.backward_plans(torch.float32, 20, 40)
    forward, backward = (offered[min(number, len(offered) - 1)] for offered in both)
    (h, *last), residuals = mlstm.mlstm_forward(case.call(), plan=forward)
    d = mlstm.mlstm_backward(case.call(), case.cotangents, residuals, plan=backward)
    case.check(h, last, d)


def run_gru(draw, H, after):
    call = gru_arguments.Arguments(*(draw(2, 3, 1, H), draw(1, H, H)) * 3, reset_after=after)
    dy = draw(2, 3, 1, H)

    def run():
        (y, last), _ = gru.gru_forward(call)
        return [y, last, *gru.gru_backward(call, gru_arguments.Cotangents(dy), gru.Residuals(y))]

    return run, 3


def run_slstm(draw, H):
    inputs, weights, dh = [draw(2, 3, 1, H) for _ in range(4)], [draw(1, H, H) for _ in range(4)], draw(2, 3, 1, H)
    call = slstm_arguments.Arguments(*inputs, *weights)

    def run():
        found, kept = slstm.slstm_forward(call, slstm.Residuals._fields)
        kept = kept._replace(h=found.h, c_last=found.c_last, n_last=found.n_last)
        return [*found, *slstm.slstm_backward(call, slstm_arguments.Cotangents(dh), kept)]

    return run, 4


# The widest head of each is one whose weights are read again at every step.
OF_GRU = [(16, torch.float32), (60, torch.float32), (130, torch.bfloat16)]
OF_SLSTM = [(16, torch.float32), (60, torch.bfloat16), (70, torch.bfloat16)]
RECURRENCES = [
    *((partial(run_gru, after=after), *sizes) for after in (False, True) for sizes in OF_GRU),
    *((run_slstm, *sizes) for sizes in OF_SLSTM),
]


@pytest.mark.parametrize(("make", "H", "dtype"), RECURRENCES)
def test_every_plan_of_a_recurrence_computes_the_same(make, H, dtype, device, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(H)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(device, dtype)

    run, gates = make(draw, H)
    results = []
    offered = (recurrent_plans(H, dtype is torch.float32, capability, gates) for capability in (8, 9, 10))
    for plan in dict.fromkeys(plan for of_gpu in offered for plan in of_gpu):
        monkeypatch.setattr(recurrent, "tuned", lambda kernel, sizes, plans, device, run, plan=plan: plan)
        results.append(run())
    assert len(results) > 1
    for found in results[1:]:
        for x, first in zip(found, results[0], strict=True):
            assert torch.linalg.norm(x - first) <= 1e-5 * torch.linalg.norm(first)
