"""The sLSTM with a rounding at random after every operation, forward and backward, on many copies at once.

Each operation of the loop is followed by an error of one roundoff of its result, with a random sign (Rademacher's: an
operation that matters alone then shows in every copy). A sum of a few terms is off by a roundoff of their magnitudes,
so that any order is covered. The products with the weights sum many: see `Rounding.sum`. What a computation may do in
several ways has an error for each: the log weight of the memory is off by a roundoff of the largest of a, m and m_new,
although it can be computed without. Functions are off by more than a roundoff (`FUNCTION`, `TANH`).

There are two backward passes. One treats m as a constant, and computes the gates again from the states, as a pass does
that stores little: they then have other errors than in the forward pass, and z dc + dn is not 0 where c/n is z. The
other is what automatic differentiation of the definition performs: it sums every path through the stabiliser m,
although they cancel (`conformance.oracle._stabiliser_paths`), and with them some of the errors of the first. Where two
candidates for m tie within rounding, different copies take different ones.

A compiler may compute c and n twice, once for the next step and once as results, and fuse products and sums differently
each time. Where c is a small difference of large terms, the two are far apart in units of c, and h does not belong to
the memory that the step before has stored. Both are therefore rounded on their own.

Operands of products may be rounded to 16 bits. Such an operand has the same error at every step as long as it does not
change, and these errors add up. In half of the copies each of its elements therefore has the same sign at every step.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from conformance.oracle._common import Values
from conformance.oracle._gru_magnitudes import TANH

GATES = "zifo"
FUNCTION = 2.0
"""The error of exp, log and σ in roundoffs of the result; `TANH` is that of tanh."""
_BLOCK = 64
_OFFSETS = 1 << 17
_LEAST = -1e300


@lru_cache(maxsize=4)
def _signs(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, size) * 2.0 - 1.0


class Rounding:
    """Random errors of ``copies`` computations; signs are read from a long array at random places.

    Args:
        unit: a roundoff.
        operand: the roundoff of operands of products; 0 if they are not rounded.
    """

    def __init__(self, copies: int, largest: int, unit: float, operand: float, seed: int):
        self.copies, self._rng, self._unit, self._operand = copies, np.random.default_rng(seed), unit, operand
        self._signs = _signs(_OFFSETS + 4 * copies * largest)
        self._noise = unit * self._signs
        self._factors = {times: 1 + times * self._noise for times in (1.0, FUNCTION, TANH)}
        self._places: list[int] = []
        self._kept: dict[str, np.ndarray] = {}

    def _at(self, signs: np.ndarray, x: np.ndarray) -> np.ndarray:
        if not self._places:
            self._places = self._rng.integers(0, _OFFSETS, 4096).tolist()
        place = self._places.pop()
        return signs[place : place + x.size].reshape(x.shape)

    def __call__(self, x: np.ndarray, times: float = 1.0) -> np.ndarray:
        """``x``, off by ``times`` roundoffs of itself."""
        return x * self._at(self._factors[times], x)

    def by(self, x: np.ndarray, size: np.ndarray) -> np.ndarray:
        """``x``, off by a roundoff of ``size``, which has its shape."""
        return x + size * self._at(self._noise, x)

    def sum(self, x: np.ndarray, size: np.ndarray, terms: int) -> np.ndarray:
        """``x``, the sum of so many terms in an unknown order, whose magnitudes have the sum ``size``.

        Each addition rounds a partial sum, which is at most ``size``, by at most a roundoff: by 1/√3 of one in the root
        mean square. Together these are √(terms/3) roundoffs.
        """
        return self.by(x, max(1.0, (terms / 3) ** 0.5) * size)

    def operand(self, name: str, x: np.ndarray) -> np.ndarray:
        """``x``, ``(N, copies, …)``, as the operand of a product that has this name at every step."""
        if not self._operand:
            return x
        signs = self._at(self._signs, x).copy()
        signs[:, : self.copies // 2] = self._sign_of(name, x)
        return x * (1 + self._operand * signs)

    def held(self, name: str, x: np.ndarray, carries: np.ndarray) -> np.ndarray:
        """``x``, off by a roundoff whose sign stays the same in half of the copies while m is carried.

        Args:
            name: of the product that is ``x``.
            carries: where the new m is the carried one, ``(N, copies, …)`` as ``x``.
        """
        signs = self._at(self._noise, x).copy()
        half = self.copies // 2
        signs[:, :half] = np.where(carries[:, :half], self._unit * self._sign_of(name, x), signs[:, :half])
        return x * (1 + signs)

    def _sign_of(self, name: str, x: np.ndarray) -> np.ndarray:
        """For half of the copies of ``x``, the sign that has this name."""
        if name not in self._kept:
            self._kept[name] = self._rng.integers(0, 2, (len(x), self.copies // 2, *x.shape[2:])) * 2.0 - 1.0
        return self._kept[name]

    def weight(self, W: np.ndarray) -> np.ndarray:
        """``W``, ``(N, H, ·)``, as the operand of all products of a copy: ``(N, copies, H, ·)``."""
        if not self._operand:
            return W
        signs = self._rng.integers(0, 2, (len(W), self.copies, *W.shape[1:])) * 2.0 - 1.0
        return W[:, None] * (1 + self._operand * signs)


class Sequence(NamedTuple):
    """One sequence, or a dense batch, with heads first.

    Attributes:
        x: preactivations z, i, f, o next to each other, ``(S, N, 1, B, 4H)``.
        W: weights likewise, ``(N, H, 4H)``.
        state: c, n, m, h, each ``(N, 1, B, H)``.
        exponential: whether the forget gate is.
    """

    x: np.ndarray
    W: np.ndarray
    state: tuple[np.ndarray, ...]
    exponential: bool


class Gates(NamedTuple):
    """The activations of a step, ``(N, copies, B, H)``.

    Attributes:
        z, o: tanh(u_z) and σ(u_o).
        slope: da/du_f.
        decay, gain: the weights of memory and write.
        m: the new one.
        carries: where it is the carried one.
    """

    z: np.ndarray
    o: np.ndarray
    slope: np.ndarray
    decay: np.ndarray
    gain: np.ndarray
    m: np.ndarray
    carries: np.ndarray


class Step(NamedTuple):
    """The values of a step, ``(N, copies, B, H)``; c, n and h are those before it, the others those after it.

    Attributes:
        gates: those of the forward pass.
        again: computed a second time.
    """

    c: np.ndarray
    n: np.ndarray
    h: np.ndarray
    gates: Gates
    again: Gates
    divisor: np.ndarray
    quotient: np.ndarray
    new_h: np.ndarray


def _size(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), np.abs(x), 0.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _times(h: np.ndarray, W: np.ndarray) -> np.ndarray:
    """``(N, copies, B, ·)`` times ``(N, ·, ·)``, or ``(N, copies, ·, ·)``."""
    if W.ndim == 4:
        return h @ W
    return (h.reshape(len(h), h.shape[1] * h.shape[2], h.shape[3]) @ W).reshape(*h.shape[:3], W.shape[-1])


def _gates(exponential: bool, u: np.ndarray, size: np.ndarray, m: np.ndarray, r: Rounding) -> Gates:
    """A step up to its weights, from preactivations whose terms have the magnitudes ``size``."""
    u_z, i, u_f, u_o = np.split(r.sum(u, size, u.shape[-1] // 4 + 1), 4, axis=-1)
    a = u_f if exponential else r(-np.logaddexp(0.0, -u_f), FUNCTION)
    slope = np.ones(u_f.shape) if exponential else r(_sigmoid(-u_f), FUNCTION)
    carried = r(a + m)
    new = np.maximum(carried, i)
    unit = np.maximum(new, _LEAST)
    largest = np.maximum(np.maximum(_size(a), _size(m)), _size(new))
    decay = r(np.exp(r.by(a + m - unit, largest)), FUNCTION)
    gain = r(np.exp(r(i - unit)), FUNCTION)
    return Gates(r(np.tanh(u_z), TANH), r(_sigmoid(u_o), FUNCTION), slope, decay, gain, new, carried >= i)


def _memory(gates: Gates, c: np.ndarray, n: np.ndarray, r: Rounding) -> tuple[np.ndarray, np.ndarray]:
    """c and n after a step."""
    kept_c, kept_n = r.held("c", gates.decay * c, gates.carries), r.held("n", gates.decay * n, gates.carries)
    return r(kept_c + r(gates.gain * gates.z)), r(kept_n + gates.gain)


def forward(
    sequence: Sequence, W: np.ndarray, r: Rounding, keep: bool
) -> tuple[np.ndarray, tuple[np.ndarray, ...], list[Step]]:
    """Every h, ``(S, N, copies, B, H)``, the final state, and the steps if they are kept."""
    x, magnitude = sequence.x, _size(sequence.x)
    shape = (x.shape[1], r.copies, *sequence.state[0].shape[2:])
    c, n, m, h = (np.broadcast_to(part, shape).copy() for part in sequence.state)
    absolute = np.abs(sequence.W)
    every, steps, before = np.empty((len(x), *shape)), [], (c, n)
    for t in range(len(x)):
        u, size = x[t] + _times(r.operand("h", h), W), magnitude[t] + _times(np.abs(h), absolute)
        gates = _gates(sequence.exponential, u, size, m, r)
        carried, result = (_memory(gates, c, n, r) for _ in range(2))
        divisor = np.where(result[1] == 0, np.inf, result[1])
        quotient = r(result[0] / divisor)
        every[t] = r(gates.o * quotient)
        if keep:
            again = _gates(sequence.exponential, u, size, m, r)
            steps.append(Step(*before, h, gates, again, divisor, quotient, every[t]))
        (c, n), before, m, h = carried, result, gates.m, every[t]
    return every, (*before, m, h), steps


class Gradients(NamedTuple):
    """Gradients of the copies.

    Attributes:
        x: ``(S, N, copies, B, 4H)``.
        W: ``(N, copies, H, 4H)``.
        squares: Σ(terms²) of W's, of the first copy, ``(N, H, 4H)``.
        state: of c, n, m, h, each ``(N, copies, B, H)``.
    """

    x: np.ndarray
    W: np.ndarray
    squares: np.ndarray
    state: tuple[np.ndarray, ...]


def backward(
    sequence: Sequence,
    W: np.ndarray,
    last: tuple[np.ndarray, ...],
    steps: list[Step],
    dh_of: np.ndarray,
    dlast: tuple[np.ndarray, ...],
    bound: float,
    r: Rounding,
    through_m: bool,
) -> Gradients:
    """The gradient.

    Args:
        W: weights as operands.
        last: the final state.
        dh_of: cotangents of every h, ``(S, N, 1, B, H)``.
        dlast: those of the final c, n, m, h, ``(N, 1, B, H)``.
        bound: of the gradient that reaches h from the next step.
        through_m: whether the definition is differentiated as it was computed, and every path through m summed.
            Otherwise m is a constant but for its own cotangent, and the gates are computed again.
    """
    N, B, H = dlast[0].shape[0], *dlast[0].shape[2:]
    shape = (N, r.copies, B, H)
    dc, dn, dm, dh_next = (np.broadcast_to(d, shape).copy() for d in dlast)
    dx, dW = np.empty((len(steps), *shape[:-1], 4 * H)), np.zeros((N, r.copies, H, 4 * H))
    squares, pending = np.zeros((N, H, 4 * H)), []
    absolute = np.abs(W).swapaxes(-1, -2)
    if not through_m:
        of_c, of_n = r(last[0] * dc), r(last[1] * dn)
        dm = r.by(dm - of_c - of_n, np.abs(dm) + np.abs(of_c) + np.abs(of_n))
    for t in reversed(range(len(steps))):
        s = steps[t]
        g = s.gates if through_m else s.again
        # The bound is rounded, too, and a cotangent may cancel it.
        dh = r(r(np.clip(dh_next, -bound, bound)) + dh_of[t])
        of_quotient = r(dh * g.o)
        of_divisor = of_quotient * s.quotient if through_m else dh * s.new_h
        dc = r(dc + r(of_quotient / s.divisor))
        dn = r(dn - r(r(of_divisor) / s.divisor))
        of_decay = r(g.decay * r(r(s.c * dc) + r(s.n * dn)))
        of_gain = r(g.gain * r(r(g.z * dc) + dn))
        if through_m:
            dm = r.by(dm - of_decay - of_gain, np.abs(dm) + np.abs(of_decay) + np.abs(of_gain))
        carried = np.where(g.carries, dm, 0.0)
        du = np.concatenate(
            [
                r(r(g.gain * dc) * r(1 - r(g.z * g.z))),
                r(of_gain + (dm - carried)),
                r(r(of_decay + carried) * g.slope),
                r(r(dh * s.quotient) * r(g.o * r(1 - g.o))),
            ],
            axis=-1,
        )
        dm = r(of_decay + carried) if through_m else carried
        dc, dn = r.held("dc", g.decay * dc, g.carries), r.held("dn", g.decay * dn, g.carries)
        rounded = r.operand("du", du)
        dh_next = r.sum(_times(rounded, W.swapaxes(-1, -2)), _times(np.abs(du), absolute), du.shape[-1])
        dx[t] = du
        squares += np.einsum("nbi,nbj->nij", s.h[:, 0] ** 2, du[:, 0] ** 2)
        pending.append((r.operand("h", s.h), rounded))
        if len(pending) == _BLOCK or t == 0:
            left, right = (np.concatenate(each, axis=2) for each in zip(*pending, strict=True))
            dW, pending = dW + left.swapaxes(-1, -2) @ right, []
    if not through_m:
        c, n = sequence.state[:2]
        dm = r(r(dm + r(c * dc)) + r(n * dn))
    return Gradients(dx, dW, squares, (dc, dn, dm, dh_next))


def each_sequence(
    arrays: Values, cotangents: Values, cu_seqlens: np.ndarray | None, exponential: bool
) -> list[tuple[Sequence, np.ndarray | None, tuple[np.ndarray, ...]]]:
    """Every sequence of a packed call, or the dense batch, with its cotangents of h and of the final state."""
    x = np.concatenate([arrays[name] for name in GATES], axis=-1)
    W = np.concatenate([arrays[f"weight_{name}"] for name in GATES], axis=-1)
    B, shape = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1, arrays["z"].shape[-2:]
    empty: Mapping[str, float] = {"c0": 0.0, "n0": 0.0, "m0": -np.inf, "h0": 0.0}
    state = [arrays.get(name, np.full((B, *shape), value)) for name, value in empty.items()]
    dlast = [cotangents[name] for name in ("c", "n", "m", "last_h")] if cotangents else []

    def by_head(part: np.ndarray) -> np.ndarray:
        return np.moveaxis(part, 0, 1)[:, None]

    def by_step(part: np.ndarray) -> np.ndarray:
        return part.transpose(1, 2, 0, 3)[:, :, None]

    if cu_seqlens is None:
        parts = [(slice(None), x, cotangents.get("h"))]
    else:
        spans = [slice(*cu_seqlens[b : b + 2]) for b in range(B)]
        of_h = cotangents.get("h")
        parts = [(slice(b, b + 1), x[None, at], None if of_h is None else of_h[None, at]) for b, at in enumerate(spans)]
    return [
        (
            Sequence(by_step(own), W, tuple(by_head(part[b]) for part in state), exponential),
            None if d is None else by_step(d),
            tuple(by_head(part[b]) for part in dlast),
        )
        for b, own, d in parts
    ]
