"""The next token from logits: temperature and top-p, computed in NumPy, so that both frameworks draw the same token."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The rule by which a token is drawn.

    Attributes:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_p: tokens are drawn from the smallest set of most likely ones with at least this probability, in (0, 1].

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"Sampling: `temperature` is {self.temperature}; expected a number of at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Sampling: `top_p` is {self.top_p}; expected a number above 0 and up to 1")

    def draw(self, logits: np.ndarray, rng: np.random.Generator) -> int:
        """One token from logits ``(vocab_size,)``.

        Raises:
            ValueError: a logit is NaN or +∞, or all are −∞.
        """
        if np.isnan(logits).any():
            raise ValueError("Sampling: a logit is NaN")
        if not np.isfinite(logits.max()):
            raise ValueError(f"Sampling: the largest logit is {logits.max()}; expected a finite one")
        if self.temperature == 0:
            return int(logits.argmax())
        # At a temperature near 0 the quotient may overflow: to −∞, which is a weight of 0.
        with np.errstate(over="ignore"):
            weights = np.exp((logits.astype(np.float64) - logits.max()) / self.temperature)
        order = np.argsort(-weights, kind="stable")
        cumulative = np.cumsum(weights[order])
        if self.top_p < 1:
            count = int(np.searchsorted(cumulative, self.top_p * cumulative[-1])) + 1
            order, cumulative = order[:count], cumulative[:count]
        place = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        return int(order[min(place, len(order) - 1)])
