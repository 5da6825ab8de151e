"""Choose among the plans that a Triton kernel offers on this GPU; `torch_impl._triton.tuning` stores the choice."""

import json
import os
from pathlib import Path
from typing import Any, cast

import click

from benchmarks.speed.cases import parse
from benchmarks.speed.operations import STATES, Case, grouped


@click.command("tune")
@click.option("--shapes", metavar="SHAPES", multiple=True, default=("gpu",), help="As in `python -m benchmarks run`.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write a copy of the measurements."
)
def tune_command(shapes: tuple[str, ...], json_path: Path | None) -> None:
    """Measure every plan once at these shapes; later calls, in any process, use the fastest."""
    import torch

    from torch_impl._triton import tuning

    try:
        cases = [case for text in shapes for case in parse(text)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not torch.cuda.is_available():
        raise click.UsageError(
            "PyTorch sees no CUDA device here; plans must be measured on the GPU for which they are used"
        )
    os.environ["GATESPEC_AUTOTUNE"] = "1"
    for case in cases:
        run(case, torch.device("cuda"))
    measured = json.loads(tuning.cache_file().read_text()) if tuning.cache_file().exists() else {}
    for line in lines(measured):
        click.echo(line)
    click.echo(f"kept in {tuning.cache_file()}; remove it to measure again")
    if json_path is not None:
        json_path.write_text(json.dumps(measured, indent=1))


def run(case: Case, device: Any) -> None:
    """Run a forward pass of the case on its Triton kernels and, if it has one, a backward pass."""
    import torch

    from torch_impl import MLSTMState, gru, mlstm, mlstm_step

    dtype = getattr(torch, case.dtype)
    arrays = {
        name: torch.from_numpy(x).to(device, torch.float32 if name in STATES else dtype)
        for name, x in case.arrays().items()
    }
    for x in arrays.values():
        x.requires_grad_(case.direction == "both")
    if case.op == "gru":
        x, _, (W, Wf, Wr) = grouped(arrays)
        outputs = gru(x, W, x, Wf, x, Wr, kernel_backend="triton")[0]
    else:
        q, k, v, i, f = (arrays[name] for name in "qkvif")
        if case.op == "mlstm_step":
            state = MLSTMState(*(arrays[name] for name in MLSTMState._fields))
            outputs = mlstm_step(q, k, v, i, f, state, kernel_backend="triton")[0]
        else:
            outputs = cast(torch.Tensor, mlstm(q, k, v, i, f, kernel_backend="triton"))
    if case.direction == "both":
        outputs.backward(torch.ones_like(outputs))


def lines(measured: dict[str, Any]) -> list[str]:
    """The plan chosen for each key, and how much faster it is than the default plan."""
    found = []
    for key, entry in measured.items():
        times = entry["milliseconds"]
        first = next(iter(times.values()))
        found.append(f"{key}: {entry['plan']} ({times[entry['plan']]:.3f} ms, the plan at hand {first:.3f} ms)")
    return found
