"""Baselines: bits per byte that a trigram model, gzip and xz need for the same text."""

import gzip
import lzma
from dataclasses import dataclass

import numpy as np

from examples.language_model.corpus import VOCABULARY, Documents, text_of
from examples.language_model.packing import Rows


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Bits per byte of the held-out text.

    Attributes:
        trigram: bits per byte of an interpolated trigram model of the training text.
        gzip, xz: bits per byte of the held-out text, compressed alone at the highest level.
        xz_after_training: bits per byte that xz needs for the held-out text after the training text.
    """

    trigram: float
    gzip: float
    xz: float
    xz_after_training: float


def bits_per_byte(nats: float, targets: np.ndarray) -> float:
    """Cost of all targets, in bits, divided by the number of bytes among them."""
    return float(nats / np.log(2) / int(np.sum(targets < VOCABULARY - 1)))


def measure(training: Documents, validation: Rows) -> Baselines:
    """The baselines for the text in the rows of a validation."""
    held_out = text_of(validation.targets)
    seen = text_of(training.tokens)
    alone = len(lzma.compress(held_out, preset=9 | lzma.PRESET_EXTREME))
    # A dictionary that holds both texts.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": max(2**23, min(len(seen) + len(held_out), 2**30))}]
    before, both = (len(lzma.compress(text, filters=filters)) for text in (seen, seen + held_out))
    return Baselines(
        trigram=bits_per_byte(trigram_nats(training, validation), validation.targets),
        gzip=8 * len(gzip.compress(held_out, 9)) / len(held_out),
        xz=8 * alone / len(held_out),
        xz_after_training=8 * (both - before) / len(held_out),
    )


def trigram_nats(training: Documents, validation: Rows) -> float:
    """Cost in nats of every target of the rows, given the two tokens before it.

    Orders 0 to 2 are interpolated as Witten and Bell do:
    ``p(x | c) = (n(c x) + d(c) p(x | shorter c)) / (n(c) + d(c))``, where ``n`` counts in the training text and
    ``d(c)`` is the number of different tokens after ``c``. The shortest context, none, falls back on the uniform
    distribution. The first token of a row has one token before it.
    """
    stream = training.tokens.astype(np.int64)
    targets = validation.targets.astype(np.int64)
    one = validation.tokens.astype(np.int64)
    two = np.concatenate((np.full((len(one), 1), VOCABULARY - 1), one[:, :-1]), axis=1)
    probability = np.full(targets.shape, 1 / VOCABULARY)
    contexts = (
        (np.zeros_like(stream), np.zeros_like(targets), 1),
        (np.roll(stream, 1), one, VOCABULARY),
        (np.roll(stream, 2) * VOCABULARY + np.roll(stream, 1), two * VOCABULARY + one, VOCABULARY**2),
    )
    for of_stream, of_target, count in contexts:
        counts = np.bincount(of_stream * VOCABULARY + stream, minlength=count * VOCABULARY).reshape(count, VOCABULARY)
        seen, different = counts.sum(1), np.count_nonzero(counts, axis=1)
        total = seen[of_target] + different[of_target]
        mixed = (counts[of_target, targets] + different[of_target] * probability) / np.maximum(total, 1)
        probability = np.where(total > 0, mixed, probability)
    return float(-np.log(probability).sum())
