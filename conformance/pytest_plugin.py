"""The laws as tests: one for each law and dtype.

``pytest --pyargs conformance --conformance-implementation=mypkg`` runs them. This module is loaded in every run of
pytest wherever gatespec is installed, so it imports the table of options alone until a run asks for the laws. They are
collected from `conformance.command.test_laws`; ``-k``, ``--junitxml`` and, where pytest-xdist is installed, ``-n`` work
as in any other run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.base.options import OFFERED, OfferedOption

if TYPE_CHECKING:
    from conformance.command.test_laws import LawTests

_TYPES = {"count": int, "seed": int, "seconds": float}
_TESTS = pytest.StashKey["LawTests"]()
_SILENT = "name a target to judge: pytest --pyargs conformance --conformance-implementation=mypkg"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "gatespec's laws (pytest --pyargs conformance)")
    add = group.addoption
    add(
        "--conformance-implementation",
        action="append",
        metavar="TARGET",
        help="target to judge; may be given several times",
    )
    for option in OFFERED:
        if option.pytest:
            add(f"--conformance-{option.name}", **_settings(option))


def _settings(option: OfferedOption) -> dict[str, Any]:
    """An option as pytest takes it; `conformance.command.test_laws` judges its value."""
    found: dict[str, Any] = {"help": option.help.replace("%", "%%")}
    if option.kind == "flag":
        return {**found, "action": "store_true"}
    if option.choices:
        found["choices"] = option.choices
    else:
        found |= {"metavar": option.metavar or "NAME", "type": _TYPES.get(option.kind, str)}
    if option.several:
        return {**found, "action": "append", "default": []}
    return {**found, "default": option.default}


def _tests(config: pytest.Config) -> LawTests:
    """The laws and targets of this run, loaded once."""
    if _TESTS not in config.stash:
        from conformance.command.requirements import complaint

        missing = complaint("pytest --pyargs conformance")
        if missing is not None:
            raise pytest.UsageError(missing)
        try:
            import _gatespec_clash  # noqa: F401  # before `reference` is imported
        except ImportError as error:
            raise pytest.UsageError(str(error)) from None
        from conformance.base.exceptions import UsageError
        from conformance.command.test_laws import LawTests

        try:
            config.stash[_TESTS] = LawTests.of(config.getoption)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_TESTS]


def _collects_laws(config: pytest.Config) -> bool:
    """Whether the arguments of the run name the suite: as a package, or by a path to its tests."""
    laws = Path(__file__).parent / "command" / "test_laws.py"
    named = [argument.partition("::")[0] for argument in config.args]
    if config.getoption("pyargs") and any(name.partition(".")[0] == "conformance" for name in named):
        return True
    return any(laws.is_relative_to((config.invocation_params.dir / name).resolve()) for name in named)


def pytest_configure(config: pytest.Config) -> None:
    targets = config.getoption("conformance_implementation")
    if not targets:
        return
    if not _collects_laws(config):
        raise pytest.UsageError(
            "no law would run: --conformance-implementation needs the suite among the tests; add --pyargs conformance, "
            f"as in pytest --pyargs conformance --conformance-implementation={targets[0]}"
        )
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
    """The object that judges one law at a time: see `conformance.command.test_laws`."""
    return _tests(request.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    targets = config.getoption("conformance_implementation")
    if not targets:
        return []
    line = f"conformance: {', '.join(targets)}, seed {config.getoption('conformance_seed')}"
    # With pytest-xdist the option is there, whether or not the run uses it.
    if config.getoption("numprocesses", None) is None:
        line += "; -n 2 with pytest-xdist judges in two processes"
    return [line, *_tests(config).notes]
