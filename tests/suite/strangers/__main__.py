"""The command ``python -m tests.suite.strangers``: of how many faulty strangers the first cause is the true one."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.suite.strangers.catalogue import FAULTY, RIGHT
from tests.suite.strangers.measure import Found, all_found, document

NEEDED = 17 / 20
"""The share of faulty strangers whose first cause has to be the true one."""


@click.command("strangers", context_settings={"show_default": True})
@click.option("--stranger", "names", metavar="NAME", multiple=True, help="Only this one.")
@click.option("--seed", metavar="N", type=int, default=0, help="From which all cases are drawn.")
@click.option(
    "--json", "json_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Write a report."
)
def strangers_command(names: tuple[str, ...], seed: int, json_path: Path | None) -> None:
    """Judge implementations that know nothing of this project, and print what the suite says of each.

    Exit status: 0 no right one was refused and the first cause was true of 17 in 20 faulty ones, 1 not so, 2 the call
    was wrong.
    """
    known = {**RIGHT, **FAULTY}
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no stranger {name!r}; name one of {', '.join(known)}")
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    console, found = Console(), []
    for each in all_found(names or list(known), seed):
        found.append(each)
        seconds = f"{each.laws_seconds:.1f} + {each.causes_seconds:.1f} s"
        said = "right" if each.right else "wrong"
        click.echo(f"{len(found)} of {len(names or known)}: {each.name}, {said}, {seconds}", err=True)
    _show(console, found)
    if json_path is not None:
        json_path.write_text(f"{json.dumps(document(found, seed), indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    raise SystemExit(0 if _enough(found) else 1)


def _enough(found: Sequence[Found]) -> bool:
    faulty = [each for each in found if each.stranger.causes]
    accepted = all(each.right for each in found if not each.stranger.causes)
    return accepted and sum(each.right for each in faulty) >= NEEDED * len(faulty)


def _show(console: Console, found: Sequence[Found]) -> None:
    table = Table(caption="seconds: computed in trying the laws, and in looking for causes")
    for column in ("stranger", "true", "failed", "first cause", "seconds"):
        table.add_column(column, justify="right" if column in ("failed", "seconds") else "left", overflow="fold")
    for each in found:
        table.add_row(
            escape(each.name),
            "yes" if each.right else "[red]no[/red]",
            str(len(each.broken)),
            escape(each.causes[0]) if each.causes else "",
            f"{each.laws_seconds:.1f} + {each.causes_seconds:.1f}",
        )
    console.print(table)
    faulty = [each for each in found if each.stranger.causes]
    right = [each for each in found if not each.stranger.causes]
    console.print(
        f"[bold]the first cause is the true one of {sum(each.right for each in faulty)} of {len(faulty)} faulty "
        f"strangers[/bold]; {sum(each.right for each in right)} of {len(right)} right ones accepted",
        highlight=False,
    )


if __name__ == "__main__":
    strangers_command()
