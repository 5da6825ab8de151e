"""Laws about large gates: only differences of log weights matter, however large the log weights are.

Tolerances elsewhere include the rounding of gates and stabilisers at their own size, because most correct ways to
compute form such sums. gatespec's packages do not: their weights are exact to roundoff at any size. These laws say so.

Here scores, values and memories are positive, so that h is a mean of values above the floor, and no sum in it cancels.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance import cases, oracle
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import MLSTMCase
from conformance.frameworks.implementation import Results
from conformance.laws import SHORT, SINGLE, SMALL, WIDE, Strategy, law
from conformance.laws._mlstm_kernel_limits import limit, required
from conformance.laws._relations import alike, close, nothing_of, results_of
from conformance.laws.checker import Checker, LawError
from conformance.operations import Operation

SHIFTS = (2.0**12, 2.0**16, 2.0**20)
"""Powers of two that leave multiples of 1/8 in float32 exact."""
SIZES = (1e3, 2.0**16, 2.0**20)
CANCELLING = (64.0, 1e3, 2.0**20, 3e9, 1e20)
HUGE = {"float64": (1e18, 1e100, 1e300), "float32": (3e9, 1e20, 1e35)}
"""Sizes at which a single rounding of m is larger than every log weight that matters."""
ADDING_UP = {"float64": (2.0**42, 1e15), "float32": (2.0**23, 3e7, 7e7)}
"""Sizes at which a single rounding of m leaves a memory in range, and the sum of those of many steps may not."""
STEPS = 20
"""Number of single steps, which at the largest of these sizes take a memory out of the range of float32."""

PLAIN = {"gates": "ordinary", "held": 0.0, "scale": 1.0, "cotangents": "dense"}
"""Fields of cases for these laws, which choose all values themselves."""

_OTHERS: dict[str, Any] = {
    "strata": SHORT,
    "dtypes": WIDE,
    "compiled_dtypes": SINGLE,
    "share": 0.25,
}


def register_shift(operation: Operation, drawn: Strategy) -> None:
    """Register the law about a shift of all input gates, for sequences or for a step.

    It is about calls without eps, which counts in units of exp(m): m is rounded at its new size.
    """
    law(operation.name, "contract", cases=_without_eps(drawn), **_OTHERS)(partial(shifted_gates, operation))


def _without_eps(drawn: Strategy) -> Strategy:
    return lambda limits: drawn(limits).map(lambda case: replace(case, eps=0.0))


def register(operation: Operation, drawn: Strategy, in_chunks: Strategy) -> None:
    """Register these laws for whole sequences.

    Args:
        drawn: dense cases.
        in_chunks: dense cases with a chunk size.
    """
    register_shift(operation, drawn)

    law(operation.name, "contract", cases=_without_eps(drawn), **_OTHERS)(partial(cancelling_gates, operation))
    law(operation.name, "contract", cases=in_chunks, **_OTHERS)(partial(chunks_of_large_gates, operation))
    law(operation.name, "contract", cases=drawn, **_OTHERS)(partial(huge_gates, operation))


def _positive(operation: Operation, checker: Checker, case: MLSTMCase) -> tuple[Call, np.random.Generator]:
    """The case's call with positive values, and gates around 8 that are multiples of 1/8 and keep most of a memory."""
    call, rng = operation.call_of(case, checker.dtype), cases.generator(case.seed, 30)
    arrays = dict(call.arrays)
    for name in ("q", "k", "v", "C0", "n0"):
        if name in arrays:
            arrays[name] = _with(arrays[name], 1 + rng.random(arrays[name].shape), checker.dtype)
    for name in ("i", "m0"):
        if name in arrays:
            arrays[name] = _with(arrays[name], 8 + rng.integers(-32, 33, arrays[name].shape) / 8, checker.dtype)
    arrays["f"] = _with(arrays["f"], 3 + rng.normal(size=arrays["f"].shape), checker.dtype)
    return replace(call, arrays=arrays), rng


def _with(x: Array, values: np.ndarray, dtype: str) -> Array:
    """The array with other values, rounded to its dtype."""
    return replace(x, values=values.astype(np.float32 if dtype == "float32" else np.float64).astype(np.float64))


def _with_gates(call: Call, i: np.ndarray, f: np.ndarray, dtype: str) -> Call:
    return call.with_arrays(i=_with(call.arrays["i"], i, dtype), f=_with(call.arrays["f"], f, dtype))


