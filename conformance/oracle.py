"""What the reference says of a case, with the budget of every element: the reference evaluated in float64 on the
inputs as they are and on `budget.DRAWS` (and two) perturbed copies, all in one call that stacks the copies along an
axis over which the operation is independent.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import reference
from conformance import budget
from conformance.budget import DRAWS, Expected, Precision
from conformance.dtypes import Array
from conformance.operations import GRU_ARRAYS
from reference.arguments import MLSTMState

Values = dict[str, np.ndarray]
_COPIES = DRAWS + 2

_remembered: OrderedDict[Hashable, Expected] = OrderedDict()


def remember(key: Hashable, make: Callable[[], Expected], most: int = 256) -> Expected:
    """``make()``, computed once per key: value and gradient laws, and several targets, draw the same cases."""
    if key in _remembered:
        _remembered.move_to_end(key)
        return _remembered[key]
    expected = _remembered[key] = make()
    while len(_remembered) > most:
        _remembered.popitem(last=False)
    return expected


def values(arrays: Mapping[str, Array]) -> Values:
    return {name: array.values for name, array in arrays.items()}


def _without_warnings(function: Callable) -> Callable:
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return quiet


# --- scans and decay: linear (in the log gates), so the sum of the magnitudes of all terms is known exactly


_SUMS: dict[str, tuple[str, Callable, Callable, str]] = {
    "rev_cumsum": ("x", reference.rev_cumsum, reference.rev_cumsum_backward, "dy"),
    "rev_cumsum_off": ("x", reference.rev_cumsum_off, reference.rev_cumsum_off_backward, "dy"),
    "causal_forget_matrix": (
        "forget_gates",
        reference.causal_forget_matrix,
        reference.causal_forget_matrix_backward,
        "dF",
    ),
}


def sums(operation: str, arrays: Values, precision: Precision) -> Expected:
    """`rev_cumsum`, `rev_cumsum_off`, `causal_forget_matrix`: value; each may be off by γ·Σ|terms|."""
    name, forward, _, _ = _SUMS[operation]
    x = arrays[name]
    magnitude = np.where(np.isfinite(x), np.abs(x), 0.0)
    y, scale = forward(x), forward(magnitude)
    return Expected({"y": y}, {"y": precision.growth * np.where(np.isfinite(scale), scale, 0.0)})


def sums_gradient(operation: str, arrays: Values, cotangents: Values, precision: Precision) -> Expected:
    name, _, backward, keyword = _SUMS[operation]
    gradient = backward(arrays[name], **{keyword: cotangents["y"]})[name]
    scale = backward(arrays[name], **{keyword: np.abs(cotangents["y"])})[name]
    return Expected({name: gradient}, {name: precision.growth * scale})


@_without_warnings
def dtilde(arrays: Values, precision: Precision) -> Expected:
    i, f = arrays["igate"], arrays["fgate"]
    y = reference.dtilde_matrix(i, f)
    log_gate = np.logaddexp(0.0, -np.where(np.isfinite(f), f, 0.0))
    scale = reference.causal_forget_matrix(log_gate[..., 0]) + np.abs(np.where(np.isfinite(i), i, 0.0)).mT
    return Expected({"y": y}, {"y": precision.growth * np.where(np.isfinite(scale), scale, 0.0)})


@_without_warnings
def dtilde_gradient(arrays: Values, cotangents: Values, precision: Precision) -> Expected:
    i, f = arrays["igate"], arrays["fgate"]
    exact = reference.dtilde_matrix_backward(i, f, dD=cotangents["y"])
    scale = reference.dtilde_matrix_backward(i, f, dD=np.abs(cotangents["y"]))
    # σ(−f) is formed from f in the accumulation dtype: its relative error is u·|f| where it is small.
    conditioning = 1 + np.where(np.isfinite(f), np.maximum(f, 0.0), 0.0)
    slack = {"igate": precision.growth * scale["igate"], "fgate": precision.growth * scale["fgate"] * conditioning}
    return Expected(exact, slack)


# --- mLSTM


def _largest_m(i: np.ndarray, f: np.ndarray, m0: np.ndarray) -> np.ndarray:
    """The largest finite |m| along each lane, ``(B, 1, N)``."""
    a = -np.logaddexp(0.0, -f)
    m, largest = m0, np.where(np.isfinite(m0), np.abs(m0), 0.0)
    for t in range(i.shape[1]):
        m = np.maximum(a[:, t] + m, i[:, t])
        largest = np.maximum(largest, np.where(np.isfinite(m), np.abs(m), 0.0))
    return largest[:, None]


def _mlstm_copies(arrays: Values, cotangents: Values, precision: Precision) -> tuple[Values, Values]:
    """The inputs and their perturbed copies, stacked along B: copy 0 is exact, the last two scale q."""
    rng = np.random.default_rng(0)
    largest = _largest_m(arrays["i"], arrays["f"], arrays["m0"])
    scales: dict[str, np.ndarray | float] = {"i": largest, "f": 0.0, "m0": largest[:, 0], "m": 0.0}

    def copies(name: str, x: np.ndarray, is_gate: bool) -> np.ndarray:
        def draw() -> np.ndarray:
            if is_gate:
                return budget.perturbed_gate(x, precision, rng, scales[name])
            return budget.perturbed_operand(x, precision, rng)

        draws = [draw() for _ in range(DRAWS)]
        scaled = [x * (1 + sign * precision.operand) if name == "q" else x for sign in (1, -1)]
        return np.concatenate([x, *draws, *scaled])

    stacked = {name: copies(name, x, name in ("i", "f", "m0")) for name, x in arrays.items()}
    dstacked = {name: copies(name, x, False) for name, x in cotangents.items()}
    if cotangents:
        # C and n are held in units of exp(m), and m is held to a roundoff of its own size.
        of_m = precision.growth * largest[:, 0] * rng.standard_normal((_COPIES, *largest[:, 0].shape))
        factor = 1 + np.concatenate([0 * largest[:, 0], *of_m])
        dstacked["C"] = dstacked["C"] * factor[..., None, None]
        dstacked["n"] = dstacked["n"] * factor[..., None]
    return stacked, dstacked


def _state(arrays: Values) -> MLSTMState:
    return MLSTMState(arrays["C0"], arrays["n0"], arrays["m0"])


def rescaled(part: np.ndarray, m: np.ndarray, reference_m: np.ndarray) -> np.ndarray:
    """``part·exp(m − m*)``, with 0 for the weight of an empty memory (m = m* = −∞)."""
    with np.errstate(invalid="ignore", over="ignore"):
        weight = np.where(np.isneginf(m) & np.isneginf(reference_m), 0.0, np.exp(m - reference_m))
        return part * weight.reshape(*weight.shape, *[1] * (part.ndim - weight.ndim))


def with_state(arrays: Values, sequences: int | None = None) -> Values:
    """The arrays with the zeros that an initial state left out stands for."""
    if "C0" in arrays:
        return arrays
    q, v = arrays["q"], arrays["v"]
    B = q.shape[0] if sequences is None else sequences
    N, K, V = q.shape[-2], q.shape[-1], v.shape[-1]
    return {**arrays, "C0": np.zeros((B, N, K, V)), "n0": np.zeros((B, N, K)), "m0": np.zeros((B, N))}


@dataclass(frozen=True)
class _Magnitudes:
    """Σ|terms| of every output and gradient of an mLSTM: what is summed, before anything cancels.

    The response to perturbed inputs does not see an identity that holds for all inputs: with one step h does not depend
    on q, so dq is 0 however the inputs are perturbed, but it is computed as a difference of two terms, each rounded.
    """

    outputs: Values
    gradients: Values


def _magnitudes(arrays: Values, eps: float, cotangents: Values | None, floor_is_one: bool = False) -> _Magnitudes:
    """The recurrence and its transpose with the magnitude of every factor, at the exact stabilisers.

    An error of ν relative to itself is larger than that of its terms where they cancel: Σ|q̂||n| / Y of them, which
    multiplies everything that is divided by Y. On the floor it is the error of m, |m|·u relative, that does: with m
    above 64 it does not cancel between C and exp(−min(m, 64)), and never between C and eps.
    """
    q, k, v = (np.abs(arrays[name]) for name in "qkv")
    i, a = arrays["i"], -np.logaddexp(0.0, -arrays["f"])
    K = q.shape[-1]
    q_hat, exact_q = q / np.sqrt(K), arrays["q"] / np.sqrt(K)
    C, n, m = np.abs(arrays["C0"]), np.abs(arrays["n0"]), arrays["m0"]
    exact_n, exact_C = arrays["n0"], arrays["C0"]
    S = q.shape[1]
    h = np.zeros(v.shape)
    amplified, Y, size = np.zeros(i.shape), np.ones(i.shape), np.zeros(v.shape)
    above, decays, gains, states = np.zeros(i.shape, bool), np.zeros(i.shape), np.zeros(i.shape), [(C, n)]
    for t in range(S):
        m_new = np.maximum(a[:, t] + m, i[:, t])
        decays[:, t] = np.where(np.isneginf(m_new), 0.0, np.exp(a[:, t] + m - m_new))
        gains[:, t] = np.where(np.isneginf(m_new), 0.0, np.exp(i[:, t] - m_new))
        m = m_new
        decay, gain = decays[:, t, :, None], gains[:, t, :, None]
        C = decay[..., None] * C + (gain * k[:, t])[..., None] * v[:, t, :, None]
        n = decay * n + gain * k[:, t]
        exact_C = decay[..., None] * exact_C + (gain * arrays["k"][:, t])[..., None] * arrays["v"][:, t, :, None]
        exact_n = decay * exact_n + gain * arrays["k"][:, t]
        states.append((C, n))
        floor = np.ones_like(m) if floor_is_one else _floor(m)
        nu = np.abs(np.einsum("bnk,bnk->bn", exact_n, exact_q[:, t]))
        Y[:, t] = np.maximum(nu, floor) + eps
        above[:, t] = nu >= floor * (1 - 1e-2)
        exact_h = np.abs(np.einsum("bnkv,bnk->bnv", exact_C, exact_q[:, t])) / Y[:, t, :, None]
        of_nu = np.einsum("bnk,bnk->bn", n, q_hat[:, t]) / Y[:, t]
        of_m = np.where(np.isfinite(m), np.abs(m), 0.0)
        amplified[:, t] = np.maximum(1.0, np.where(above[:, t], of_nu, of_m) + of_m * eps / Y[:, t])
        size[:, t] = exact_h
        h[:, t] = np.einsum("bnkv,bnk->bnv", C, q_hat[:, t]) / Y[:, t, :, None] + amplified[:, t, :, None] * exact_h
    outputs = {"h": h, "C": C, "n": n, "m": np.zeros(m.shape)}
    if cotangents is None:
        return _Magnitudes(outputs, {})

    dh, dC, dn = (np.abs(cotangents[name]) for name in "hCn")
    g = np.abs(cotangents["m"]) + _total(C, dC) + _total(n, dn)
    gradients = {name: np.zeros(arrays[name].shape) for name in "qkvif"}
    carried = g
    for t in reversed(range(S)):
        C, n = states[t + 1]
        delta = dh[:, t] / Y[:, t, :, None] * amplified[:, t, :, None]
        dnu = np.where(above[:, t], np.einsum("bnv,bnv->bn", delta, h[:, t]), 0.0)[..., None]
        dC = dC + q_hat[:, t, :, :, None] * delta[:, :, None, :]
        dn = dn + dnu * q_hat[:, t]
        gradients["q"][:, t] = (np.einsum("bnkv,bnv->bnk", C, delta) + dnu * n) / np.sqrt(K)
        gain = gains[:, t, :, None]
        gradients["k"][:, t] = gain * (np.einsum("bnkv,bnv->bnk", dC, v[:, t]) + dn)
        gradients["v"][:, t] = gain * np.einsum("bnkv,bnk->bnv", dC, k[:, t])
        gradients["i"][:, t] = np.einsum("bnk,bnk->bn", k[:, t], gradients["k"][:, t])
        decay = decays[:, t, :, None]
        dC, dn = decay[..., None] * dC, decay * dn
        C, n = states[t]
        gradients["f"][:, t] = _total(C, dC) + _total(n, dn)
        carried = np.maximum(carried, gradients["f"][:, t])
    gate = np.exp(-np.logaddexp(0.0, arrays["f"]))
    zero = np.zeros(g.shape)
    return _Magnitudes(
        outputs,
        {
            **gradients,
            "f": gradients["f"] * gate,
            "C0": dC,
            "n0": dn,
            "m0": _total(np.abs(arrays["C0"]), dC) + _total(np.abs(arrays["n0"]), dn) if S else zero,
            "g": g,
            "gate": gate,
            "carried": carried,
        },
    )


def _total(part: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    return (part * cotangent).sum(axis=tuple(range(2, part.ndim)))


def _floor(m: np.ndarray) -> np.ndarray:
    return np.exp(-np.minimum(m, 64.0))


_POOL: dict[str, dict[str, Any]] = {
    "h": {"steps": 1},
    "C": {},
    "n": {},
    "m": {"last": False},
    "q": {"steps": 1},
    "k": {"steps": 1},
    "v": {"steps": 1},
    "i": {"last": False, "steps": 1},
    "f": {"last": False, "steps": 1},
    "C0": {},
    "n0": {},
    "m0": {"last": False},
}
"""Which neighbours of an element have its conditioning: see `budget.response`."""


def _split(stacked: np.ndarray, B: int) -> tuple[np.ndarray, np.ndarray]:
    copies = stacked.reshape(1 + _COPIES, B, *stacked.shape[1:]) if B else np.zeros((1 + _COPIES, *stacked.shape))
    return copies[0], copies[1:]


def _expected(named: Values, B: int, magnitudes: Values, precision: Precision) -> Expected:
    exact, slack = {}, {}
    for name, stacked in named.items():
        exact[name], draws = _split(stacked, B)
        magnitude = np.where(np.isfinite(magnitudes[name]), magnitudes[name], 0.0)
        slack[name] = budget.response(exact[name], draws, **_POOL[name]) + precision.cancellation * magnitude
    return Expected(exact, slack)


def _gradient_magnitudes(magnitudes: _Magnitudes, exact: Values) -> Values:
    """The magnitudes of the gradients, with that of g where the exact gradient may hold it: at the write that attained
    the final m and at every decay since.
    """
    found = dict(magnitudes.gradients)
    g, gate = found.pop("g"), found.pop("gate")
    found.pop("carried")
    reached = np.abs(exact["f"]) > 0
    found["i"] = found["i"] + g[:, None] * (np.abs(exact["i"]) > 0)
    found["f"] = found["f"] + g[:, None] * gate * reached
    found["m0"] = found["m0"] + g
    return found


def _either_side(expected: Expected, arrays: Values, dm: np.ndarray) -> Expected:
    """Where the memory ends empty, every candidate for m_T is −∞: dm may come out at any of them, for none moves m."""
    m, a = arrays["m0"], -np.logaddexp(0.0, -arrays["f"])
    for t in range(a.shape[1]):
        m = np.maximum(a[:, t] + m, arrays["i"][:, t])
    tied = np.where(np.isneginf(m), 1.01 * np.abs(dm), 0.0)
    gate = np.exp(-np.logaddexp(0.0, arrays["f"]))
    slack = dict(expected.slack)
    for name, share in (("i", tied[:, None]), ("f", tied[:, None] * gate), ("m0", tied)):
        slack[name] = slack[name] + share
    return replace(expected, slack=slack, kinks=expected.kinks + int(np.count_nonzero(tied)))


@_without_warnings
def mlstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `mlstm` from its recurrent form. States are in the units of their own m (see `rescaled`)."""
    arrays = with_state(arrays)
    B = arrays["q"].shape[0]
    copies, _ = _mlstm_copies(arrays, {}, precision)
    h, last = reference.mlstm_recurrent(
        *(copies[name] for name in "qkvif"), initial_state=_state(copies), eps=options.get("eps", 0.0)
    )
    m, _ = _split(last.m, B)
    m_of_all = np.concatenate([m] * (1 + _COPIES)) if B else last.m
    parts = {"C": rescaled(last.C, last.m, m_of_all), "n": rescaled(last.n, last.m, m_of_all), "m": last.m}
    magnitudes = _magnitudes(arrays, options.get("eps", 0.0), None).outputs
    return _expected({"h": h, **parts}, B, magnitudes, precision)


