"""A quick run tries each option at each of its values, an empty packed sequence, and states that gradients reach."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_impl
from conformance.base.options import QUICK_EXAMPLES, RunOptions
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import Runner
from conformance.judge.selection import agenda

SEEDS = (0, 1, 2)


def _state_without_a_gradient(*arrays: Any, input_state: Any = None, **options: Any) -> Any:
    return torch_impl.gru(*arrays, input_state=None if input_state is None else input_state.detach(), **options)


def _option_ignored(operation: str, option: str) -> Callable[..., Any]:
    def function(*arrays: Any, **options: Any) -> Any:
        return getattr(torch_impl, operation)(*arrays, **{name: x for name, x in options.items() if name != option})

    return function


def _reset_after_ignored(*arrays: Any, **options: Any) -> Any:
    return torch_impl.gru(*arrays, **{**options, "reset_after": False, "recurrent_bias": None})


def _bias_outside_the_reset_gate(x: Any, *arrays: Any, recurrent_bias: Any = None, **options: Any) -> Any:
    if recurrent_bias is not None:
        N = max(each.shape[-2] for each in (x, *arrays[1::2])) if arrays else 1
        N = max([N, *(W.shape[0] for W in arrays[::2])])
        x = x.repeat_interleave(N // x.shape[-2], -2) + recurrent_bias.repeat_interleave(N // len(recurrent_bias), 0)
    return torch_impl.gru(x, *arrays, **options)


def _reset_gate_detached(x: Any, W: Any, xf: Any, Wf: Any, xr: Any, Wr: Any, **options: Any) -> Any:
    if options.get("reset_after"):
        xr, Wr = xr.detach() + 0 * xr, Wr.detach() + 0 * Wr
    return torch_impl.gru(x, W, xf, Wf, xr, Wr, **options)


def _packed_state_leaking(operation: str) -> Callable[..., Any]:
    """The last sequence begins with the final state of the one before it."""

    def function(*arrays: Any, **options: Any) -> Any:
        cu, state = options.get("cu_seqlens"), "input_state" if operation == "gru" else "initial_state"
        given = options.get(state)
        if cu is None or len(cu) < 3 or given is None:
            return getattr(torch_impl, operation)(*arrays, **options)
        parts = (given,) if operation == "gru" else tuple(given)
        leaked = [torch.cat([x[:-1], x[-2:-1]]) for x in parts]
        options[state] = leaked[0] if operation == "gru" else type(given)(*leaked)
        return getattr(torch_impl, operation)(*arrays, **options)

    return function


def _empty_sequence_with_its_neighbours_state(operation: str) -> Callable[..., Any]:
    def function(*arrays: Any, **options: Any) -> Any:
        result, cu = getattr(torch_impl, operation)(*arrays, **options), options.get("cu_seqlens")
        if cu is None or len(cu) < 3 or not isinstance(result, tuple):
            return result
        source = torch.arange(len(cu) - 1)
        empty = (cu[1:] == cu[:-1]).long()
        source = (source - empty * (source > 0)).clamp(min=0)
        y, state = result
        return y, state[source] if operation == "gru" else type(state)(*(part[source] for part in state))

    return function


FAULTS = {
    "gru: the initial state has no gradient": ("gru", _state_without_a_gradient),
    "gru: reset_after ignored": ("gru", _reset_after_ignored),
    "gru: the recurrent bias outside the reset gate": ("gru", _bias_outside_the_reset_gate),
    "gru: the reset gate has no gradient after the product": ("gru", _reset_gate_detached),
    "gru: gradient_clipping ignored": ("gru", _option_ignored("gru", "gradient_clipping")),
    "slstm: gradient_clipping ignored": ("slstm", _option_ignored("slstm", "gradient_clipping")),
    "slstm: forget_gate ignored": ("slstm", _option_ignored("slstm", "forget_gate")),
    "slstm_step: forget_gate ignored": ("slstm_step", _option_ignored("slstm_step", "forget_gate")),
    **{
        f"{op}: {said}": (op, made(op))
        for op in ("mlstm", "gru", "slstm")
        for said, made in (
            ("packed state leaking", _packed_state_leaking),
            ("an empty sequence has its neighbour's final state", _empty_sequence_with_its_neighbours_state),
        )
    },
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_quick_run_catches(name: str, seed: int) -> None:
    op, function = FAULTS[name]
    target = TorchImplementation("stranger", {op: function}, "cpu")
    options = RunOptions(ops=(op,), quick=True, examples=QUICK_EXAMPLES, seed=seed, shrink_seconds=0.0)
    runner = Runner(target, options)
    assert any(runner.result(law, dtype).status == "failed" for law, dtype in agenda(target, options))
