"""The command line: ``python -m conformance run TARGET …``, ``laws``, and the commands that other rooms bring."""

import importlib
import random
import time
from pathlib import Path

import click
from rich.console import Console

from conformance.dtypes import FLOATING
from conformance.implementation import UsageError
from conformance.report import TargetReport, exit_status
from conformance.runner import EXAMPLES, MAX_STEPS, Settings, agenda, run, selected
from conformance.targets import FRAMEWORKS, load

# Command → the module and the attribute that hold it; read when it is asked for, for each has imports of its own.
_ELSEWHERE = {
    "mutants": ("conformance.mutants.command", "mutants_command"),
    "vectors": ("conformance.vectors.command", "vectors_command"),
    "calibrate": ("conformance.calibration.command", "calibrate_command"),
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
@click.option("--examples", metavar="N", type=click.IntRange(min=1), default=EXAMPLES, help="Cases per law and dtype.")
@click.option("--max-steps", metavar="S", type=click.IntRange(min=1), default=MAX_STEPS, help="The longest sequence.")
@click.option("--seed", type=_Seed(), default=0, help="From which all cases are drawn; `random` for a new one.")
@click.option("--strict", is_flag=True, help="A law that cannot be tried counts as broken.")
@click.option("--json", "json_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Report.")
@click.option("--html", "html_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Report.")
@click.option("--junit", "junit_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Report.")
def run_command(
    targets: tuple[str, ...],
    ops: tuple[str, ...],
    laws: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str,
    kernel_backend: str | None,
    framework: str | None,
    examples: int,
    max_steps: int,
    seed: int,
    strict: bool,
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
    settings = Settings(ops, laws, dtypes, examples, max_steps, seed, kernel_backend, strict)
    try:
        selected(settings)
        implementations = [load(target, framework, device) for target in targets]
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    paths = {"json": json_path, "html": html_path, "junit": junit_path}
    for option, path in paths.items():
        _make_room(option, path)

    console = Console()
    reports = []
    for implementation in implementations:
        start = time.monotonic()
        total = len(agenda(implementation, settings))
        results = terminal.with_progress(console, implementation.name, total, run(implementation, settings))
        report = TargetReport(
            implementation.name,
            implementation.framework,
            implementation.device,
            {**_own_version(), **implementation.versions()},
            settings,
            results,
            time.monotonic() - start,
        )
        terminal.show(console, report)
        reports.append(report)
    _write(reports, paths)
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
        show_laws(Console(), selected(Settings(ops=ops)))
    except UsageError as error:
        raise click.UsageError(str(error)) from error


def _make_room(option: str, path: Path | None) -> None:
    """Refuse a report that could not be written before anything has run."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise click.UsageError(f"--{option} {path} cannot be written ({error.strerror}); give another path") from error


def _write(reports: list[TargetReport], paths: dict[str, Path | None]) -> None:
    for option, path in paths.items():
        if path is not None:
            writer = importlib.import_module(f"conformance.report.{option}")
            path.write_text(writer.render(reports), encoding="utf-8")


def _own_version() -> dict[str, str]:
    import importlib.metadata
    import platform

    try:
        own = importlib.metadata.version("gatespec")
    except importlib.metadata.PackageNotFoundError:
        own = "source"
    return {"gatespec": own, "python": platform.python_version()}
