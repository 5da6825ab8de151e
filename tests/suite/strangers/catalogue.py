"""Strangers: implementations that know nothing of this project, right or faulty, and what is true of each.

Each is a target of its own, ``tests.suite.strangers.catalogue:NAME`` (a dict of functions), with the faults that were
written into it. The suite must accept the right ones, and name a true cause first for the faulty ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tests.suite.strangers import jax_scans, torch_loops


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """An implementation and what is wrong with it.

    Attributes:
        framework: ``torch`` or ``jax``.
        functions: what it offers, by public name.
        causes: any one of these in the first cause's sentence is true of it (lower case); empty for a right one.
        contract: whether it is held to gatespec's contract, without which what is wrong with it counts as a decision.
    """

    framework: str
    functions: Mapping[str, Callable]
    causes: tuple[str, ...] = ()
    contract: bool = False


def _stranger(op: str, framework: str, make: Callable, *faults: str, causes: tuple[str, ...] = ()) -> Stranger:
    return Stranger(framework=framework, functions={op: make(*faults)}, causes=causes)


_mlstm, _gru = partial(_stranger, "mlstm"), partial(_stranger, "gru")
_loop, _chunks, _gru_loop = torch_loops.mlstm_loop, torch_loops.mlstm_chunks, torch_loops.gru_loop
_scan, _gru_scan = jax_scans.mlstm_scan, jax_scans.gru_scan

RIGHT: dict[str, Stranger] = {
    "torch_loop": _mlstm("torch", _loop, "packed sequences refused"),
    "torch_packed_loop": _mlstm("torch", _loop),
    "torch_chunks": _mlstm("torch", _chunks),
    "torch_gru": _gru("torch", _gru_loop),
    "jax_scan": _mlstm("jax", _scan),
    "jax_gru": _gru("jax", _gru_scan),
}

FAULTY: dict[str, Stranger] = {
    "detached": _mlstm("torch", _loop, "normaliser detached", causes=("normaliser held constant",)),
    # It takes the logarithm of a sigmoid, which is inexact, and −∞ from some −104 on.
    "nan_at_resets": _mlstm(
        "torch",
        _loop,
        "NaN where a gate is minus infinity",
        causes=("log(σ(f))", "infinite", "forget gate is large"),
    ),
    "no_scale": _mlstm("torch", _loop, "1/sqrt(K) left out", causes=("1/√k", "1/sqrt(k)")),
    "floor_of_1": _mlstm("torch", _loop, "floor of 1", causes=("floor",)),
    "no_absolute_value": _mlstm("torch", _loop, "no absolute value", causes=("absolute value", "negative", "sign")),
    "initial_state_ignored": _mlstm("torch", _loop, "initial state ignored", causes=("initial state",)),
    "state_detached": _mlstm("torch", _loop, "final state detached", causes=("final state", "state cotangent")),
    "state_in_bfloat16": _mlstm("torch", _loop, "state rounded to bfloat16", causes=("16-bit", "16 bits", "bfloat16")),
    "sigmoid_input_gate": _mlstm("torch", _loop, "sigmoid for the input gate", causes=("input gate",)),
    "multiples_of_16": _mlstm("torch", _loop, "S must be a multiple of 16", causes=("multiple", "divisible")),
    "packed_without_reset": _mlstm("torch", torch_loops.mlstm_packed_without_reset, causes=("packed",)),
    "remainder_dropped": _mlstm(
        "torch", _chunks, "remainder dropped", causes=("last partial chunk", "multiple of the chunk", "several chunks")
    ),
    "carried_normaliser_lost": _mlstm(
        "torch",
        _chunks,
        "carried normaliser lost",
        causes=("several chunks", "more than one chunk", "normaliser", "output n is 0"),
    ),
    "differences_of_sums": _mlstm(
        "torch",
        _chunks,
        "differences of cumulative sums",
        causes=("differences of cumulative sums", "infinite", "large"),
    ),
    "jax_detached": _mlstm("jax", _scan, "normaliser detached", causes=("normaliser held constant",)),
    "jax_forget_gate_constant": _mlstm(
        "jax", _scan, "gradient does not reach the forget gate", causes=("forget gate", "gradient of f", "`f`")
    ),
    "jax_no_logarithm": _mlstm("jax", _scan, "forget gate is not a logarithm", causes=("forget gate",)),
    "reset_after": _gru("torch", _gru_loop, "reset gate after the product", causes=("reset gate",)),
    "gate_swapped": _gru("torch", _gru_loop, "gate the other way round", causes=("gate",)),
    "heads_tiled": _gru("torch", _gru_loop, "heads tiled", causes=("tiled",)),
    "clipping_ignored": replace(
        _gru("torch", _gru_loop, "clipping ignored", causes=("clip",)),
        contract=True,
    ),
    "neighbours_state": _gru(
        "torch", _gru_loop, "empty sequence takes its neighbour's state", causes=("packed", "empty")
    ),
    "jax_reset_after": _gru("jax", _gru_scan, "reset gate after the product", causes=("reset gate",)),
    "detached_and_nan": _mlstm(
        "torch",
        _loop,
        "normaliser detached",
        "NaN where a gate is minus infinity",
        causes=("normaliser held constant", "log(σ(f))", "infinite"),
    ),
    "no_scale_and_no_initial_state": _mlstm(
        "torch", _loop, "1/sqrt(K) left out", "initial state ignored", causes=("1/√k", "1/sqrt(k)", "initial state")
    ),
    "floor_of_1_and_no_initial_m": _mlstm(
        "torch", _loop, "floor of 1", "initial m taken for 0", causes=("floor", "initial m")
    ),
    "reset_after_and_tiled": _gru(
        "torch", _gru_loop, "reset gate after the product", "heads tiled", causes=("reset gate", "tiled")
    ),
}


def __getattr__(name: str) -> Mapping[str, Callable]:
    """The functions of a stranger, as if each were an attribute of this module."""
    try:
        return {**RIGHT, **FAULTY}[name].functions
    except KeyError:
        raise AttributeError(name) from None


def target(name: str) -> str:
    """The target of a stranger, as the command line takes it."""
    return f"{__name__}:{name}"
