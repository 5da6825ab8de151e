"""The learning rate: a linear rise, then half a cosine."""

import math

from examples.language_model.settings import Settings


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step, counted from 0.

    It rises linearly and reaches its highest value in the last of `warmup_steps`; from there it decreases as half a
    cosine, to ``final_learning_rate · learning_rate`` after the last step.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = min(1.0, (step - settings.warmup_steps) / (settings.steps - settings.warmup_steps))
    low = settings.final_learning_rate
    return settings.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2)