def shifted_gates(operation: Operation, checker: Checker, case: MLSTMCase) -> None:
    """Adding a power of two up to 2²⁰ to all input gates and to the initial m adds it to m and changes nothing else,
    including the gradients of h, where the floor is not active.

    {op}(…, i + 2ᵖ, …, m₀ + 2ᵖ) = (h, C, n, m + 2ᵖ)
    """
    call, rng = _positive(operation, checker, case)
    if not call.steps and "m0" not in call.arrays:
        # There is no gate, and the m of a call without a state is 0.
        return
    shift = float(rng.choice(SHIFTS))
    moved = {n: replace(x, values=x.values + shift) for n, x in call.arrays.items() if n in ("i", "m0")}
    # C and n are in units of exp(m), and m is rounded at its new size: their cotangents mean something else there.
    dh = call.cotangents[operation.output]
    call = replace(call, cotangents={**nothing_of(call.cotangents), operation.output: dh})
    own = results_of(checker, call)
    outputs, gradients = results_of(checker, call.with_arrays(**moved))
    values, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    precision = checker.precision(call.steps)
    expected = operation.value(values, call.options, precision)
    if "m" in outputs:
        m = replace(outputs["m"], values=outputs["m"].values.astype(np.float64) - shift)
        slack = expected.slack["m"] + precision.growth * shift
        close(checker, "m", m, own[0]["m"], expected.values["m"], slack, call.steps)
        outputs = {**outputs, "m": m}
    names = tuple(name for name in call.cotangents if name != "m")
    alike(checker, outputs, own[0], expected, call.steps, only=names)
    if gradients is not None and own[1] is not None:
        of_gradient = operation.gradient(values, call.options, cotangents, precision)
        alike(checker, gradients, own[1], of_gradient, call.steps, of="gradient of ", only=call.primals)


def cancelling_gates(operation: Operation, checker: Checker, case: MLSTMCase) -> None:
    """Gates that cancel exactly leave a weight of 1: a write with an input gate g, read after a forget gate −g, counts
    as if both were 0.

    i_t = g, f_{t+1} = −g, i_{t+1} = 0 ⇒ h_{t+1} = Σ_s (q·k_s) v_s / Σ_s (q·k_s) over s = t, t+1
    """
    call, rng = _positive(operation, checker, case)
    size = float(np.float32(rng.choice(CANCELLING)))
    even = np.arange(case.S) % 2 == 0
    i = np.where(even[:, None], size, np.zeros(call.arrays["i"].shape))
    f = np.where(even[:, None], call.arrays["f"].values, -size)
    call = _with_gates(call, i, f, checker.dtype)
    q, k, v = (call.arrays[name].values for name in "qkv")
    scores, before = np.einsum("bsnk,bsnk->bsn", q, k), slice(None, -1)
    # An odd step reads its own write and that of the step before it.
    earlier = np.zeros(scores.shape)
    earlier[:, 1:] = np.where(even[1:, None], 0.0, np.einsum("bsnk,bsnk->bsn", q[:, 1:], k[:, before]))
    expected = scores[..., None] * v
    expected[:, 1:] += earlier[:, 1:, :, None] * v[:, before]
    expected /= (scores + earlier)[..., None]
    _same_mean(checker, checker.call(call)["h"], expected, call.steps, times=1)


def chunks_of_large_gates(operation: Operation, checker: Checker, case: MLSTMCase) -> None:
    """At large gates, the chunk size changes nothing beyond the roundoff of the result.

    |{op}(…, chunk_size=L) − {op}(…)| is a few roundoffs of |h| for gates up to 2²⁰
    """
    call, rng = _positive(operation, checker, case)
    size, f = float(rng.choice(SIZES)), call.arrays["f"].values
    steps = np.arange(case.S)[:, None]
    kind = rng.choice(("equal", "rising", "falling"))
    if kind == "equal":
        i = np.full(f.shape, size)
    elif kind == "rising":
        i = call.arrays["i"].values + steps * (size / max(case.S, 1))
    else:
        # m falls at every step, and writes follow it down.
        f = -size * rng.random(f.shape)
        i = np.cumsum(f, axis=1) + rng.normal(size=f.shape) + size * case.S
    call = _with_gates(call, i, f, checker.dtype)
    own = checker.call(replace(call, options=replace(case, chunk_size=None).options()))
    in_chunks = checker.call(call)
    _same_mean(checker, in_chunks["h"], own["h"].values.astype(np.float64), call.steps, times=2)


def huge_gates(operation: Operation, checker: Checker, case: MLSTMCase) -> None:
    """Gates so large that the rounding of m outweighs every weight, at once or over many steps, make no output and no
    gradient infinite or NaN, also next to a sequence with a NaN. A write that only decays is read as it was written.

    finite i and f of any size ⇒ finite h, C, n, m and gradients; i₁ ≫ i_j for j > 1 ⇒ h_t = v₁
    """
    call, rng = _positive(operation, checker, case)
    below, shape = limit(operation, checker, call), call.arrays["f"].shape
    sizes = required(HUGE[checker.dtype] + ADDING_UP[checker.dtype], below, case.S, checker.dtype, times=case.S)
    steady = required(ADDING_UP[checker.dtype], below, case.S, checker.dtype)
    size = float(rng.choice(sizes))
    kind, f = rng.choice(("falling", "steady" if steady else "any", "any")), -size * rng.random(shape)
    if kind == "steady":
        # Every decay is rounded in the same way.
        size = float(rng.choice(steady))
        decay = float(np.spacing(np.dtype(checker.dtype).type(size))) * rng.uniform(0.3, 0.7)
        i, f = np.full(shape, -1e30), np.full(shape, -np.log(np.expm1(decay)))
        i[:, :1] = size
    elif kind == "falling":
        # A write, then decays and nothing else.
        i = np.full(shape, -size * max(case.S, 1))
        i[:, :1] = 0.0
    else:
        i, f = size * rng.uniform(-1, 1, shape), f * rng.choice((-1, 1), shape)
    spoilt = kind != "steady" and shape[0] > 1 and rng.random() < 0.5
    i[: int(spoilt), :1] = np.nan
    outputs = _finite_results(checker, _with_gates(call, i, f, checker.dtype), int(spoilt))
    if kind == "steady" and not call.options.get("eps"):
        v = call.arrays["v"].values[:, :1]
        _same_mean(checker, outputs["h"], np.broadcast_to(v, outputs["h"].values.shape), call.steps, times=1)


