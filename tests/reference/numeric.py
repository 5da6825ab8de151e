"""Central differences, and a loop of the mLSTM whose stabiliser is given, to prove the written-out backwards with."""

import numpy as np


def slope(function, x: np.ndarray, direction: np.ndarray, step: float = 1e-4) -> float:
    """Fourth-order central difference of a scalar function along a direction."""
    one = function(x + step * direction) - function(x - step * direction)
    two = function(x + 2 * step * direction) - function(x - 2 * step * direction)
    return (8 * one - two) / (12 * step)


def assert_gradient(function, arguments: dict, gradients: dict, cotangents, rng, rtol: float = 1e-6) -> None:
    """Each argument's gradient agrees with central differences along a random direction.

    ``function(**arguments)`` returns a tuple of arrays; ``cotangents`` weighs them. The error is relative to the sum of
    the absolute terms of the slope, so that a slope that happens to be near 0 is held to the same digits.
    """

    def loss(**changed):
        outputs = function(**{**arguments, **changed})
        return sum(float((output * weight).sum()) for output, weight in zip(outputs, cotangents, strict=True))

    assert set(gradients) == set(arguments)
    for name, x in arguments.items():
        direction = rng.normal(size=x.shape)
        numeric = slope(lambda moved, name=name: loss(**{name: moved}), x, direction)
        terms = gradients[name] * direction
        assert gradients[name].shape == x.shape
        assert abs(numeric - terms.sum()) <= rtol * max(np.abs(terms).sum(), 1e-3), name


def mlstm_with_given_m(q, k, v, i, f, C, n, m_0, m, eps=0.0, floor=None):
    """The mLSTM's equations, dense layout, with the stabiliser ``m (B, S, N)`` as a constant."""
    h = np.empty(v.shape)
    for t in range(q.shape[1]):
        a = -np.logaddexp(0, -f[:, t])
        before = m[:, t - 1] if t else m_0
        decay, gain = np.exp(a + before - m[:, t]), np.exp(i[:, t] - m[:, t])
        C = C * decay[..., None, None] + (gain[..., None] * k[:, t])[..., None] * v[:, t, :, None, :]
        n = n * decay[..., None] + gain[..., None] * k[:, t]
        q_hat = q[:, t] / np.sqrt(q.shape[-1])
        bottom = np.exp(-np.minimum(m[:, t], 64.0)) if floor is None else floor
        nu = np.abs((n * q_hat).sum(-1))
        h[:, t] = (C * q_hat[..., None]).sum(-2) / (np.maximum(nu, bottom) + eps)[..., None]
    return h, C, n


def stabiliser(i, f, m_0):
    """m of every step, ``(B, S, N)``."""
    m = np.empty(i.shape)
    for t in range(i.shape[1]):
        m_0 = np.maximum(m_0 - np.logaddexp(0, -f[:, t]), i[:, t])
        m[:, t] = m_0
    return m