@_without_warnings
def mlstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `mlstm`, states included."""
    arrays = with_state(arrays)
    B, S = arrays["q"].shape[:2]
    copies, dcopies = _mlstm_copies(arrays, cotangents, precision)
    gradients = reference.mlstm_backward(
        *(copies[name] for name in "qkvif"),
        initial_state=_state(copies),
        dh=dcopies["h"],
        dstate=MLSTMState(*(dcopies[name] for name in "Cnm")),
        eps=options.get("eps", 0.0),
    )
    dstate = gradients.pop("initial_state")
    named = {**gradients, **dict(zip(("C0", "n0", "m0"), dstate, strict=True))}
    exact = {name: _split(stacked, B)[0] for name, stacked in named.items()}
    terms = _magnitudes(arrays, options.get("eps", 0.0), cotangents)
    expected = _expected(named, B, _gradient_magnitudes(terms, exact), precision)
    ones = np.ones((*copies["v"].shape[:-1], 1))
    unit = MLSTMState(copies["n0"][..., None], copies["n0"], copies["m0"])
    nu_over_floor, _ = reference.mlstm_recurrent(
        copies["q"], copies["k"], ones, copies["i"], copies["f"], initial_state=unit
    )
    above, other = _split(np.abs(nu_over_floor[..., 0]) > 1 - 1e-12, B)
    kinks = int((other != above).any(axis=0).sum()) if B and S else 0
    spread = {"above": float(above.sum())} if above.size else {}
    carried = precision.growth * terms.gradients["carried"]
    counted = Expected(expected.values, expected.slack, kinks, above.size, spread, carried)
    return _either_side(counted, arrays, cotangents["m"])


def each_sequence(arrays: Values, cotangents: Values, lengths: tuple[int, ...]) -> list[tuple[Values, Values]]:
    """A packed mLSTM call as dense calls of one sequence each."""
    arrays = with_state({name: x for name, x in arrays.items() if name != "cu_seqlens"}, len(lengths))
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    calls = []
    for b in range(len(lengths)):

        def part(
            name: str, x: np.ndarray, b: int = b, per_sequence: tuple = ("C0", "n0", "m0", "C", "n", "m")
        ) -> np.ndarray:
            return x[b : b + 1] if name in per_sequence else x[None, bounds[b] : bounds[b + 1]]

        calls.append(
            (
                {name: part(name, x) for name, x in arrays.items()},
                {name: part(name, x) for name, x in cotangents.items()},
            )
        )
    return calls


_PER_SEQUENCE = ("C0", "n0", "m0", "C", "n", "m")


def joined(parts: list[Expected]) -> Expected:
    """Dense results of one sequence each as one packed result."""

    def join(arrays: list[Values], name: str) -> np.ndarray:
        if name in _PER_SEQUENCE:
            return np.concatenate([a[name] for a in arrays])
        return np.concatenate([a[name][0] for a in arrays])

    names = parts[0].values
    spread = {"above": sum(p.spread.get("above", 0.0) for p in parts)}
    return Expected(
        {name: join([p.values for p in parts], name) for name in names},
        {name: join([p.slack for p in parts], name) for name in names},
        sum(p.kinks for p in parts),
        sum(p.elements for p in parts),
        spread,
    )


# --- fwbw: the mLSTM without a head axis


def _add_head(name: str, x: np.ndarray) -> np.ndarray:
    if name in ("q", "k", "v", "h"):
        return x[:, :, None]
    if name in ("i", "f"):
        return x.reshape(*x.shape[:2], 1)
    return x[:, None]


def _drop_head(expected: Expected, gate_shape: tuple[int, ...]) -> Expected:
    def drop(name: str, x: np.ndarray) -> np.ndarray:
        if name in ("i", "f"):
            return x.reshape(gate_shape)
        return x[:, :, 0] if name in ("q", "k", "v", "h") else x[:, 0]

    return Expected(
        {name: drop(name, x) for name, x in expected.values.items()},
        {name: drop(name, x) for name, x in expected.slack.items()},
        expected.kinks,
        expected.elements,
        expected.spread,
    )


def _zero_cotangents(arrays: Values, cotangents: Values) -> Values:
    B, _, K = arrays["q"].shape
    V = arrays["v"].shape[-1]
    zeros = {"C": np.zeros((B, K, V)), "n": np.zeros((B, K)), "m": np.zeros(B)}
    return {**zeros, **cotangents}


def fwbw(arrays: Values, config: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of the fwbw functions: `mlstm` with a floor of 1 where the configuration says so."""
    headed = {name: _add_head(name, x) for name, x in arrays.items()}
    if config.get("stabilize_correctly"):
        return _drop_head(mlstm(headed, {}, precision), arrays["i"].shape)
    return _drop_head(_unstabilised(headed, None, precision), arrays["i"].shape)


