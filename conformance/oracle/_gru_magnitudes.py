"""Rounding in a GRU apart from its inputs: products of 16-bit operands, and the state that is carried.

Two sums are computed for every quantity, both to first order: an error is followed to the state or the gradient that it
reaches at its own step, and from there to the other steps by the derivative of a step (`_Carried`). The response to
perturbed inputs does not show it: behind a closed gate, where 1 − f is a few roundoffs, no perturbed input changes the
path through the weights by as much as the rounding of f does.

- ``products``: Σ|terms| of products whose operands may be rounded to 16 bits, in units of that roundoff.
- ``drift``: the root of the sum of squares over steps of all other rounding, in units of roundoff. A gate is off by a
  roundoff of itself and of its preactivation; 1 − f is off by as much, however small it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from conformance.oracle._common import Values

Pair = tuple[np.ndarray, np.ndarray]  # (products, drift)
WEIGHTS = ("weight", "forget_weight", "reset_weight")
SHARED = (*WEIGHTS, "recurrent_bias")
"""The arguments that all sequences share."""
TANH = 8 / 3
"""The error of tanh in units of `conformance.tolerance.budget.KAPPA` roundoffs of the result.

On a CPU, XLA's is off by up to 4.8 roundoffs in float32 and 7.7 in float64, PyTorch's by 1.3 and NumPy's by 1.8 (four
million numbers in each of four intervals).
"""


class _Carried:
    """An error that is carried from step to step by the derivative J of a step, ``(B, N, H)``.

    Errors of different steps and elements are independent: their covariance is carried, Σ ← JᵀΣJ + diag(error²). It is
    kept in units of its largest element of each head, because squares could leave the range of float64. What is carried
    from an element to itself, by f, is kept without squares, because it may be far smaller.

    Args:
        alike: whether errors of one element may have the same sign at every step, as those of an operand that is
            rounded to 16 bits. Then they are summed, and not their squares, as far as f carries them.
    """

    def __init__(self, shape: tuple[int, ...], alike: bool):
        self._add = np.add if alike else np.hypot
        self._own, self._unit = np.zeros(shape), np.zeros((*shape[:-1], 1))
        self._covariance = np.zeros((*shape, shape[-1]))

    @property
    def size(self) -> np.ndarray:
        """The error of each element."""
        return np.maximum(self._own, self._unit * _roots(self._covariance))

    def step(self, J: np.ndarray, f: np.ndarray, error: np.ndarray) -> None:
        """Carry what there is by ``J[..., i, j]``, from element i to element j, and add an error."""
        self._own = self._add(f * self._own, error)
        unit = np.maximum(self._unit, error.max(axis=-1, keepdims=True, initial=0.0))
        divisor = np.where(unit > 0, unit, 1.0)
        J = J * (self._unit / divisor)[..., None]
        covariance = J.mT @ self._covariance @ J + np.square(error / divisor)[..., None] * np.eye(error.shape[-1])
        largest = _roots(covariance).max(axis=-1, keepdims=True, initial=0.0)
        self._unit = unit * largest
        self._covariance = covariance / np.square(np.where(largest > 0, largest, 1.0))[..., None]


def _roots(covariance: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0))


@dataclass(frozen=True)
class _Forward:
    """Values and errors, as (products, drift), for one sequence or a dense batch, steps first: ``(S, B, N, H)``.

    ``J[..., i, j]`` is the derivative of element j of the state after a step by element i of the state before it. With
    the reset gate after the product, p = h W + b.
    """

    h: np.ndarray
    f: np.ndarray
    r: np.ndarray
    z: np.ndarray
    p: np.ndarray | None
    J: np.ndarray
    of_h: Pair
    of_f: Pair
    of_r: Pair
    of_z: Pair
    of_p: Pair | None
    after: Pair


def gru_magnitudes(arrays: Values, y: np.ndarray, cu_seqlens: np.ndarray | None, reset_after: bool) -> dict[str, Pair]:
    """Magnitudes ``(products, drift)`` of the terms of both outputs, for a GRU whose states are ``y``."""
    parts = [_forward(part, reset_after) for part in _sequences(arrays, y, {}, cu_seqlens)]
    each = [
        {
            "y": tuple(np.moveaxis(x[1:], 0, 1) for x in part.after),
            "state": tuple(x[-1] for x in part.after),
        }
        for part in parts
    ]
    return _joined(each, ("state",), cu_seqlens)


def gru_gradient_magnitudes(
    arrays: Values,
    y: np.ndarray,
    cotangents: Values,
    clipping: float | None,
    cu_seqlens: np.ndarray | None,
    reset_after: bool,
) -> dict[str, Pair]:
    """``(products, drift)`` of every gradient; those of weights are summed over the heads that share a weight."""
    each = [
        _backward(part, _forward(part, reset_after), np.inf if clipping is None else abs(clipping))
        for part in _sequences(arrays, y, cotangents, cu_seqlens)
    ]
    found = _joined(each, ("input_state", *SHARED), cu_seqlens)
    return {name: _served(name, pair, arrays[name]) if name in arrays else pair for name, pair in found.items()}


def _axis(name: str) -> int:
    return 0 if name in SHARED else -2


def _sequences(arrays: Values, y: np.ndarray, d: Values, cu_seqlens: np.ndarray | None) -> Iterator[Values]:
    """Each sequence (or the dense batch) with its heads expanded, steps first."""
    N = y.shape[-2]
    heads = {
        name: np.repeat(x, N // x.shape[_axis(name)], _axis(name))
        for name, x in arrays.items()
        if name != "input_state"
    }
    tokens = {name: x for name, x in heads.items() if name not in SHARED} | {"y": y}
    tokens |= {"dy": d["y"]} if d else {}
    B = y.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    states = {"input_state": arrays.get("input_state", np.zeros((B, *y.shape[-2:])))}
    states |= {"dstate": d["state"]} if d else {}
    weights = {name: heads[name] for name in SHARED if name in heads}
    if cu_seqlens is None:
        yield {**weights, **states, **{name: np.moveaxis(x, 1, 0) for name, x in tokens.items()}}
        return
    for b, (start, end) in enumerate(pairwise(int(bound) for bound in cu_seqlens)):
        of_b = {name: x[b : b + 1] for name, x in states.items()}
        yield {**weights, **of_b, **{name: x[start:end, None] for name, x in tokens.items()}}


def _joined(each: list[dict[str, Pair]], states: tuple[str, ...], cu_seqlens: np.ndarray | None) -> dict[str, Pair]:
    def join(name: str, parts: list[np.ndarray]) -> np.ndarray:
        if cu_seqlens is None:
            return parts[0]
        return np.concatenate(parts) if name in states else np.concatenate([part[0] for part in parts])

    if not each:
        return {}

    def both(name: str) -> Pair:
        products, drift = (join(name, [part[name][at] for part in each]) for at in (0, 1))
        return products, drift

    return {name: both(name) for name in each[0]}


def _served(name: str, pair: Pair, served: np.ndarray) -> Pair:
    """The sum over heads that share one head: products add up, squares of drifts too; weights also over sequences."""

    def groups(x: np.ndarray) -> np.ndarray:
        axis, count = _axis(name) % x.ndim, served.shape[_axis(name)]
        x = x.reshape(*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return np.moveaxis(x, axis + 1, 0)

    products, drift = pair
    if name in SHARED:
        return groups(products.sum(axis=0)).sum(axis=0), np.hypot.reduce(groups(np.hypot.reduce(drift, axis=0)), axis=0)
    return groups(products).sum(axis=0), np.hypot.reduce(groups(drift), axis=0)


def _times(h: np.ndarray, W: np.ndarray) -> np.ndarray:
    return np.einsum("...ni,nij->...nj", h, W)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _size(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), np.abs(x), 0.0)


def _forward(x: Values, reset_after: bool) -> _Forward:
    W, Wf, Wr = (x[name] for name in WEIGHTS)
    h = np.concatenate([x["input_state"][None], x["y"]])[:-1]
    r, f = _sigmoid(_times(h, Wr) + x["reset_input"]), _sigmoid(_times(h, Wf) + x["forget_input"])
    size, p = np.abs(h), None
    if reset_after:
        bias = x.get("recurrent_bias", np.zeros(h.shape[-2:]))
        p = _times(h, W) + bias
    z = np.tanh((_times(r * h, W) if p is None else r * p) + x["input"])
    of_f = _times(size, np.abs(Wf)) * f * (1 - f)
    of_r = _times(size, np.abs(Wr)) * r * (1 - r)
    in_p = _times(size, np.abs(W))
    in_z = _times(size * r, np.abs(W)) if p is None else r * in_p
    of_z = (in_z + (_times(size * of_r, np.abs(W)) if p is None else of_r * np.abs(p))) * (1 - z * z)
    drift_f = of_f + _size(x["forget_input"]) * f * (1 - f) + f
    drift_r = of_r + _size(x["reset_input"]) * r * (1 - r) + r
    # The bias is added with one rounding of p.
    through_gate = _times(size * drift_r, np.abs(W)) if p is None else (drift_r + r) * np.abs(p)
    drift_z = (in_z + _size(x["input"]) + through_gate) * (1 - z * z) + TANH * np.abs(z)
    products = np.abs(h - z) * of_f + (1 - f) * of_z
    # These are h − z, its product, and the sum, in the form z + f⊙(h − z).
    rounded = np.abs(h - z) * (drift_f + 2) + (1 - f) * drift_z + size + np.abs(x["y"])
    J = _derivative(h, f, r, z, p, (W, Wf, Wr))
    after = np.zeros((2, len(h) + 1, *h.shape[1:]))
    for at, errors in enumerate((products, rounded)):
        carried = _Carried(h.shape[1:], alike=errors is products)
        for t in range(len(h)):
            carried.step(J[t], f[t], errors[t])
            after[at, t + 1] = carried.size

    of_h = after[0, :-1], after[1, :-1]
    # Errors carried up to this step affect the gates and z as well.
    through_f = [_times(of, np.abs(Wf)) * f * (1 - f) for of in of_h]
    through_r = [_times(of, np.abs(Wr)) * r * (1 - r) for of in of_h]
    if p is None:
        through_z = [_times(r * of, np.abs(W)) * (1 - z * z) for of in of_h]
    else:
        through_z = [r * _times(of, np.abs(W)) * (1 - z * z) for of in of_h]
    whole_f = of_f + through_f[0], drift_f + through_f[1]
    whole_r = of_r + through_r[0], drift_r + through_r[1]
    whole_z = of_z + through_z[0], drift_z + through_z[1]
    of_p = None
    if p is not None:
        carried_p = [_times(of, np.abs(W)) for of in of_h]
        of_p = in_p + carried_p[0], in_p + np.abs(p) + carried_p[1]
    return _Forward(h, f, r, z, p, J, of_h, whole_f, whole_r, whole_z, of_p, (after[0], after[1]))


def _derivative(
    h: np.ndarray, f: np.ndarray, r: np.ndarray, z: np.ndarray, p: np.ndarray | None, weights: tuple
) -> np.ndarray:
    """The derivative of ``z + f⊙(h − z)`` by h, ``(S, B, N, H, H)``, the element of the result last."""
    W, Wf, Wr = weights
    eye = np.eye(h.shape[-1])
    if p is None:
        of_u = (r[..., None] * eye + Wr * (h * r * (1 - r))[..., None, :]) @ W
    else:
        of_u = W * r[..., None, :] + Wr * (p * r * (1 - r))[..., None, :]
    of_z = of_u * ((1 - f) * (1 - z * z))[..., None, :]
    return f[..., None] * eye + Wf * ((h - z) * f * (1 - f))[..., None, :] + of_z


def _backward(x: Values, forward: _Forward, bound: float) -> dict[str, Pair]:
    W, Wf, Wr = (x[name].swapaxes(-1, -2) for name in WEIGHTS)
    h, f, r, z, p = forward.h, forward.f, forward.r, forward.z, forward.p
    S, shape = len(h), h.shape
    dh, dhs, dz, df, drh, dr = x["dstate"], *(np.zeros(shape) for _ in range(5))
    for t in reversed(range(S)):
        dh = np.clip(dh, -bound, bound) + x["dy"][t]
        dhs[t], dz[t] = dh, dh * (1 - f[t]) * (1 - z[t] ** 2)
        df[t] = dh * (h[t] - z[t]) * f[t] * (1 - f[t])
        if p is None:
            drh[t] = _times(dz[t], W)
            dr[t], through = drh[t] * h[t] * r[t] * (1 - r[t]), drh[t] * r[t]
        else:
            dr[t], through = dz[t] * p[t] * r[t] * (1 - r[t]), _times(dz[t] * r[t], W)
        dh = dh * f[t] + through + _times(df[t], Wf) + _times(dr[t], Wr)
    found: dict[str, list[np.ndarray]] = {}
    for at in (0, 1):
        for name, terms in _gradient_errors(forward, at, (W, Wf, Wr), (dhs, dz, df, drh, dr)).items():
            found.setdefault(name, []).append(terms)
    none = (np.zeros(shape), np.zeros(shape))
    of_h, of_r = forward.of_h, forward.of_r
    read, own, carried = r * h, (np.abs(h) * of_r[0], np.abs(h) * of_r[1]), (r * of_h[0], r * of_h[1])
    of_product = "input"
    if p is not None:
        # W is multiplied by h, and what its product receives is dp = r⊙dz.
        read, own, carried, of_product = h, none, of_h, "product"
        for at, count in ((0, 0), (1, 1)):
            found["product"] = [*found.get("product", []), r * found["input"][at] + np.abs(dz) * (of_r[at] + count * r)]
            found.setdefault("product, arriving", []).append(r * found["input, arriving"][at])
    gradients: dict[str, Pair] = {"input_state": (found["input_state"][0], found["input_state"][1])}
    for name, of, x_t, of_x, carried_x, d in (
        ("weight", of_product, read, own, carried, dz if p is None else r * dz),
        ("forget_weight", "forget_input", h, none, of_h, df),
        ("reset_weight", "reset_input", h, none, of_h, dr),
    ):
        gradients[name] = _of_weight(x_t, of_x, carried_x, d, found[of], found[f"{of}, arriving"])
    for of in ("input", "forget_input", "reset_input"):
        local, through = found[of], found[f"{of}, arriving"]
        products, drift = (np.moveaxis(local[at] + through[at], 0, 1) for at in (0, 1))
        gradients[of] = products, drift
    if p is not None:
        # The sum of dp is that weight's gradient for a state of ones.
        ones = np.ones((*shape[:-1], 1))
        exact = np.zeros(ones.shape), np.zeros(ones.shape)
        of_bias = _of_weight(ones, exact, exact, r * dz, found["product"], found["product, arriving"])
        gradients["recurrent_bias"] = of_bias[0][..., 0, :], of_bias[1][..., 0, :]
    return gradients


def _gradient_errors(forward: _Forward, at: int, weights: tuple, gradients: tuple) -> dict[str, np.ndarray]:
    """Errors of the gradients of a call's inputs, as products (``at`` 0) or drift (1); those that arrived are apart."""
    h, f, r, z, p = forward.h, forward.f, forward.r, forward.z, forward.p
    of_h, of_f, of_r, of_z = (pair[at] for pair in (forward.of_h, forward.of_f, forward.of_r, forward.of_z))
    W, Wf, Wr = (np.abs(w) for w in weights)
    size, dz, df, drh, dr = (np.abs(d) for d in gradients)
    slope_f, slope_r, difference = f * (1 - f), r * (1 - r), np.abs(h - z)
    own = 4 if at else 1  # Roundings of a product with this number of factors, or of an operand.
    of_dz = size * ((1 - z * z) * of_f + (1 - f) * 2 * np.abs(z) * of_z) + own * dz
    of_df = size * (slope_f * (of_h + of_z) + difference * np.abs(1 - 2 * f) * of_f) + own * df
    if p is None or forward.of_p is None:
        of_drh = _times(of_dz, W)
        of_dr = of_drh * np.abs(h) * slope_r + drh * (slope_r * of_h + np.abs(h) * np.abs(1 - 2 * r) * of_r) + own * dr
        of_candidate = r * of_drh + drh * of_r
    else:
        of_p, size_p = forward.of_p[at], np.abs(p)
        of_dr = of_dz * size_p * slope_r + dz * (slope_r * of_p + size_p * np.abs(1 - 2 * r) * of_r) + own * dr
        of_candidate = _times(r * of_dz + dz * (of_r + r), W)
    terms = size * of_f + of_candidate + _times(of_df, Wf) + _times(of_dr, Wr)
    arriving, carried = np.zeros(h.shape), _Carried(h.shape[1:], alike=not at)
    for t in reversed(range(len(h))):
        arriving[t] = carried.size
        carried.step(forward.J[t].mT, f[t], terms[t] + size[t] * at)
    through_z = arriving * (1 - f) * (1 - z * z)
    return {
        "input": of_dz,
        "forget_input": of_df,
        "reset_input": of_dr,
        "input, arriving": through_z,
        "forget_input, arriving": arriving * difference * slope_f,
        "reset_input, arriving": (_times(through_z, W) * np.abs(h) if p is None else through_z * np.abs(p)) * slope_r,
        "input_state": carried.size,
    }


