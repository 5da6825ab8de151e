"""Evidence from a run on a GPU: what a run must leave, what of it reaches a package, and when it no longer counts."""

import json
import tarfile
from itertools import chain

import pytest
from click.testing import CliRunner

from benchmarks.command import main
from benchmarks.gpu import proofs
from reference._proofs import read_proofs

MACHINE = {"device": "NVIDIA H200", "architecture": "sm_90", "torch": "2.15.0+cu130", "triton": "3.9.0", "jax": None}
STAGES = ("versions", "kernels", "conformance", "large", "device")


def law(operation, name, dtype, status, kind="definition"):
    return {"id": f"{operation}.{name}", "op": operation, "kind": kind, "dtype": dtype, "status": status}


LAWS = [
    law(operation, name, dtype, "passed")
    for operation in ("mlstm", "fwbw", "gru")
    for name in ("value", "gradient")
    for dtype in ("float32", "bfloat16")
]


@pytest.fixture
def tree(tmp_path):
    """A source tree with a line for each kernel, and no evidence."""
    root = tmp_path / "tree"
    for package, judged in proofs.JUDGED.items():
        for place in (*chain.from_iterable(judged.folders.values()), judged.shared.partition("/")[0]):
            path = root / package / place
            path = path if path.suffix else path / "shared.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"place = '{place}'\n")
    (root / proofs.RESULTS).mkdir(parents=True)
    proofs.write(root)
    return root


def ran(directory, root, *, laws=LAWS, backend="triton", failed=(), stages=STAGES, **machine):
    """What a run of on_gpu.sh leaves in its directory."""
    directory.mkdir(exist_ok=True)
    found = MACHINE | machine | {"sources": proofs.digests(root)}
    (directory / "versions.json").write_text(json.dumps(found))
    for stage in stages:
        status = "failed" if stage in failed else "passed"
        outcome = {"stage": stage, "status": status, "seconds": 1.0, "summary": "", "commands": []}
        (directory / f"{stage}.outcome.json").write_text(json.dumps(outcome))
    document = [{"target": "torch_impl", "settings": {"kernel_backend": backend}, "laws": laws}]
    (directory / "suite-short.json").write_text(json.dumps(document))
    return directory


def packed(path, directory) -> str:
    """The archive that on_gpu.sh writes."""
    with tarfile.open(path, "w:gz") as archive:
        for file in directory.iterdir():
            archive.add(file, file.name)
    return str(path)


def proven(root, package="torch_impl"):
    return {proof.operation: proof.dtypes for proof in read_proofs(root / package / proofs.PROOFS)}


def test_a_run_that_passes_proves_its_kernels(tree, tmp_path) -> None:
    path = proofs.prove(ran(tmp_path / "run", tree), tree)
    assert path.relative_to(tree).as_posix() == "benchmarks/results/gpu/sm_90-torch-2.15.0-triton-3.9.0.json"
    assert proven(tree) == {"mlstm": ("float32", "bfloat16"), "gru": ("float32", "bfloat16")}
    assert proven(tree, "jax_impl") == {}
    proof = read_proofs(tree / "torch_impl" / proofs.PROOFS)[0]
    assert (proof.backend, proof.device, proof.architecture) == ("triton", "NVIDIA H200", "sm_90")
    assert proof.versions == {"torch": "2.15.0+cu130", "triton": "3.9.0"}
    assert (tree / proof.result) == path
    # The evidence follows the committed results: without them there is none.
    path.unlink()
    proofs.write(tree)
    assert proven(tree) == {}


def test_runs_on_several_gpus_add_up(tree, tmp_path) -> None:
    proofs.prove(ran(tmp_path / "a", tree), tree)
    proofs.prove(ran(tmp_path / "b", tree, architecture="sm_100", device="NVIDIA B200"), tree)
    found = read_proofs(tree / "torch_impl" / proofs.PROOFS)
    assert sorted((proof.operation, proof.architecture) for proof in found) == [
        ("gru", "sm_100"), ("gru", "sm_90"), ("mlstm", "sm_100"), ("mlstm", "sm_90"),
    ]  # fmt: skip


@pytest.mark.parametrize("stage", ["kernels", "large", "device"])
def test_a_stage_that_every_kernel_needs(stage, tree, tmp_path) -> None:
    proofs.prove(ran(tmp_path / "failed", tree, failed=(stage,)), tree)
    assert proven(tree) == {}
    proofs.prove(ran(tmp_path / "absent", tree, stages=[name for name in STAGES if name != stage]), tree)
    assert proven(tree) == {}


