"""Settings of all tests: the devices JAX shows, the threads a worker may use, and which examples Hypothesis draws."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.fixture(autouse=True)
def _jax_keeps_its_precision() -> Iterator[None]:
    """The suite's adapter switches JAX to 64 bits for a whole process; other tests rely on the default."""
    before = getattr(sys.modules.get("jax"), "config", None)
    enabled = before is not None and before.jax_enable_x64
    yield
    after = getattr(sys.modules.get("jax"), "config", None)
    if after is not None and after.jax_enable_x64 != enabled:
        after.update("jax_enable_x64", enabled)
