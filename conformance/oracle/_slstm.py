"""The sLSTM, with tolerances from copies of its loop in which every operation is rounded at random."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import reference
from conformance.base.dtypes import HALF
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._mlstm import rescaled
from conformance.oracle._slstm_rounding import GATES, Gradients, Rounding, Sequence, backward, each_sequence, forward
from conformance.tolerance.budget import KAPPA, OMEGA, Expected, Precision
from reference.arguments import SLSTMState

COPIES = 64
"""Number of copies of each backward pass.

With 16, the root of the mean square over copies is so uncertain that correct results were refused.
"""

PERTURBATION = 2.0**-36
"""A roundoff in the copies of a float64 computation, which are themselves computed in float64.

Their deviations are proportional to it, and are scaled to a roundoff of float64.
"""

LARGEST = 1 << 20
"""Number of elements of a gate, over all steps and copies, that are held at the same time."""

STATES = ("c0", "n0", "m0", "h0")
OF_STATE = ("c", "n", "m", "last_h")


def _state(arrays: Values) -> SLSTMState | None:
    return SLSTMState(*(arrays[name] for name in STATES)) if "c0" in arrays else None


def _options(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if options.get(name) is not None}


def _groups(arrays: Values, precision: Precision) -> Iterator[Rounding]:
    """The copies, in groups that fit into memory."""
    z, packed = arrays["z"], "cu_seqlens" in arrays
    elements, count = max(z.size, arrays["weight_z"].size), COPIES
    while count > 4 and count * elements > LARGEST:
        count //= 2
    unit = max(precision.roundoff, PERTURBATION)
    operand = (precision.cancellation - KAPPA * precision.roundoff) / OMEGA
    for number in range(COPIES // count):
        rows = (1 if packed else z.shape[0]) * z.shape[-2] * z.shape[-1]
        yield Rounding(count, rows, unit, operand if operand > precision.roundoff else 0.0, number)


def _weights(sequence: Sequence, r: Rounding, precision: Precision) -> np.ndarray:
    """The weights as operands; those of 16 bits have been rounded already."""
    return sequence.W if precision.dtype in HALF else r.weight(sequence.W)


class _Deviations:
    """The mean square and the largest of the deviations of the copies from the exact answer, by name."""

    def __init__(self, exact: Values):
        self._exact = exact
        self._squares = {name: np.zeros(x.shape) for name, x in exact.items()}
        self._largest = {name: np.zeros(x.shape) for name, x in exact.items()}

    def add(self, name: str, copies: np.ndarray) -> None:
        """Add copies, along the first axis."""
        change = np.abs(copies - self._exact[name])
        change = np.where(np.isfinite(change), change, 0.0)
        self._squares[name] += np.square(change).sum(axis=0)
        self._largest[name] = np.maximum(self._largest[name], change.max(axis=0, initial=0.0))

    def slack(self, precision: Precision) -> Values:
        """`KAPPA` times the root of the mean square, or the largest deviation if it is larger."""
        scale = precision.roundoff / max(precision.roundoff, PERTURBATION)
        return {
            name: scale * np.maximum(KAPPA * np.sqrt(squares / COPIES), self._largest[name])
            for name, squares in self._squares.items()
        }


def _joined(parts: list[np.ndarray], packed: bool) -> np.ndarray:
    """Arrays with steps, ``(S, N, copies, B, ·)``, of all sequences, in the form of a call with copies first."""
    by_call = [part.transpose(2, 3, 0, 1, 4) for part in parts]
    return np.concatenate([part[:, 0] for part in by_call], axis=1) if packed else by_call[0]


def _states(parts: list[np.ndarray]) -> np.ndarray:
    """States of all sequences, ``(N, copies, B, H)``, as ``(copies, B, N, H)``."""
    return np.concatenate([part.transpose(1, 2, 0, 3) for part in parts], axis=1)


@without_warnings
def slstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `slstm`, dense or packed. States are in the units of their own m."""
    cu_seqlens, inputs = arrays.get("cu_seqlens"), [arrays[name] for name in (*GATES, *(f"weight_{g}" for g in GATES))]
    given = _options(options, "forget_gate")
    h, last = reference.slstm(*inputs, initial_state=_state(arrays), return_state=True, cu_seqlens=cu_seqlens, **given)
    exact = {"h": h, **dict(zip(OF_STATE, last, strict=True))}
    found = _Deviations(exact)
    sequences = each_sequence(arrays, {}, cu_seqlens, given.get("forget_gate") == "exp")
    for r in _groups(arrays, precision) if sequences and exact["c"].size else ():
        every, states = [], []
        for sequence, _, _ in sequences:
            W = _weights(sequence, r, precision)
            of_h, state, _ = forward(sequence, W, r, keep=False)
            every.append(of_h)
            states.append(state)
        found.add("h", _joined(every, cu_seqlens is not None))
        c, n, m, last_h = (_states([state[at] for state in states]) for at in range(4))
        for name, copies in (("m", m), ("last_h", last_h)):
            found.add(name, copies)
        for name, copies in (("c", c), ("n", n)):
            found.add(name, rescaled(copies, m, np.broadcast_to(exact["m"], m.shape)))
    return Expected(exact, found.slack(precision))