def _of_weight(
    x: np.ndarray, of_x: Pair, carried_x: Pair, d: np.ndarray, of_d: list[np.ndarray], carried_d: list[np.ndarray]
) -> Pair:
    """Errors of ``Σ_t xᵀd`` for each sequence, ``(B, N, H, H)``.

    Both operands may be rounded. A carried error is the same at every step, so these errors add up; all other errors
    are independent. n terms are summed in any order; a partial sum is as large as the root of the sum of squares of the
    terms, or as the whole sum.
    """

    largest = np.abs(d).max(initial=0.0)
    scale = largest if largest > 0 else 1.0
    d, of_d, carried_d = d / scale, [of / scale for of in of_d], [of / scale for of in carried_d]

    def outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("tbni,tbnj->bnij", a, b)

    size, of = np.abs(x), np.abs(d)
    products = outer(size + of_x[0] + carried_x[0], of) + outer(size, of_d[0] + carried_d[0])
    alike = outer(carried_x[1], of) + outer(size, carried_d[1])
    square = outer(of_x[1] ** 2, d**2) + outer(x**2, of_d[1] ** 2)
    drift = alike + np.sqrt(square + (len(x) + 1) * (outer(x**2, d**2) + outer(x, d) ** 2))
    return products * scale, drift * scale