def fwbw_gradient(arrays: Values, config: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    full = _zero_cotangents(arrays, cotangents)
    headed = {name: _add_head(name, x) for name, x in arrays.items()}
    dheaded = {name: _add_head(name, x) for name, x in full.items()}
    if config.get("stabilize_correctly"):
        return _drop_head(mlstm_gradient(headed, {}, dheaded, precision), arrays["i"].shape)
    return _drop_head(_unstabilised(headed, dheaded, precision), arrays["i"].shape)


@_without_warnings
def _unstabilised(arrays: Values, cotangents: Values | None, precision: Precision) -> Expected:
    """The reference's own fwbw, whose floor is 1, on stacked copies; heads are one."""
    arrays = with_state(arrays)
    B = arrays["q"].shape[0]
    copies, dcopies = _mlstm_copies(arrays, cotangents or {}, precision)

    def squeeze(name: str, x: np.ndarray) -> np.ndarray:
        return x[:, :, 0] if name in (*"qkvif", "h") else x[:, 0]

    bare = {name: squeeze(name, x) for name, x in copies.items()}
    config = {"chunk_size": 64, "return_state": True, "use_initial_state": True, "stabilize_correctly": False}
    function = reference.mlstm_fwbw_custom_grad(config)
    ordered = [bare[name] for name in (*"qkvif", "C0", "n0", "m0")]
    if cotangents is None:
        h, last = function(*ordered)
        m, _ = _split(last.m, B)
        m_of_all = np.concatenate([m] * (1 + _COPIES)) if B else last.m
        named = {"h": h[:, :, None], "m": last.m[:, None]}
        named |= {"C": rescaled(last.C, last.m, m_of_all)[:, None], "n": rescaled(last.n, last.m, m_of_all)[:, None]}
        return _expected(named, B, _magnitudes(arrays, 0.0, None, floor_is_one=True).outputs, precision)
    d = {name: squeeze(name, x) for name, x in dcopies.items()}
    gradients = function.backward(*ordered, dh=d["h"], dc_last=d["C"], dn_last=d["n"], dm_last=d["m"])
    named = dict(zip((*"qkvif", "C0", "n0", "m0"), gradients, strict=True))
    headed = {
        name: x[:, :, None] if name in "qkv" else x[..., None] if name in "if" else x[:, None]
        for name, x in named.items()
    }
    exact = {name: _split(stacked, B)[0] for name, stacked in headed.items()}
    magnitudes = _gradient_magnitudes(_magnitudes(arrays, 0.0, cotangents, floor_is_one=True), exact)
    return _either_side(_expected(headed, B, magnitudes, precision), arrays, cotangents["m"])


# --- GRU: copies stand along the head axis, because weights are shared by the whole batch


def _gru_axis(name: str) -> int:
    return 0 if name.endswith("weight") else -2


def _gru_copies(arrays: Values, cotangents: Values, precision: Precision) -> tuple[Values, Values, int]:
    rng = np.random.default_rng(0)
    N = max(arrays[name].shape[_gru_axis(name)] for name in GRU_ARRAYS)

    def copies(name: str, x: np.ndarray) -> np.ndarray:
        is_gate = name in ("input", "forget_input", "reset_input")

        def draw() -> np.ndarray:
            if is_gate:
                return budget.perturbed_gate(x, precision, rng, 0.0)
            return budget.perturbed_operand(x, precision, rng)

        draws = [draw() for _ in range(DRAWS)]
        axis = _gru_axis(name)
        return np.concatenate([np.repeat(c, N // x.shape[axis], axis=axis) for c in (x, *draws)], axis=axis)

    return (
        {name: copies(name, x) for name, x in arrays.items()},
        {name: copies(name, x) for name, x in cotangents.items()},
        N,
    )


def _gru_split(name: str, stacked: np.ndarray, heads: int, N: int) -> tuple[np.ndarray, np.ndarray]:
    """Copies apart, and the heads of a group summed: ``(exact, draws)``."""
    axis = _gru_axis(name) % stacked.ndim
    shape = stacked.shape
    apart = stacked.reshape(*shape[:axis], 1 + DRAWS, heads, N // heads, *shape[axis + 1 :]).sum(axis=axis + 2)
    apart = np.moveaxis(apart, axis, 0)
    return apart[0], apart[1:]


@_without_warnings
def gru(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `gru`, dense or packed."""
    arrays, cu_seqlens = _without_packing(arrays)
    copies, _, N = _gru_copies(arrays, {}, precision)
    y, state = reference.gru(
        *(copies[name] for name in GRU_ARRAYS), input_state=copies.get("input_state"), cu_seqlens=cu_seqlens
    )
    exact, slack = {}, {}
    for name, stacked in (("y", y), ("state", state)):
        exact[name], draws = _gru_split(name, stacked, N, N)
        size = 1 + float(np.abs(y).max(initial=0.0))
        steps = y.ndim - 3 if name == "y" else None
        carried = precision.growth * size if y.size else 0.0
        slack[name] = budget.response(exact[name], draws, steps=steps) + carried
    return Expected(exact, slack)


@_without_warnings
def gru_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `gru`. ``input_state`` is among the results whether or not one was given."""
    arrays, cu_seqlens = _without_packing(arrays)
    heads = {name: x.shape[_gru_axis(name)] for name, x in arrays.items()}
    copies, dcopies, N = _gru_copies(arrays, cotangents, precision)
    if "input_state" not in copies:
        copies["input_state"] = np.zeros(dcopies["state"].shape)
    y, _ = reference.gru(
        *(copies[name] for name in GRU_ARRAYS), input_state=copies["input_state"], cu_seqlens=cu_seqlens
    )
    gradients = reference.gru_backward(
        *(copies[name] for name in GRU_ARRAYS),
        input_state=copies["input_state"],
        gradient_clipping=options.get("gradient_clipping"),
        cu_seqlens=cu_seqlens,
        dy=dcopies["y"],
        dstate=dcopies["state"],
    )
    exact, slack = {}, {}
    # The carried gradient is rounded at each step: γ of the largest that reaches any state, times what it multiplies.
    reaching = max(np.abs(x).max(initial=0.0) for x in (*cotangents.values(), gradients["input_state"]))
    size = (1 + float(np.abs(y).max(initial=0.0))) * float(reaching)
    for name, stacked in gradients.items():
        count = heads.get(name, N)
        exact[name], draws = _gru_split(name, stacked, count, N)
        terms = np.sqrt(N / count)
        if name.endswith("weight"):
            terms *= np.sqrt(max(1, y.size / max(1, y.shape[-1] * y.shape[-2])))
        steps = y.ndim - 3 if name.endswith("input") else None
        own = budget.response(exact[name], draws, steps=steps)
        slack[name] = own + (precision.growth * size * terms if y.size else 0.0)
    return Expected(exact, slack)


def _without_packing(arrays: Values) -> tuple[Values, np.ndarray | None]:
    arrays = dict(arrays)
    return arrays, arrays.pop("cu_seqlens", None)
