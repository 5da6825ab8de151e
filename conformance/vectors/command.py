"""``gatespec vectors``: writes a set of test vectors, and judges another program's answers to it."""

from pathlib import Path

import click
from rich.console import Console

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import UsageError
from conformance.base.files import write
from conformance.base.streams import wrapped
from conformance.cases import LONG_STEPS
from conformance.operations import OPERATIONS
from conformance.vectors import _check, _export, _manifest

_OPERATION = click.Choice(tuple(OPERATIONS))
_DTYPE = click.Choice(FLOATING)
_FOLDER = click.Path(path_type=Path)


class _Commands(click.Group):
    """Says what to type if the command is unknown."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args and args[0] not in self.commands:
            raise click.UsageError(f"there is no command {args[0]!r}; type {' or '.join(self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


@click.group("vectors", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def vectors_command() -> None:
    """Test vectors for programs in any language."""


@vectors_command.command("export", context_settings={"show_default": True})
@click.argument("folder", metavar="DIR", type=_FOLDER, required=False)
@click.option("--op", "ops", metavar="NAME", type=_OPERATION, multiple=True, help="Only this operation.")
@click.option("--dtype", "dtypes", metavar="NAME", type=_DTYPE, multiple=True, help="Only this dtype of values.")
@click.option(
    "--cases",
    metavar="N",
    type=click.IntRange(min=1),
    help="Cases per operation and dtype.  [default: one of each kind]",
)
@click.option("--seed", metavar="N", type=int, default=0, help="Seed of all values.")
@click.option(
    "--max-steps", metavar="S", type=click.IntRange(min=1), default=LONG_STEPS, help="Length of the longest sequence."
)
@click.option("--force", is_flag=True, help="Replace the set in DIR.")
def export_command(
    folder: Path | None,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    cases: int | None,
    seed: int,
    max_steps: int,
    force: bool,
) -> None:
    """Write a set of test vectors to DIR.

    A manifest.json, and for each case a safetensors file with arguments, cotangents, expected outputs and gradients,
    and what each element may be off by. docs/test-vectors.md describes the format.
    """
    if folder is None:
        raise click.UsageError("name a folder to write to, for example: gatespec vectors export vectors")
    operations = tuple(operation for operation in OPERATIONS if not ops or operation in ops)
    chosen = tuple(dtype for dtype in FLOATING if not dtypes or dtype in dtypes)
    try:
        written = _export.export(folder, operations, chosen, cases=cases, seed=seed, max_steps=max_steps, force=force)
    except UsageError as error:
        raise click.UsageError(wrapped(str(error))) from error
    click.echo(f"{written['cases']} cases, {written['bytes'] / 1e6:.1f} MB, in {folder} (seed {seed})")


@vectors_command.command("check")
@click.argument("folder", metavar="DIR", type=_FOLDER, required=False)
@click.argument("answers", metavar="OUTPUTS", type=_FOLDER, required=False)
@click.option("--op", "ops", metavar="NAME", type=_OPERATION, multiple=True, help="Only this operation.")
@click.option("--dtype", "dtypes", metavar="NAME", type=_DTYPE, multiple=True, help="Only this dtype of values.")
@click.option(
    "--only-given", is_flag=True, help="Judge only the arrays in OUTPUTS; otherwise a missing array counts as wrong."
)
@click.option(
    "--json", "json_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Write a report."
)
def check_command(
    folder: Path | None,
    answers: Path | None,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    only_given: bool,
    json_path: Path | None,
) -> None:
    """Judge the answers of another program to the set in DIR.

    OUTPUTS holds files with the names of DIR's, each with the arrays output/NAME and gradient/NAME.

    Exit status: 0 all held, 1 something is wrong or missing, 2 the command was wrong or there is nothing to judge.
    """
    if folder is None or answers is None:
        raise click.UsageError(
            "name the folder of a set and the folder with the other program's answers, "
            "for example: gatespec vectors check vectors answers"
        )
    try:
        vectors = _manifest.read(folder)
        entries = tuple(
            entry
            for entry in vectors.entries
            if (not ops or entry.operation in ops) and (not dtypes or entry.dtype in dtypes)
        )
        if not entries:
            raise UsageError(f"{folder} holds no case of that operation and dtype; leave out --op or --dtype")
        judgement = _check.check(vectors, entries, answers, only_given=only_given)
        if json_path is not None:
            write("json", json_path, _check.as_json(judgement))
    except UsageError as error:
        raise click.UsageError(wrapped(str(error))) from error
    _check.show(Console(), judgement)
    raise SystemExit(0 if judgement.held else 1)
