"""Text from a trained model: bytes drawn one by one. NumPy draws them, in either framework."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from examples.language_model import checkpoints, settings
from examples.language_model.checkpoints import CheckpointError
from examples.language_model.corpus import BOUNDARY
from examples.language_model.kinds import Kind, Values, kind_of
from examples.language_model.training import SETTINGS, WEIGHTS
from examples.xlstm.sampling import Sampling

DEFAULT = Sampling(temperature=0.8, top_p=0.95)

# Tokens (S,) and the state after those before them → logits of the next token, and the state after all.
Decoder = Callable[[np.ndarray, Any], tuple[np.ndarray, Any]]


def load(directory: Path, framework: str | None, refused: Callable[[str], None]) -> Decoder:
    """The decoder of a run's newest undamaged checkpoint.

    Args:
        directory: the directory of the run.
        framework: the framework that decodes; None means the one that trained.
        refused: called with a sentence about each damaged checkpoint.

    Raises:
        CheckpointError, ParametersError, SettingsError: there is no usable checkpoint, or its weights do not fit.
    """
    found = settings.read(directory / SETTINGS)
    checkpoint = checkpoints.newest(directory / "checkpoints", refused)
    if checkpoint is None:
        raise CheckpointError(f"{directory} has no checkpoint yet")
    kind = kind_of(found)
    try:
        values = load_file(checkpoint.directory / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.directory.name}: {WEIGHTS} cannot be read: {error}") from error
    kind.check(values)
    return decoder(kind, values, framework or found.framework)


def decoder(kind: Kind, values: Values, framework: str) -> Decoder:
    """The decoder of a model with these parameters; the other framework is not imported."""
    if framework == "torch":
        from examples.language_model import torch_decoding

        return torch_decoding.decoder(kind, values)
    from examples.language_model import jax_decoding

    return jax_decoding.decoder(kind, values)


def sample(decode: Decoder, prompt: bytes, length: int, how: Sampling = DEFAULT, *, seed: int = 0) -> Iterator[bytes]:
    """Draw bytes one by one, until the document ends or there are enough.

    Args:
        decode: the model.
        prompt: the beginning of the document.
        length: the maximum number of bytes.
        how: the temperature and the share of the probability from which bytes are drawn.
        seed: the seed of the draws.

    Yields:
        single bytes, without those of the prompt.

    Raises:
        ValueError: a logit is NaN or +∞.
    """
    rng = np.random.default_rng(seed)
    tokens = np.array([BOUNDARY, *prompt], np.int32)
    state = None
    for _ in range(length):
        logits, state = decode(tokens, state)
        token = how.draw(logits, rng)
        if token == BOUNDARY:
            return
        yield bytes([token])
        tokens = np.array([token], np.int32)
