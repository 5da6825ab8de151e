"""The command: ``python -m examples.language_model train|resume|sample``."""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from examples.language_model import baselines, report, sampling, settings, training
from examples.language_model.checkpoints import CheckpointError
from examples.language_model.corpus import CorpusError
from examples.language_model.kinds import ParametersError
from examples.language_model.layout import Layout
from examples.language_model.metrics import MetricsError
from examples.language_model.settings import Settings, SettingsError
from examples.language_model.trainer import ProcessError
from examples.xlstm.sampling import Sampling

REFUSALS = (
    SettingsError,
    CorpusError,
    CheckpointError,
    ParametersError,
    MetricsError,
    ProcessError,
    OSError,
    MemoryError,
)


@click.group()
def main() -> None:
    """Train a byte-level language model of mLSTM, sLSTM or GRU blocks, in PyTorch or in JAX."""


def with_settings(command: Callable) -> Callable:
    """An option for every setting."""
    for of in reversed(dataclasses.fields(Settings)):
        law = of.metadata["law"]
        words = f"{of.metadata['help']} ({law.words})" if law is not None else of.metadata["help"]
        option = click.option(
            f"--{of.name.replace('_', '-')}",
            type=settings.kind_of(of),
            default=of.default,
            show_default=of.default is not None,
            help=f"{words}.",
        )
        command = option(command)
    return command


def with_layout(command: Callable) -> Callable:
    """The options that say how a run is laid out over devices."""
    options = (
        click.option(
            "--sequence-parallel",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Devices that share the tokens of each row.",
        ),
        click.option(
            "--shard-parameters", is_flag=True, help="Each device holds a part of the parameters, and not all."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=Layout.timeout,
            show_default=True,
            help="Seconds after which a process that waits for another one ends with an error.",
        ),
    )
    for option in reversed(options):
        command = option(command)

    @functools.wraps(command)
    def with_one(sequence_parallel: int, shard_parameters: bool, timeout: float, **others: Any) -> None:
        layout = Layout(sequence_parallel=sequence_parallel, shard_parameters=shard_parameters, timeout=timeout)
        command(layout=layout, **others)

    return with_one


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--sampled", type=click.IntRange(min=0), default=400, show_default=True, help="Bytes of each sample.")
@with_layout
@with_settings
def train(run: Path, sampled: int, layout: Layout, **fields: Any) -> None:
    """Train a model in the new directory RUN.

    Under ``torchrun`` each process takes a part of the rows; in JAX each device does. With ``--sequence-parallel P``,
    groups of P do, and each takes a part of the tokens of its group's rows.
    """
    try:
        _report(run, training.start(run, Settings(**fields), layout), sampled)
    except REFUSALS as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--sampled", type=click.IntRange(min=0), default=400, show_default=True, help="Bytes of each sample.")
@with_layout
def resume(run: Path, sampled: int, layout: Layout) -> None:
    """Continue the run in RUN from its newest undamaged checkpoint."""
    try:
        _report(run, training.resume(run, _say, layout), sampled)
    except REFUSALS as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--framework", type=click.Choice(["torch", "jax"]), help="Framework that decodes; default: the one that trained."
)
@click.option("--prompt", default="", help="Beginning of the document.")
@click.option("--length", type=click.IntRange(min=0), default=500, show_default=True, help="Maximum number of bytes.")
@click.option(
    "--temperature",
    default=sampling.DEFAULT.temperature,
    show_default=True,
    help="Temperature of the draws; 0 takes the likeliest byte.",
)
@click.option("--top-p", default=sampling.DEFAULT.top_p, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def sample(
    run: Path, framework: str | None, prompt: str, length: int, temperature: float, top_p: float, seed: int
) -> None:
    """Write text with the newest undamaged checkpoint of RUN, in either framework."""
    out = sys.stdout.buffer
    # An argument that is not UTF-8 is bytes too.
    start = os.fsencode(prompt)
    try:
        how = Sampling(temperature=temperature, top_p=top_p)
        decode = sampling.load(run, framework, _say)
        out.write(start)
        for byte in sampling.sample(decode, start, length, how, seed=seed):
            out.write(byte)
            out.flush()
        out.write(b"\n")
    except (*REFUSALS, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _report(run: Path, finished: training.Finished, sampled: int) -> None:
    if finished.is_main:
        found = baselines.measure(finished.corpus.training, finished.validation)
        for line in report.write(run, finished, found, sampled):
            click.echo(line)


def _say(line: str) -> None:
    # Of the processes that torchrun has started, one speaks.
    if os.environ.get("RANK", "0") == "0":
        click.echo(line, err=True)


if __name__ == "__main__":
    main()
