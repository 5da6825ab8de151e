"""The mLSTM with steps sharded over devices: for any case, what the specification says of the whole sequences.

`tests/calls/sequence_parallel_laws.py` asks the same of `reference`. Faults that are planted in the code between the
devices are all caught.
"""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.both.shards import JAX, TORCH
from tests.calls.shard_cases import ShardCase, difference, values, whole

DEVICES = {"tests.both.with_jax": JAX, "tests.both.with_torch": TORCH}


def check(run: Any, case: ShardCase) -> str | None:
    x = values(case)
    return difference(case, run(case, x), whole(case, x))


def test_sharded_is_whole(framework: ModuleType) -> None:
    devices = DEVICES[framework.__name__]

    @settings(max_examples=25, suppress_health_check=[*HealthCheck])
    @given(st.one_of(st.sampled_from(devices.TABLE), devices.cases()))
    def any_case(case: ShardCase) -> None:
        assert (problem := check(run, case)) is None, f"{case.describe()}: {problem}"

    with framework.wide(True), devices.running(None) as run:
        for case in devices.TABLE:
            assert check(run, case) is None
        any_case()


@pytest.mark.grid
@pytest.mark.parametrize("number", range(4))
def test_a_planted_fault_is_caught(framework: ModuleType, number: int) -> None:
    """Where sequences are packed, which takes the whole path, with resets or without."""
    devices = DEVICES[framework.__name__]
    fault = devices.FAULTS[number]
    with framework.wide(True), devices.running(fault) as run:
        found = [check(run, case) for case in devices.TABLE if case.bounds is not None]
    assert any(found), fault.name


def test_sequential_operations_refuse(framework: ModuleType) -> None:
    """By the keyword's name, with the reason, before anything else."""
    keyword = {"jax_impl": "sequence_axis", "torch_impl": "sequence_group"}[framework.package.__name__]
    for name, arguments in (("slstm", 8), ("gru", 6)):
        with pytest.raises(ValueError) as error:
            getattr(framework.package, name)(*[None] * arguments, **{keyword: "sp"})
        reason = "expected None: each step needs the one before it, so shard the batch or the heads instead"
        assert str(error.value) == f"{name}: `{keyword}` is 'sp'; {reason}"