def _add(found: _Deviations, parts: list[Gradients], packed: bool, with_state: bool) -> None:
    """Add the gradients of all sequences."""
    dx, dW = _joined([part.x for part in parts], packed), np.sum([part.W for part in parts], axis=0).swapaxes(0, 1)
    for name, of_x, of_W in zip(GATES, np.split(dx, 4, axis=-1), np.split(dW, 4, axis=-1), strict=True):
        found.add(name, of_x)
        found.add(f"weight_{name}", of_W)
    for at, name in enumerate(STATES if with_state else ()):
        found.add(name, _states([part.state[at] for part in parts]))


@without_warnings
def slstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `slstm`; that of the initial state only if one is given."""
    cu_seqlens, inputs = arrays.get("cu_seqlens"), [arrays[name] for name in (*GATES, *(f"weight_{g}" for g in GATES))]
    B = arrays["z"].shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    none = np.zeros((B, *arrays["z"].shape[-2:]))
    cotangents = {**dict.fromkeys(OF_STATE, none), **cotangents}
    exact = reference.slstm_backward(
        *inputs,
        initial_state=_state(arrays),
        cu_seqlens=cu_seqlens,
        dh=cotangents["h"],
        dstate=SLSTMState(*(cotangents[name] for name in OF_STATE)),
        **_options(options, "forget_gate", "gradient_clipping"),
    )
    exact |= dict(zip(STATES, exact.pop("initial_state", ()), strict=False))
    clipping, squares = options.get("gradient_clipping"), np.zeros(())
    bound = np.inf if clipping is None else abs(clipping)
    both = (_Deviations(exact), _Deviations(exact))
    sequences = each_sequence(arrays, cotangents, cu_seqlens, options.get("forget_gate") == "exp")
    for r in _groups(arrays, precision) if sequences and none.size else ():
        each: tuple[list[Gradients], list[Gradients]] = ([], [])
        for sequence, dh, dlast in sequences:
            W = _weights(sequence, r, precision)
            _, last, steps = forward(sequence, W, r, keep=True)
            assert dh is not None
            for through_m, parts in enumerate(each):
                parts.append(backward(sequence, W, last, steps, dh, dlast, bound, r, bool(through_m)))
        squares = np.sum([part.squares for part in each[0]], axis=0)
        for found, parts in zip(both, each, strict=True):
            _add(found, parts, packed=cu_seqlens is not None, with_state="c0" in arrays)
    first, second = (found.slack(precision) for found in both)
    slack = {name: np.maximum(first[name], second[name]) for name in exact}
    if squares.ndim:
        tokens = int(np.prod(arrays["z"].shape[:-2]))
        for name, of in zip(GATES, np.split(squares, 4, axis=-1), strict=True):
            # A sum of many terms, in any order: a partial sum is as large as the whole or as the root of the squares.
            partial = np.hypot(np.sqrt(of), exact[f"weight_{name}"])
            slack[f"weight_{name}"] += precision.drift * np.sqrt(tokens + 1) * partial
    return Expected(exact, slack)
