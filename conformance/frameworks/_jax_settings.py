"""JAX's settings that a call may change, and that other calls and the suite depend on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from conformance.frameworks import process_state


@contextmanager
def settings_kept() -> Iterator[None]:
    """`conformance.frameworks.process_state.settings_kept`, and all that ``jax.config`` holds."""
    with process_state.settings_kept(), config_kept():
        yield


@contextmanager
def config_kept() -> Iterator[None]:
    """Put all that ``jax.config`` holds back at the end."""
    config: Any = jax.config
    before = dict(config.values)
    try:
        yield
    finally:
        for name, value in before.items():
            if config.values[name] != value:
                config.update(name, value)
