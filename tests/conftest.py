"""Settings of all tests: the devices JAX shows, the threads a worker may use, which examples Hypothesis draws, and how
many sets of parameters run."""

import os
import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import grids

# Read once, when JAX starts: so before any test module imports it. Subprocesses inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

# Workers that each start a thread per core wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No deadline in either: the first example of a shape compiles. `fixed` draws the same examples in every run.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **_COMMON)
settings.register_profile("fixed", **_COMMON, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed" if os.environ.get("CI") else "explore"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--grids",
        choices=grids.HOW,
        default="whole",
        help="sets of parameters of tests marked `grid`: all; as few as have each value of each parameter; one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "grid: one path through the code at many sizes or switches; see --grids")
    config.addinivalue_line("markers", "whole_grid: only with `--grids whole`")
    config.addinivalue_line("markers", "long: takes more than ten seconds of processor time; workers begin with these")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:], dropped = grids.split(items, config.getoption("grids"))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    # With long tests at the end, one worker would wait for the other.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def _numbers_do_not_depend_on_earlier_tests() -> None:
    """Weights that a framework draws are the same in every run; Keras takes its seeds from Python's `random`."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _jax_keeps_its_precision() -> Iterator[None]:
    """The suite's adapter switches JAX to 64 bits for a whole process; other tests rely on the default."""
    before = getattr(sys.modules.get("jax"), "config", None)
    enabled = before is not None and before.jax_enable_x64
    yield
    after = getattr(sys.modules.get("jax"), "config", None)
    if after is not None and after.jax_enable_x64 != enabled:
        after.update("jax_enable_x64", enabled)


@pytest.fixture(autouse=True, scope="module")
def _programs_of_jax_are_few() -> Iterator[None]:
    """A process that kept all compiled programs of JAX's tests would be ended by XLA before the last of them."""
    yield
    if "jax" in sys.modules:
        from conformance.frameworks import _jax_compiled

        if _jax_compiled.crowded():
            _jax_compiled.drop_programs()
