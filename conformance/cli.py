"""The command line: ``python -m conformance run TARGET …``, ``laws``, and the commands that other rooms bring."""

import importlib
import random
import time
from pathlib import Path

import click
from rich.console import Console

from conformance import judging
from conformance.dtypes import FLOATING
from conformance.implementation import UsageError
from conformance.judging import INTERPRETED_EXAMPLES, INTERPRETED_STEPS, QUICK_EXAMPLES
from conformance.options import EXAMPLES, MAX_STEPS, RunOptions
from conformance.report import exit_status
from conformance.selection import selected
from conformance.targets import FRAMEWORKS, load

# Command → the module and the attribute that hold it; read when it is asked for, for each has imports of its own.
_ELSEWHERE = {
    "vectors": ("conformance.vectors.command", "vectors_command"),
}


class _Commands(click.Group):
    """Finds commands in other rooms, and says what to type where one is missing or unknown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, attribute = _ELSEWHERE[cmd_name]
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise click.UsageError(f"`{cmd_name}` needs {error.name}, which is not installed here", ctx) from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args and args[0] not in self.list_commands(ctx):
            raise click.UsageError(
                f"there is no command {args[0]!r}; to judge a target type: python -m conformance run {args[0]}",
                ctx,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
                rows.append((name, command.get_short_help_str(80) if command is not None else ""))
            except click.UsageError as error:
                rows.append((name, f"({error.message})"))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Seed(click.ParamType):
    name = "N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "random":
            return random.SystemRandom().randrange(2**32)
        try:
            return int(str(value))
        except ValueError:
            self.fail(f"{value!r} is no whole number; give one, or the word random", param, ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The laws of gatespec's operations, and the suite that tries to break them."""


_FILE = click.Path(dir_okay=False, path_type=Path)


@main.command("run", context_settings={"show_default": True})
@click.argument("targets", metavar="TARGET...", nargs=-1)
@click.option("--op", "ops", metavar="NAME", multiple=True, help="Only laws about this operation.")
@click.option("--law", "laws", metavar="NAME", multiple=True, help="Only this law: `gradient` or `mlstm.gradient`.")
@click.option("--dtype", "dtypes", type=click.Choice(FLOATING), multiple=True, help="Only this dtype of values.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", help="Where arrays live.")
@click.option("--kernel-backend", metavar="NAME", help="Handed to every operation that takes one.")
@click.option(
    "--framework", type=click.Choice(FRAMEWORKS), help="What the functions take; else seen from their imports."
)
@click.option("--quick", is_flag=True, help="Values and gradients alone, in float32, on short sequences.")
@click.option(
    "--examples",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Cases per law and dtype.  [default: {EXAMPLES}; {QUICK_EXAMPLES} with --quick, "
    f"{INTERPRETED_EXAMPLES} under a kernel interpreter]",
)
@click.option(
    "--max-steps",
    metavar="S",
    type=click.IntRange(min=1),
    help=f"The longest sequence.  [default: {MAX_STEPS}; {INTERPRETED_STEPS} under a kernel interpreter]",
)
@click.option("--seed", type=_Seed(), default=0, help="From which all cases are drawn; `random` for a new one.")
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Processes for a target.  [default: 2 on a CPU of two cores or more, else 1]",
)
@click.option("--strict", is_flag=True, help="What cannot be tried, and a known failure that passes, fails too.")
@click.option(
    "--contract",
    is_flag=True,
    help="What gatespec has decided, where others may decide otherwise, has to be kept too.",
)
@click.option("--known", metavar="PATH", type=_FILE, help="Known failures: reported, but no reason to exit with 1.")
@click.option("--write-known", metavar="PATH", type=_FILE, help="Write the failures there, for you to say why.")
@click.option(
    "--failures",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reports/failures"),
    help="Where a script for each failure is saved.",
)
@click.option("--json", "json_path", metavar="PATH", type=_FILE, help="Report.")
@click.option("--html", "html_path", metavar="PATH", type=_FILE, help="Report.")
@click.option("--junit", "junit_path", metavar="PATH", type=_FILE, help="Report.")
def run_command(
    targets: tuple[str, ...],
    ops: tuple[str, ...],
    laws: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str,
    kernel_backend: str | None,
    framework: str | None,
    quick: bool,
    examples: int | None,
    max_steps: int | None,
    seed: int,
    jobs: int | None,
    strict: bool,
    contract: bool,
    known: Path | None,
    write_known: Path | None,
    failures: Path,
    json_path: Path | None,
    html_path: Path | None,
    junit_path: Path | None,
) -> None:
    """Judge implementations.

    TARGET is an importable module, module:attribute, a .py file, or an installed entry point of the group
    gatespec.implementations.

    Exit status: 0 all laws held, 1 a law was broken, 2 the call was wrong or no law ran at all.
    """
    from conformance.report import console as terminal

    if not targets:
        raise click.UsageError("name what is to be judged, for example: python -m conformance run torch_impl")
    paths = {"json": json_path, "html": html_path, "junit": junit_path}
    try:
        settings = judging.settings_of(
            judging.Names(ops, laws, dtypes),
            examples=examples,
            max_steps=max_steps,
            seed=seed,
            kernel_backend=kernel_backend,
            device=device,
            strict=strict,
            contract=contract,
            quick=quick,
            known=known,
            failures=failures,
        )
        for option, path in {**paths, "write-known": write_known}.items():
            judging.make_room(option, path)
        judging.make_directory(failures)
        if write_known is not None and write_known.exists() and write_known != known:
            raise UsageError(
                f"{write_known} exists; add --known {write_known} to keep its entries, or give another path"
            )
        implementations = [load(target, framework, device) for target in targets]
    except UsageError as error:
        raise click.UsageError(str(error)) from error

    console = Console()
    reports = []
    for implementation, own in judging.in_own_places(implementations, settings):
        start = time.monotonic()
        total, coming = judging.results_of(implementation, own, framework, jobs)
        try:
            results = terminal.with_progress(console, implementation.name, total, coming)
        except KeyboardInterrupt:
            click.echo(f"Interrupted while judging {implementation.name}; nothing was written.", err=True)
            raise SystemExit(130) from None
        report = judging.report_of(implementation, own, results, start, framework)
        terminal.show(console, report)
        reports.append(report)
    judging.write_reports(reports, paths)
    if write_known is not None:
        new = judging.write_known(write_known, reports, settings.known)
        click.echo(f"{write_known}: {new} new entries; write the reason of each before it is read with --known.")
    status = exit_status(reports)
    if status == 2:
        idle = ", ".join(report.target for report in reports if not report.ran)
        click.echo(
            f"Error: no law ran on {idle}; take away --op, --law or --dtype, or see the reasons above.", err=True
        )
    raise SystemExit(status)


@main.command("laws")
@click.option("--op", "ops", metavar="NAME", multiple=True, help="Only laws about this operation.")
def laws_command(ops: tuple[str, ...]) -> None:
    """List the laws, each with its sentence and its equation."""
    from conformance.report.console import show_laws

    try:
        show_laws(Console(), selected(RunOptions(ops=ops)))
    except UsageError as error:
        raise click.UsageError(str(error)) from error
