"""gatespec's own packages keep the laws of this folder: one test for each package, law and dtype."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.runner import run_law
from conformance.judge.selection import why_not
from tests.calls.packages import PACKAGES, load
from tests.calls.registry import all_laws

LAWS = [(law, dtype) for law in all_laws() for dtype in law.dtypes]


@pytest.fixture(params=PACKAGES, scope="module")
def package(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The adapter switches JAX to 64 bits for a whole process, before the fixture that puts this back after a test."""
    before = getattr(sys.modules.get("jax"), "config", None)
    enabled = before is not None and before.jax_enable_x64
    yield load(request.param)
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", enabled)


@pytest.mark.parametrize(("law", "dtype"), LAWS, ids=[f"{law.id}-{dtype}" for law, dtype in LAWS])
def test_a_law(package: Any, law: Any, dtype: str) -> None:
    if dtype not in law.usual_dtypes(package.eager):
        pytest.skip("a target that compiles is tried in fewer dtypes")
    if reason := why_not(package, law, dtype):
        pytest.skip(reason)
    found = run_law(package, law, dtype, RunOptions())
    assert found.status == "passed", found.reason