def test_laws_prove_the_operation_and_the_dtype_that_they_are_about(tree, tmp_path) -> None:
    broken = [*LAWS, law("gru", "permutation", "float32", "failed", "relation")]
    proofs.prove(ran(tmp_path / "run", tree, laws=broken), tree)
    assert proven(tree) == {"mlstm": ("float32", "bfloat16"), "gru": ("bfloat16",)}
    # fwbw runs on the mLSTM's kernels.
    broken = [*LAWS, law("fwbw", "gradient", "bfloat16", "failed")]
    proofs.prove(ran(tmp_path / "run", tree, laws=broken), tree)
    assert proven(tree) == {"mlstm": ("float32",), "gru": ("float32", "bfloat16")}
    # A law of the definition that nobody tried is no evidence, and neither are other laws.
    few = [law("gru", "permutation", "float32", "passed", "relation"), law("gru", "value", "float16", "not served")]
    proofs.prove(ran(tmp_path / "run", tree, laws=few), tree)
    assert proven(tree) == {}


def test_a_run_of_another_backend_proves_nothing(tree, tmp_path) -> None:
    for backend in ("torch", None):
        proofs.prove(ran(tmp_path / "run", tree, backend=backend), tree)
        assert proven(tree) == {}


def test_a_kernel_that_changes_loses_its_proof(tree, tmp_path) -> None:
    proofs.prove(ran(tmp_path / "run", tree), tree)
    kernel = tree / "torch_impl" / "_gru" / "triton" / "shared.py"
    text = kernel.read_text()
    kernel.write_text(f"# A comment.\n\n{text}")
    proofs.write(tree)
    assert "gru" in proven(tree)
    kernel.write_text(f"{text}\nSOMETHING = 1\n")
    proofs.write(tree)
    assert proven(tree) == {"mlstm": ("float32", "bfloat16")}
    # What the kernels of several operations share.
    kernel.write_text(text)
    template = tree / "torch_impl" / "_recurrent" / "triton" / "shared.py"
    template.write_text("x = 1\n")
    proofs.write(tree)
    assert proven(tree) == {"mlstm": ("float32", "bfloat16")}
    template.write_text("place = '_recurrent/triton'\n")
    # What all kernels share.
    (tree / "torch_impl" / "_triton" / "more.py").write_text("x = 1\n")
    proofs.write(tree)
    assert proven(tree) == {}


def test_code_is_told_from_what_is_said_of_it(tmp_path) -> None:
    def code(text):
        path = tmp_path / "code.py"
        path.write_text(text)
        return proofs._code(path)

    plain = code('def f(x):\n    return x + "y"\n')
    assert code('"""About it."""\n\ndef f(x):  # why\n\n    """More."""\n    return (\n        x + "y")\n') != plain
    assert code('"""About it."""\n\ndef f(x):  # why\n\n    """More."""\n    return x  +  "y"\n') == plain
    assert code('def f(x):\n    return x + "z"\n') != plain
    nested = "if a:\n    if b:\n        c()\n    d()\n"
    assert code(nested) != code("if a:\n    if b:\n        c()\n        d()\n")


def test_every_kernel_has_its_sources_named() -> None:
    torch_backends = pytest.importorskip("torch_impl._backends")
    assert set(proofs.JUDGED["torch_impl"].folders) == {row.operation for row in torch_backends.KERNELS}
    jax_backends = pytest.importorskip("jax_impl._backends")
    assert set(proofs.JUDGED["jax_impl"].folders) == {row.operation for row in jax_backends.KERNELS}
    for package, judged in proofs.JUDGED.items():
        for folder in (*chain.from_iterable(judged.folders.values()), judged.shared):
            assert [*(proofs.ROOT / package).glob(folder)], folder


def test_the_packages_say_what_the_committed_results_show() -> None:
    """If this fails after a change to a kernel, its proof is void: ``python -m benchmarks prove`` removes it."""
    for package, text in proofs.derived(proofs.ROOT).items():
        assert (proofs.ROOT / package / proofs.PROOFS).read_text() == text, package


def test_the_command(tree, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(proofs, "ROOT", tree)
    run = packed(tmp_path / "run.tgz", ran(tmp_path / "run", tree))
    done = CliRunner().invoke(main, ["prove", "--from", run])
    assert done.exit_code == 0, done.output
    assert "torch_impl, triton: mlstm (float32, bfloat16); gru (float32, bfloat16)" in done.output
    assert "jax_impl, pallas: nothing is proven" in done.output
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(main, ["prove", "--from", packed(tmp_path / "empty.tgz", tmp_path / "empty")])
    assert done.exit_code == 2 and "holds no run on a GPU" in done.output


def test_a_run_in_pieces_counts_as_it_ended_last(tree, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(proofs, "ROOT", tree)
    first = packed(tmp_path / "a.tgz", ran(tmp_path / "a", tree, failed=("device",)))
    again = packed(tmp_path / "b.tgz", ran(tmp_path / "b", tree, stages=("versions", "device")))
    assert "nothing is proven" in CliRunner().invoke(main, ["prove", "--from", first]).output.splitlines()[0]
    done = CliRunner().invoke(main, ["prove", "--from", first, "--from", again])
    assert "torch_impl, triton: mlstm (float32, bfloat16)" in done.output
    other = packed(tmp_path / "c.tgz", ran(tmp_path / "c", tree, device="NVIDIA B200"))
    done = CliRunner().invoke(main, ["prove", "--from", first, "--from", other])
    assert done.exit_code == 2 and "different machines" in done.output
