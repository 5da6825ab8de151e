"""The laws as tests: one for each law and dtype.

``pytest --pyargs conformance --conformance-implementation=mypkg`` runs them. This module is loaded in every run of
pytest wherever gatespec is installed, so it imports nothing until a run asks for the laws. They are collected from
`conformance.test_laws`; ``-k``, ``--junitxml`` and, where pytest-xdist is installed, ``-n`` work as in any other run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conformance.law_tests import LawTests

_TESTS = pytest.StashKey["LawTests"]()
_SILENT = "name what is to be judged: pytest --pyargs conformance --conformance-implementation=mypkg"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "gatespec's laws (pytest --pyargs conformance)")
    add = group.addoption
    add(
        "--conformance-implementation",
        action="append",
        metavar="TARGET",
        help="what is to be judged; may be given several times",
    )
    add("--conformance-op", action="append", default=[], metavar="NAME", help="only laws about this operation")
    add("--conformance-law", action="append", default=[], metavar="NAME", help="only this law")
    add("--conformance-dtype", action="append", default=[], metavar="NAME", help="only this dtype of values")
    add("--conformance-examples", type=int, metavar="N", help="cases per law and dtype")
    add("--conformance-max-steps", type=int, metavar="S", help="the longest sequence")
    add("--conformance-seed", type=int, default=0, metavar="N", help="from which all cases are drawn")
    add("--conformance-device", default="cpu", choices=("cpu", "cuda"), help="where arrays live")
    add("--conformance-framework", choices=("numpy", "torch", "jax"), help="what the functions take")
    add("--conformance-kernel-backend", metavar="NAME", help="handed to every operation that takes one")
    add("--conformance-known", metavar="PATH", help="a file of known failures; those are xfailed")
    add("--conformance-failures", metavar="DIR", default="reports/failures", help="where scripts of failures are saved")
    add("--conformance-contract", action="store_true", help="what gatespec alone has decided has to be kept too")
    add("--conformance-only", choices=("values", "gradients"), help="leave out the other")
    add("--conformance-timeout", type=float, default=180.0, metavar="SECONDS", help="what one case may take")
    add("--conformance-quick", action="store_true", help="values and gradients alone, in float32")


def _tests(config: pytest.Config) -> LawTests:
    """The laws and targets of this run, loaded once."""
    if _TESTS not in config.stash:
        from conformance.requirements import complaint

        missing = complaint("pytest --pyargs conformance")
        if missing is not None:
            raise pytest.UsageError(missing)
        try:
            from conformance import _clash  # noqa: F401  # before `reference` is imported
        except ImportError as error:
            raise pytest.UsageError(str(error)) from None
        from conformance.implementation import UsageError
        from conformance.law_tests import LawTests

        try:
            config.stash[_TESTS] = LawTests.of(config.getoption)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_TESTS]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("conformance_implementation"):
        _tests(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _TESTS in config.stash:
        config.stash[_TESTS].stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "conformance_item" not in metafunc.fixturenames:
        return
    if not metafunc.config.getoption("conformance_implementation"):
        silent = pytest.param(None, marks=pytest.mark.skip(reason=_SILENT))
        metafunc.parametrize("conformance_item", [silent], ids=["no implementation"])
        return
    tests = _tests(metafunc.config)
    metafunc.parametrize("conformance_item", tests.items, ids=tests.ids)


@pytest.fixture
def conformance_tests(request: pytest.FixtureRequest) -> Any:
    """The object that judges one law at a time: see `conformance.law_tests`."""
    return _tests(request.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    targets = config.getoption("conformance_implementation")
    if not targets:
        return None
    line = f"conformance: {', '.join(targets)}, seed {config.getoption('conformance_seed')}"
    # With pytest-xdist the option is there, whether or not the run uses it.
    if config.getoption("numprocesses", None) is None:
        line += "; -n 2 with pytest-xdist judges in two processes"
    return line
