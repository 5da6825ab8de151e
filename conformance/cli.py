"""The command line: ``gatespec run TARGET …``, ``laws``, and the commands of other packages."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from conformance import __version__
from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import SuiteFailedError, TargetFailedError, UsageError
from conformance.base.files import expect_separate, expect_writable
from conformance.base.options import LONGEST_SECONDS, OFFERED, Kind, time_limit
from conformance.base.streams import wrapped
from conformance.failures import save
from conformance.judge.workers import Workers


class _Commands(click.Group):
    """Finds the command of another package, and says what to type if one is unknown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "vectors"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "vectors":
            return super().get_command(ctx, cmd_name)
        try:
            # Its modules are imported only where it is used.
            from conformance.vectors.command import vectors_command
        except ModuleNotFoundError as error:
            raise click.UsageError(f"`{cmd_name}` needs {error.name}, which is not installed here", ctx) from error
        return vectors_command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args and args[0] not in self.list_commands(ctx):
            raise click.UsageError(
                f"there is no command {args[0]!r}; to judge a target type: gatespec run {args[0]}",
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
            self.fail(f"{value!r} is not an integer; give an integer, or `random`", param, ctx)


class _Seconds(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


_COMPLETION = """\b
Completion, as a line of ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish:
  eval "$(_GATESPEC_COMPLETE=bash_source gatespec)"
  eval "$(_GATESPEC_COMPLETE=zsh_source gatespec)"
  _GATESPEC_COMPLETE=fish_source gatespec | source
"""


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_COMPLETION)
@click.version_option(__version__, prog_name="gatespec")
def main() -> None:
    """The laws of gatespec's operations, and the suite that tries to break them."""


_FILE = click.Path(dir_okay=False, path_type=Path)
_TYPES: dict[Kind, Any] = {
    "text": str,
    "dtype": click.Choice(FLOATING),
    "count": click.IntRange(min=1),
    "seed": _Seed(),
    "seconds": _Seconds(min=0, min_open=True, max=LONGEST_SECONDS),
    "file": _FILE,
    "directory": click.Path(file_okay=False, path_type=Path),
}


def _offered(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `OFFERED`."""
    for option in reversed(OFFERED):
        if option.kind == "flag":
            settings: dict[str, Any] = {"is_flag": True}
        else:
            types = {**_TYPES, "choice": click.Choice(option.choices)}
            settings = {"type": types[option.kind], "multiple": option.several, "metavar": option.metavar}
        if option.default is not None:
            settings["default"] = option.default
        also = " `random` chooses one." if option.kind == "seed" else ""
        command = click.option(f"--{option.name}", option.field, help=option.help + also, **settings)(command)
    return command


def _removed(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError("promises are gone: let the target raise NotImplementedError for such calls", context)


_OUTPUTS = ("json", "html")
"""The options that name a file to write."""


@main.command("run", context_settings={"show_default": True})
@click.argument("targets", metavar="TARGET...", nargs=-1)
@_offered
@click.option("--promise", "--promises", "--suggest-promises", hidden=True, expose_value=False, callback=_removed)
@click.option("--json", metavar="PATH", type=_FILE, help="Write a report to this file.")
@click.option("--verbose", is_flag=True, help="Show every law, every reason and the branches of gradients.")
@click.option("--html", metavar="PATH", type=_FILE, help="Write a report to this file.")
def run_command(targets: tuple[str, ...], verbose: bool, **given: Any) -> None:
    """Judge implementations.

    TARGET is an importable module, a .py file, an attribute of either (module:attribute, kernel.py:attribute), or an
    installed entry point of the group gatespec.implementations.

    Exit status: 0 all laws held, 1 a law was broken, or a call exited, aborted or did not return, 2 the command
    was wrong, a target cannot be imported, no law was judged at all, or the output could not be written, 3 the suite
    itself failed, 130 interrupted.
    """
    if not targets:
        raise click.UsageError("name a target to judge, for example: gatespec run torch_impl")
    outputs = {name: given.pop(name.replace("-", "_")) for name in _OUTPUTS}
    # The worker of the first target imports it while this process imports the modules for reports and options.
    limit = time_limit(given["timeout"], quick=given["quick"], sizes=given["sizes"] is not None)
    first = Workers(targets[0], given["framework"], given["device"], limit, save, given["spec"])
    try:
        status = _run(first, targets, outputs, given, verbose)
    except UsageError as error:
        raise click.UsageError(wrapped(str(error))) from error
    finally:
        first.stop()
    raise SystemExit(status)


def _run(
    first: Workers, targets: tuple[str, ...], outputs: dict[str, Path | None], given: dict[str, Any], verbose: bool
) -> int:
    from functools import partial

    from conformance.command import run
    from conformance.judge.selection import options_of
    from conformance.report import SUITE_FAILED, exit_status
    from conformance.report import console as terminal

    options = options_of(**given)
    expect_separate({**outputs, "known-failures": given["known_failures"]})
    for option, path in outputs.items():
        if path is not None:
            expect_writable(option, path)
    assert options.failures is not None
    run.make_directory(options.failures)
    console = Console()
    reports, unusable, suite_failed, interrupted = [], [], False, False
    for number, (target, own) in enumerate(zip(targets, run.in_own_places(targets, options), strict=True)):
        workers = first if number == 0 else Workers(target, own.framework, own.device, own.timeout, save, own.spec)
        try:
            info = workers.info()
            if info.guessed:
                said = f"judging {target} as {info.framework} (guessed from its imports; --framework overrides it)"
                click.echo(wrapped(said))
            judged = run.judge(workers, info, own, partial(terminal.with_progress, console))
        except TargetFailedError as error:
            click.echo(f"Error: {wrapped(str(error))}", err=True)
            unusable.append(target)
            continue
        except SuiteFailedError as error:
            click.echo(f"Error: {error}\nThis says nothing about {target}; please report it.", err=True)
            suite_failed = True
            continue
        except KeyboardInterrupt:
            interrupted = True
            break
        finally:
            workers.stop()
        reports.append(judged.report)
        terminal.show(console, judged.report, verbose=verbose)
        interrupted = judged.interrupted
        if interrupted:
            break
    unwritten = False
    try:
        run.write_reports(reports, outputs)
    except UsageError as error:
        click.echo(f"Error: {wrapped(str(error))}", err=True)
        unwritten = True
    if interrupted:
        at = targets[max(len(reports) - 1, 0)]
        click.echo(wrapped(f"Interrupted while judging {at}; the results so far are shown and written."), err=True)
        return 130
    if unusable:
        return 2
    status = exit_status(reports)
    if suite_failed and status != 1:
        return SUITE_FAILED
    if unwritten and status == 0:
        return 2
    if status == 2:
        idle = ", ".join(report.target for report in reports if not report.ran)
        said = f"Error: no law was judged on {idle}; leave out --op, --law or --dtype, or see the reasons above."
        click.echo(wrapped(said), err=True)
    return status


@main.command("laws")
@click.option("--op", "ops", metavar="NAME", multiple=True, help="Only laws about this operation.")
@click.option("--spec", metavar="PATH", type=_FILE, help="File that states recurrences of your own.")
def laws_command(ops: tuple[str, ...], spec: Path | None) -> None:
    """List the laws, each with its sentence and its equation."""
    from conformance.judge.selection import options_of, selected
    from conformance.report.console import show_laws

    try:
        show_laws(Console(), selected(options_of(ops=ops, spec=spec)))
    except UsageError as error:
        raise click.UsageError(str(error)) from error
