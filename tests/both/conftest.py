"""Every test of this folder runs with each installed framework."""

import importlib
from importlib.util import find_spec
from types import ModuleType

import pytest


@pytest.fixture(params=[name for name in ("torch", "jax") if find_spec(name)])
def framework(request: pytest.FixtureRequest) -> ModuleType:
    """`tests.both.with_torch` or `tests.both.with_jax`."""
    return importlib.import_module(f"tests.both.with_{request.param}")
