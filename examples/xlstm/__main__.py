"""``python -m examples.xlstm``: generate text, export, inspect and make checkpoints, and measure memory."""

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import click

from examples.xlstm.checkpoint import Checkpoint, load_flax, load_torch, new_layout, open_checkpoint, write_checkpoint
from examples.xlstm.config import ConfigError, XLSTMConfig
from examples.xlstm.draw import RandomTensors
from examples.xlstm.generate import Timing, generate
from examples.xlstm.interrupt import stopping
from examples.xlstm.parameters import from_flax, from_torch
from examples.xlstm.sampling import Sampling
from examples.xlstm.session import Engine, identify, new_session, resume_session
from examples.xlstm.tensors import CheckpointError
from examples.xlstm.text import text_of

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_FRAMEWORK = click.Choice(["torch", "jax"])


@click.group(context_settings={"max_content_width": 120})
def main() -> None:
    """Published xLSTM checkpoints on the operations of gatespec, in PyTorch or JAX."""


@main.command("generate")
@click.argument("directory", type=_DIRECTORY)
@click.option("--framework", type=_FRAMEWORK, default="torch", show_default=True)
@click.option("--prompt", default="", help="Text, or token ids if the checkpoint has no tokenizer.")
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the prompt, in UTF-8.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Maximum number of tokens to generate.",
)
@click.option(
    "--temperature", default=1.0, show_default=True, help="Temperature of the draws; 0 takes the most likely token."
)
@click.option(
    "--top-p", default=1.0, show_default=True, help="Draw from the smallest set of tokens with this probability."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the draws; a resumed text continues with its own random state.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens of the prompt per chunk.",
)
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the state to this file at the end."
)
@click.option(
    "--resume",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Continue from a file that --save wrote.",
)
@click.option("--eager", is_flag=True, help="PyTorch: do not compile the step.")
@click.option("--device", default="cpu", show_default=True, help="Device for PyTorch; JAX uses its default device.")
@click.option("--ignore-field", multiple=True, metavar="NAME", help="Unknown field of config.json to ignore.")
def generate_command(
    directory: Path,
    framework: str,
    prompt: str,
    prompt_file: Path | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    chunk: int,
    save: Path | None,
    resume: Path | None,
    eager: bool,
    device: str,
    ignore_field: tuple[str, ...],
) -> None:
    """Generate text and print it as it is drawn; at the end, print the timing to standard error.

    Ctrl-C ends the text after the current token; its state is then saved as at the end.
    """
    if save is not None and not save.absolute().parent.is_dir():
        raise ValueError(f"--save is {str(save)!r}, and its directory is not there")
    checkpoint = open_checkpoint(directory, frozenset(ignore_field))
    sampling = Sampling(temperature=temperature, top_p=top_p)
    model_id = identify(checkpoint)
    text = text_of(directory, checkpoint.config.vocab_size)
    tokens = text.encode(_argument(prompt) if prompt_file is None else _read_text(prompt_file))
    engine = _engine(checkpoint, framework, chunk, eager, device)
    session = new_session(engine, model_id, seed) if resume is None else resume_session(engine, model_id, resume)
    timing = Timing()
    drawn = generate(session, tokens, sampling, max_tokens, timing)
    # During the prompt Ctrl-C ends the program: there is nothing to save yet.
    begun = list(itertools.islice(drawn, 1))
    with stopping() as stopped:
        for token in itertools.chain(begun, drawn):
            print(text.decode(token), end="", flush=True)
            if stopped():
                break
    print(text.end())
    if save is not None:
        session.save(save)
    print(timing, file=sys.stderr)


def _argument(prompt: str) -> str:
    try:
        return os.fsencode(prompt).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt: not UTF-8: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error}") from None


def _engine(checkpoint: Checkpoint, framework: str, chunk: int, eager: bool, device: str) -> Engine:
    if framework == "torch":
        import torch

        from examples.xlstm.torch_engine import TorchEngine

        try:
            model = load_torch(checkpoint).to(device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"--device is {device!r}: {str(error).partition(chr(10))[0]}") from None
        return TorchEngine(model, chunk=chunk, compiler=None if eager else torch.compile)
    from examples.xlstm.flax_engine import FlaxEngine

    return FlaxEngine(checkpoint.config, load_flax(checkpoint), chunk=chunk)


@main.command()
@click.argument("directory", type=_DIRECTORY)
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--framework", type=_FRAMEWORK, default="torch", show_default=True)
@click.option("--ignore-field", multiple=True, metavar="NAME", help="Unknown field of config.json to ignore.")
def export(directory: Path, target: Path, framework: str, ignore_field: tuple[str, ...]) -> None:
    """Load a checkpoint into a model and write the model as a checkpoint: the same files, byte for byte."""
    checkpoint = open_checkpoint(directory, frozenset(ignore_field))
    arrays = from_torch(load_torch(checkpoint)) if framework == "torch" else from_flax(load_flax(checkpoint))
    write_checkpoint(target, checkpoint.layout, arrays)
    print(f"{target}: {_summary(open_checkpoint(target, frozenset(ignore_field)))}")


@main.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--ignore-field", multiple=True, metavar="NAME", help="Unknown field of config.json to ignore.")
def inspect(directory: Path, ignore_field: tuple[str, ...]) -> None:
    """Check a checkpoint without reading its tensors, and list its contents."""
    checkpoint = open_checkpoint(directory, frozenset(ignore_field))
    print(f"{directory}: {_summary(checkpoint)}")
    for name, value in vars(checkpoint.config).items():
        print(f"  {name} = {value}")


def _summary(checkpoint: Checkpoint) -> str:
    entries = checkpoint.layout.entries
    size = sum(entry.end - entry.start for entry in entries.values())
    files = len(checkpoint.layout.headers)
    return f"{len(entries)} tensors, {size:,} bytes, in {files} file{'s' * (files != 1)}"


@main.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--vocab-size", default=256, show_default=True)
@click.option("--hidden-size", default=256, show_default=True)
@click.option("--num-blocks", default=4, show_default=True)
@click.option("--num-heads", default=4, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option("--max-shard-bytes", default=5_000_000_000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def new(target: Path, max_shard_bytes: int, seed: int, **sizes: Any) -> None:
    """Write a checkpoint with random parameters, tensor by tensor."""
    config = XLSTMConfig(**sizes, bos_token_id=0, eos_token_id=None, pad_token_id=None)
    write_checkpoint(target, new_layout(config, max_shard_bytes), RandomTensors(config, seed))
    print(f"{target}: {_summary(open_checkpoint(target))}")


@main.command()
@click.argument("what", type=click.Choice(["load", "length"]))
@click.option("--framework", type=_FRAMEWORK, multiple=True, default=["torch", "jax"], show_default=True)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="length: number of tokens to generate.",
)
@click.option("--eager", is_flag=True, help="PyTorch: do not compile the step.")
def measure(what: str, framework: tuple[str, ...], tokens: int, eager: bool) -> None:
    """Measure memory in child processes: for loading a checkpoint of 1 GB, or as a function of the length of a text."""
    from examples.xlstm.measure import measure_length, measure_load

    for each in framework:
        found = measure_load(each, eager) if what == "load" else measure_length(each, tokens, eager)
        print(found, flush=True)


def run() -> None:
    """Run the command; for an invalid file or argument, print one line and exit with status 1."""
    try:
        main(prog_name="python -m examples.xlstm")
    except (CheckpointError, ConfigError, ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    run()
