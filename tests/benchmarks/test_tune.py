"""``python -m benchmarks tune``, as far as a machine without a GPU can show it."""

import importlib
import pkgutil

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import tune
from benchmarks.speed.cases import parse


def test_it_asks_for_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which would be measured")
    done = CliRunner().invoke(tune.tune_command, [])
    assert done.exit_code == 2 and "PyTorch sees no CUDA device here" in done.output
    assert CliRunner().invoke(tune.tune_command, ["--shapes", "mlstm:1x2"]).exit_code == 2


def test_what_was_measured_is_said_in_lines() -> None:
    entry = {"plan": "L=64 BK=32", "milliseconds": {"L=64 BK=64": 2.0, "L=64 BK=32": 1.5}}
    (line,) = tune.lines({"some GPU | triton 3.6.0 | mlstm_forward | bfloat16": entry})
    assert line.endswith("mlstm_forward | bfloat16: L=64 BK=32 (1.500 ms, the plan at hand 2.000 ms)")


@pytest.mark.parametrize(
    "shape",
    ["mlstm:1x5x1x4x4:float32:both", "mlstm_step:2x1x4x4", "gru:1x3x2x4:float32:both", "gru:1x3x2x4:float32:forward"],
)
def test_every_case_runs_on_its_kernels(shape, monkeypatch) -> None:
    """Triton's interpreter would need its own process; here it is the launches that are counted, none carried out."""
    pytest.importorskip("triton")
    import torch_impl
    from torch_impl._mlstm.triton import launch as mlstm
    from torch_impl._recurrent.triton import launch as recurrent
    from torch_impl._triton import interpreter

    # Before anything is patched: a kernel's module asks once, when it is imported, whether it will be interpreted.
    for module in pkgutil.walk_packages(torch_impl.__path__, "torch_impl."):
        importlib.import_module(module.name)
    launched = []
    for module in (recurrent, mlstm):
        monkeypatch.setattr(module, "launch", lambda kernel, *args, **constants: launched.append(kernel))
    monkeypatch.setattr(interpreter, "_INSTALLED", True)
    # Not the variable: Triton would read it, and define kernels for its interpreter that other tests then find.
    monkeypatch.setattr(interpreter, "interpreted", lambda: True)
    (case,) = parse(shape)
    tune.run(case, torch.device("cpu"))
    passes = {"mlstm": 5 + 7, "mlstm_step": 1, "gru": 1 + 3}
    assert len(launched) == (1 if case.op == "gru" and case.direction == "forward" else passes[case.op])
