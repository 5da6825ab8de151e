"""Faults in the code between devices that share the steps of the mLSTM: the law `mlstm.sharding_over_steps` finds them.

Eight devices of JAX and four processes of PyTorch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from conformance.base.options import RunOptions
from conformance.frameworks.targets import load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import law_of
from conformance.rows.row import Row, changes

JAX_FAULTS = changes("""
    @ mlstm _mlstm/sequence_parallel.py incoming

    summaries combined in the wrong order
    - combine(earlier, before)
    + combine(before, earlier)

    shard's cotangent dropped
    - _packed(own)
    + jax.lax.stop_gradient(_packed(own))

    @ mlstm _mlstm/sequence_parallel.py combine

    stabiliser not rescaled
    - gain[..., None, None] * later.state.C
    + later.state.C

    @ mlstm _mlstm/sequence_parallel.py sharded

    border sequence leaks into its neighbour
    - (indices(arguments.B) == of_first) & (cu_seqlens[of_first] < begin)
    + indices(arguments.B) == of_first
""")
TORCH_FAULTS = changes("""
    @ mlstm _mlstm/sequence_parallel.py incoming

    summaries combined in the wrong order
    - combine(Summary(*earlier), Summary(*before))
    + combine(Summary(*before), Summary(*earlier))

    shard's cotangent dropped
    - _packed(own)
    + _packed(own).detach()

    @ mlstm _mlstm/sequence_parallel.py combine

    stabiliser not rescaled
    - gain[..., None, None] * later.C
    + later.C

    @ mlstm _mlstm/sequence_parallel.py sharded

    border sequence leaks into its neighbour
    - crosses & (bounds[of_first] < begin)
    + crosses
""")

TARGET = """
import torch_impl
from tests.both.test_shards import TORCH_FAULTS, with_fault
from torch_impl import MLSTMState
from torch_impl._mlstm import api, sequence_parallel

faulty = with_fault(sequence_parallel, TORCH_FAULTS[{number}]).sharded


def mlstm(*arrays, sequence_group=None, **options):
    healthy, api.sharded = api.sharded, faulty
    try:
        return torch_impl.mlstm(*arrays, sequence_group=sequence_group, **options)
    finally:
        api.sharded = healthy
"""


def with_fault(module: ModuleType, fault: Row) -> ModuleType:
    """A copy of a module that has the fault in it; nobody uses it yet."""
    assert module.__file__ is not None
    copy = ModuleType(module.__name__)
    source = Path(module.__file__).read_text(encoding="utf-8")
    exec(compile(fault.applied(source), module.__file__, "exec"), copy.__dict__)
    return copy


def judged(target: str, framework: str) -> LawResult:
    options = RunOptions(examples=8, shrink_seconds=0.0)
    return run_law(load(target, framework, "cpu"), law_of("mlstm.sharding_over_steps"), "float32", options)


@contextmanager
def of_jax(number: int, _: Path) -> Iterator[str]:
    import jax

    from jax_impl._mlstm import autograd

    healthy = autograd.sequence_parallel
    autograd.sequence_parallel = with_fault(healthy, JAX_FAULTS[number])
    jax.clear_caches()
    try:
        yield "jax_impl"
    finally:
        autograd.sequence_parallel = healthy
        jax.clear_caches()


@contextmanager
def of_torch(number: int, folder: Path) -> Iterator[str]:
    path = folder / "faulty.py"
    path.write_text(TARGET.format(number=number), encoding="utf-8")
    yield str(path)


TARGETS: dict[str, Callable] = {"jax": of_jax, "torch": of_torch}


@pytest.mark.parametrize("number", range(4))
def test_a_planted_fault_is_caught(
    framework: ModuleType, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATESPEC_TORCH_PROCESSES", "4")
    name = framework.__name__.rpartition("_")[2]
    with framework.wide(True), TARGETS[name](number, tmp_path) as target:
        result = judged(target, name)
    assert result.status == "failed", result.reason


def test_sequential_operations_refuse(framework: ModuleType) -> None:
    """By the keyword's name, with the reason, before anything else."""
    keyword = {"jax_impl": "sequence_axis", "torch_impl": "sequence_group"}[framework.package.__name__]
    for name, arguments in (("slstm", 8), ("gru", 6)):
        with pytest.raises(ValueError) as error:
            getattr(framework.package, name)(*[None] * arguments, **{keyword: "sp"})
        reason = "expected None: each step needs the one before it, so shard the batch or the heads instead"
        assert str(error.value) == f"{name}: `{keyword}` is 'sp'; {reason}"
