"""The laws about huge gates exempt gatespec's own kernels where docs/spec.md does, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

import torch_impl
from conformance.cases import MLSTMCase
from conformance.frameworks.torch import TorchImplementation
from conformance.laws._mlstm_kernel_limits import BELOW, limit
from conformance.laws.checker import Checker
from conformance.operations import OPERATIONS

SPEC = " ".join((Path(__file__).parents[2] / "docs/spec.md").read_text().split())


def below(name: str, function: Any, backend: str | None) -> float:
    target = TorchImplementation("target", {name: function, "explain_backend": torch_impl.explain_backend}, "cpu")
    operation = OPERATIONS[name]
    call = operation.call_of(MLSTMCase(1, 1, 1, 2, 2, state="random"), "float32")
    return limit(operation, Checker(target.in_run(kernel_backend=backend), "float32"), call)


@pytest.mark.parametrize("name", BELOW)
def test_only_gatespec_s_own_kernels_are_exempt(name: str) -> None:
    own = getattr(torch_impl, name)
    assert below(name, own, "triton") == 2.0**28
    assert below(name, own, "torch") == below(name, own, None) == 0.0

    def stranger(*arrays: Any, **options: Any) -> Any:
        return own(*arrays, **options)

    assert below(name, stranger, "triton") == 0.0


def test_the_limits_are_those_of_the_specification() -> None:
    page = " ".join(SPEC.split())
    assert "S·u·max|m| ≤ 16" in page
    assert "single steps of the Pallas kernel below |m| = 8·10⁷, and the Triton kernels below 2²⁸, can give NaN" in page
    assert BELOW == {"mlstm": {"triton": 2.0**28}, "mlstm_step": {"triton": 2.0**28, "pallas": 8e7}}
