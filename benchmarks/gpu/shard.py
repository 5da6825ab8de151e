"""A pytest plugin: ``--shard I/N`` keeps every N-th test, starting with the I-th, so that N processes share a run.

Kernels are compiled by the process that launches them, one after the other. Tests wait for that, not for the GPU.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="Keep every N-th test, beginning with the I-th, from 0.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    text = config.getoption("--shard")
    if text is None:
        return
    first, count = (int(word) for word in text.split("/"))
    config.hook.pytest_deselected(items=[item for number, item in enumerate(items) if number % count != first])
    items[:] = items[first::count]
