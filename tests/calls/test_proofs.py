"""Kernels are taken by default only where a run on hardware has proven them: with rows made for the purpose."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path

import pytest

from reference import _proofs
from reference.backends import Proof, Request, Row, explain, select, with_proofs
from tests.calls.test_bad_calls import mlstm_arguments
from tests.calls.wings import Wing


class Backend(Enum):
    """The backends of the rows below."""

    kernel = "kernel"
    composed = "composed"


PROOF = Proof(
    operation="mlstm",
    backend="kernel",
    dtypes=("float32", "bfloat16"),
    device="NVIDIA H200",
    architecture="sm_90",
    versions={"torch": "2.15.0+cu130", "triton": "3.9.0"},
    result="benchmarks/results/gpu/a.json",
)
CALL = Request(
    operation="mlstm",
    device="cuda",
    dtype="float32",
    sizes={"K": 8},
    architecture="sm_90",
    versions={"torch": "2.15.0", "triton": "3.9.0"},
)
ROWS = (
    *with_proofs([Row(backend="kernel", operation="mlstm", devices=("cuda",), largest=(("K", 512),))], [PROOF]),
    Row(backend="composed", operation="mlstm"),
)


def test_a_proven_kernel_is_taken_and_its_proof_is_said():
    explained = explain(ROWS, CALL, Backend)
    assert explained.chosen is Backend.kernel
    proof = "proven on sm_90 with torch 2.15 and triton 3.9 (NVIDIA H200, benchmarks/results/gpu/a.json)"
    assert str(explained) == f"takes kernel: {proof}\nnot composed: kernel is preferred"
    assert select(ROWS, CALL, None, Backend) is Backend.kernel


def test_a_kernel_refuses_an_option_until_its_row_has_it():
    call = replace(CALL, options=("bound",))
    assert str(explain(ROWS, call, Backend)) == "takes composed\nnot kernel: it takes no bound"
    with pytest.raises(ValueError, match="`kernel_backend` is kernel, which does not support this call: it takes no b"):
        select(ROWS, call, "kernel", Backend)
    (kernel,) = with_proofs([replace(ROWS[0], options=("bound",))], [PROOF])
    assert explain((kernel, ROWS[1]), call, Backend).chosen is Backend.kernel


def test_a_patch_release_needs_no_new_proof():
    call = replace(CALL, versions={"torch": "2.15.1+cpu", "triton": "3.9.4"})
    assert explain(ROWS, call, Backend).chosen is Backend.kernel


@pytest.mark.parametrize(
    ("changed", "here"),
    [
        ({"architecture": "sm_100"}, "float32 on sm_100 with torch 2.15 and triton 3.9"),
        ({"architecture": ""}, "float32 on an unknown GPU with torch 2.15 and triton 3.9"),
        ({"dtype": "float16"}, "float16 on sm_90 with torch 2.15 and triton 3.9"),
        ({"versions": {"torch": "2.14.0", "triton": "3.9.0"}}, "float32 on sm_90 with torch 2.14 and triton 3.9"),
        ({"versions": {"torch": "2.15.0", "triton": "3.10.0"}}, "float32 on sm_90 with torch 2.15 and triton 3.10"),
        ({"versions": {"torch": "2.15.0"}}, "float32 on sm_90 with torch 2.15"),
    ],
)
def test_another_gpu_dtype_or_version_is_not_proven(changed, here):
    call = replace(CALL, **changed)
    explained = explain(ROWS, call, Backend)
    assert explained.chosen is Backend.composed and not explained.why
    proven = "float32, bfloat16 on sm_90 with torch 2.15 and triton 3.9"
    assert explained.against == {
        Backend.kernel: f"it is proven for {proven}, but the call is {here}, so it is used only if the call names it"
    }
    assert select(ROWS, call, None, Backend) is Backend.composed
    assert select(ROWS, call, "kernel", Backend) is Backend.kernel


def test_a_proof_of_another_operation_or_backend_is_none():
    for other in (replace(PROOF, operation="gru"), replace(PROOF, backend="composed")):
        rows = (*with_proofs(ROWS[:1], [other]), ROWS[1])
        explained = explain(rows, CALL, Backend)
        assert explained.chosen is Backend.composed
        assert explained.against[Backend.kernel] == (
            "no run on a GPU has proven it, so it is used only if the call names it"
        )


def test_a_call_that_a_proven_kernel_cannot_serve():
    explained = explain(ROWS, replace(CALL, sizes={"K": 513}), Backend)
    assert explained.chosen is Backend.composed
    assert explained.against[Backend.kernel] == "it takes K up to 512, but the call has K=513"


def test_kernels_without_proof_can_be_accepted(monkeypatch):
    monkeypatch.setattr(_proofs, "ACCEPT_UNPROVEN", True)
    explained = explain(ROWS, replace(CALL, architecture="sm_100"), Backend)
    assert explained.chosen is Backend.kernel
    assert explained.why == "GATESPEC_UNPROVEN_KERNELS=1 takes kernels that no run has proven"
    assert explain(ROWS, CALL, Backend).why.startswith("proven on sm_90")


@pytest.mark.parametrize(("value", "accepts"), [(None, False), ("0", False), ("1", True)])
def test_the_variable_is_read_at_import(value, accepts):
    given = {name: x for name, x in os.environ.items() if name != "GATESPEC_UNPROVEN_KERNELS"}
    given |= {} if value is None else {"GATESPEC_UNPROVEN_KERNELS": value}
    given["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    code = "from reference import _proofs; print(_proofs.ACCEPT_UNPROVEN)"
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(accepts)


KERNELS = {"torch_impl": "triton", "jax_impl": "pallas"}


class GPU:
    """A package that believes its arrays to be on a GPU, with kernels whose proofs a test chooses."""

    def __init__(self, name: str, monkeypatch):
        self.wing, self.kernel = Wing(name), KERNELS[name]
        self.backends = importlib.import_module(f"{name}._backends")
        self.requests = self.backends._requests if name == "jax_impl" else self.backends._REQUESTS
        self._patch = monkeypatch
        # Versions and a GPU of which the kernels' own rows would complain have no part in this.
        rows = [replace(row, unavailable=None) for row in self.backends.KERNELS]
        monkeypatch.setattr(self.backends, "KERNELS", tuple(rows))
        if name == "jax_impl":
            monkeypatch.setattr(self.backends, "platform", lambda x: "gpu")
            monkeypatch.setattr(self.backends, "architecture", lambda x: "sm_90")
        else:
            request_of = self.backends.request_of
            on_gpu = {"device": "cuda", "architecture": "sm_90"}
            monkeypatch.setattr(self.backends, "request_of", lambda *args: replace(request_of(*args), **on_gpu))

    def prove(self, **changed) -> None:
        found = [
            Proof(
                **{
                    "operation": operation,
                    "backend": self.kernel,
                    "dtypes": ("float32",),
                    "device": "NVIDIA H200",
                    "architecture": "sm_90",
                    "versions": self.backends.VERSIONS,
                    "result": "a.json",
                    **changed,
                }
            )
            for operation in {row.operation for row in self.backends.KERNELS}
        ]
        self._patch.setattr(self.backends, "KERNELS", with_proofs(self.backends.KERNELS, found))

    def calls(self):
        """The operations that choose by themselves, with arguments."""
        tokens = mlstm_arguments(self.wing)
        yield "mlstm", tokens
        one = {name: x[:, 0] for name, x in tokens.items()}
        B, N, K, V = *one["k"].shape, one["v"].shape[-1]
        yield "mlstm_step", one | {"state": tuple(map(self.wing.array, ((B, N, K, V), (B, N, K), (B, N))))}
        x, W = self.wing.array((2, 5, 1, 4)), self.wing.array((1, 4, 4))
        names = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight")
        yield "gru", dict(zip(names, (x, W) * 3, strict=True))
        if "slstm" in {row.operation for row in self.backends.KERNELS}:
            gates = dict.fromkeys("zifo", x) | {f"weight_{gate}": W for gate in "zifo"}
            yield "slstm", gates
            one = gates | dict.fromkeys("zifo", x[:, 0])
            yield "slstm_step", one | {"state": (self.wing.array((2, 1, 4)),) * 4}

    def chosen(self) -> set[str]:
        """The backends that calls take unasked; what is explained is what is chosen."""
        found = set()
        for name, arguments in self.calls():
            explained = self.wing.explain_backend(name, **arguments)
            asked = self.requests[name](**arguments)
            taken = self.backends.choose(asked, None)
            assert explained.chosen.value == getattr(taken, "value", getattr(taken, "name", None))
            assert getattr(self.backends.choose(asked, self.kernel), "interpret", False) is False
            found.add(explained.chosen.value)
        return found


@pytest.fixture(params=[name for name in KERNELS if find_spec(name.partition("_")[0])])
def gpu(request, monkeypatch):
    return GPU(request.param, monkeypatch)


def test_no_kernel_is_proven_by_the_committed_results_of_another_machine(gpu):
    """What a package takes on this GPU is what its own file of proofs says, and nothing else."""
    path = Path(str(gpu.wing.module.__file__)).with_name("proofs.json")
    proofs = _proofs.read_proofs(path)
    for row in gpu.backends.KERNELS:
        assert row.proofs == tuple(p for p in proofs if (p.operation, p.backend) == (row.operation, row.backend))


def test_a_package_takes_its_kernels_where_they_are_proven(gpu):
    gpu.prove()
    assert gpu.chosen() == {gpu.kernel}


def test_a_package_takes_composed_code_elsewhere(gpu):
    framework = gpu.wing.name.partition("_")[0]
    for changed in (
        {"architecture": "sm_100"},
        {"versions": gpu.backends.VERSIONS | {framework: "1.9.9"}},
        {"dtypes": ("bfloat16",)},
        {"operation": "another"},
    ):
        gpu.prove(**changed)
        assert gpu.chosen() == {"torch" if framework == "torch" else "xla"}, changed


@pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch")
def test_what_the_layers_and_fwbw_take(monkeypatch):
    """They name no backend: fwbw takes what mlstm would."""
    import torch

    from torch_impl._mlstm import fwbw

    gpu = GPU("torch_impl", monkeypatch)
    monkeypatch.setattr(fwbw, "request_of", gpu.backends.request_of)
    x = torch.ones(2, 5, 4)
    assert fwbw._backend(x, x) == "torch"
    gpu.prove()
    assert fwbw._backend(x, x) == "triton"


@pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch")
def test_the_choice_can_be_compiled(monkeypatch):
    import torch

    gpu = GPU("torch_impl", monkeypatch)
    gpu.prove()
    from torch_impl._backends import architecture, choose

    def scaled(x, architecture=architecture):
        asked = replace(CALL, architecture=architecture(x.device) or "sm_90", versions=gpu.backends.VERSIONS)
        return x * (2 if choose(asked, None).value == "triton" else 3)

    x = torch.ones(3)
    assert torch.equal(torch.compile(scaled, fullgraph=True, backend="eager")(x), 2 * x)
