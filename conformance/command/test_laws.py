"""The tests that ``pytest --pyargs conformance`` collects: one for each law and dtype."""

from typing import Any


def test_law(conformance_item: Any, conformance_tests: Any) -> None:
    """The law holds: see `conformance.pytest_plugin`."""
    conformance_tests.judge(conformance_item)
