"""gatespec's own packages keep the laws of this folder: one test for each package, law and dtype."""

from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.runner import run_law
from conformance.judge.selection import why_not
from tests.calls.packages import PACKAGES, load
from tests.calls.registry import all_laws

LAWS = [(law, dtype) for law in all_laws() for dtype in law.dtypes]


@pytest.fixture(params=PACKAGES, scope="module")
def package(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.mark.parametrize(("law", "dtype"), LAWS, ids=[f"{law.id}-{dtype}" for law, dtype in LAWS])
def test_a_law(package: Any, law: Any, dtype: str) -> None:
    if dtype not in law.usual_dtypes(package.eager):
        pytest.skip("a target that compiles is tried in fewer dtypes")
    if reason := why_not(package, law, dtype):
        pytest.skip(reason)
    found = run_law(package, law, dtype, RunOptions())
    assert found.status == "passed", found.reason