def register_steps(operation: Operation, drawn: Strategy) -> None:
    """Register these laws for single steps.

    Args:
        drawn: cases of one step, each with a state.
    """
    register_shift(operation, drawn)
    fields = {**_OTHERS, "strata": SMALL}
    law(operation.name, "contract", name="huge_gates", cases=drawn, **fields)(partial(huge_gates_in_steps, operation))


def huge_gates_in_steps(operation: Operation, checker: Checker, case: MLSTMCase) -> None:
    """Step after step, gates so large that the rounding of m outweighs every weight make no output and no gradient
    infinite or NaN, also next to a sequence with a NaN. A memory that only decays keeps its value, however often m is
    rounded in the same direction.

    finite i and f of any size ⇒ finite h, C, n, m and gradients; C = n vᵀ, i ≪ m ⇒ h = v for 20 steps
    """
    call, rng = _positive(operation, checker, case)
    shape, v, number = call.arrays["f"].shape, call.arrays["v"].values, np.dtype(checker.dtype).type
    n = 2.0 ** rng.integers(-1, 2, call.arrays["n0"].shape)

    # Every decay is rounded in the same way, and takes the memory away from the range; products with n are exact.
    size, part = ADDING_UP[checker.dtype][-1], rng.uniform(0.3, 0.7)
    decay = part * float(np.spacing(number(size)))
    f, n_far = np.full(shape, -np.log(np.expm1(decay))), n * 2.0 ** (-81 if part < 0.5 else 81)
    below = limit(operation, checker, call)
    if required((size,), below, STEPS, checker.dtype):
        for outputs in _steps(operation, checker, call, np.full(shape, -1e30), f, n_far, np.full(shape, size)):
            if not call.options.get("eps"):
                _same_mean(checker, outputs["h"], v, STEPS, times=1)

    sizes = HUGE[checker.dtype] + ADDING_UP[checker.dtype]
    size = float(rng.choice(required(sizes, below, STEPS, checker.dtype, times=STEPS)))
    if rng.random() < 0.5:
        i, f = np.full(shape, -STEPS * size), -size * rng.random(shape)
    else:
        i, f = size * rng.uniform(-1, 1, shape), size * rng.uniform(-1, 1, shape)
    spoilt = int(shape[0] > 1 and rng.random() < 0.5)
    i[:spoilt] = np.nan
    for _ in _steps(operation, checker, call, i, f, n, np.zeros(shape), spoilt):
        pass


def _steps(
    operation: Operation,
    checker: Checker,
    call: Call,
    i: np.ndarray,
    f: np.ndarray,
    n: np.ndarray,
    m: np.ndarray,
    spoilt: int = 0,
) -> Iterator[Results]:
    """The outputs of equal steps, one after the other, from a memory n vᵀ; they and all gradients are finite, but for
    the first ``spoilt`` sequences."""
    states = {"C0": n[..., :, None] * call.arrays["v"].values[..., None, :], "n0": n, "m0": m}
    arrays = {name: _with(call.arrays[name], x, checker.dtype) for name, x in states.items()}
    call = _with_gates(call, i, f, checker.dtype).with_arrays(**arrays)
    for _ in range(STEPS):
        outputs = _finite_results(checker, call, spoilt)
        yield outputs
        call = call.with_arrays(**operation.carried(outputs))


def _finite_results(checker: Checker, call: Call, spoilt: int = 0) -> Results:
    """The outputs of a call, which are finite but for the first ``spoilt`` sequences, as its gradients are."""
    with np.errstate(invalid="ignore"):
        outputs, gradients = results_of(checker, call)
    for of, results in (("", outputs), ("gradient of ", gradients or {})):
        results = {name: _without(x, spoilt) for name, x in results.items()}
        checker.expect_no_nan(results, of)
        for name, x in results.items():
            if np.isinf(x.values).any():
                raise LawError(f"{of}{name}", "an infinity for finite gates", nature="infinity")
    return outputs


def _without(x: Array, sequences: int) -> Array:
    """The array with 0 for the first sequences."""
    values = x.values.copy()
    values[:sequences] = 0.0
    return replace(x, values=values)


def _same_mean(checker: Checker, got: Array, expected: np.ndarray, steps: int, times: float) -> None:
    """Compare h with a mean of positive values: it is off by no more than its scores, weights and values are."""
    factors = 3
    slack = factors * checker.precision(steps).operand * np.abs(expected)
    checker.close("h", got, expected, np.where(np.isfinite(slack), slack, 0.0), steps, times=times)
