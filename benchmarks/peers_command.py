"""``python -m benchmarks peers``: judge the public implementations, confirm their faults, and draw the page."""

import json
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"


@click.command("peers")
@click.argument("names", nargs=-1)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=30.0, help="The most that a peer gets.")
@click.option("--examples", metavar="N", type=click.IntRange(min=1), help="Cases per law and dtype.")
@click.option("--max-steps", metavar="S", type=click.IntRange(min=1), help="The longest sequence.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Processes of the suite.")
@click.option("--draw", "only_draw", is_flag=True, help="Judge nothing: draw the page from what was found.")
@click.option("--json", "results", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default=PAGE)
def peers_command(
    names: tuple[str, ...],
    minutes: float,
    examples: int | None,
    max_steps: int | None,
    jobs: int | None,
    only_draw: bool,
    results: Path,
    page: Path,
) -> None:
    """Judge public implementations: all, or those with one of NAMES in their name; other results are kept."""
    from benchmarks import judged_peers, peers_page

    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    if found and found.get("format") != judged_peers.FORMAT:
        raise click.UsageError(f"{results} is no result of this version (format {judged_peers.FORMAT}); move it away")
    if only_draw and not found:
        raise click.UsageError(f"there is no {results} to draw; leave out --draw")
    try:
        peers = [] if only_draw else judged_peers.chosen(names)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = [
        word
        for option, value in (("--examples", examples), ("--max-steps", max_steps), ("--jobs", jobs))
        if value is not None
        for word in (option, str(value))
    ]
    scripts: dict[str, dict] = {}
    for peer in peers:
        for script in peer.confirmed:
            if script not in scripts:
                scripts[script] = judged_peers.confirmed(script)
                click.echo(f"{script}: {scripts[script]['verdict']}")
        entry = judged_peers.judged(peer, minutes, options)
        summary = entry.get("summary", {})
        counts = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in summary.items() if number)
        click.echo(f"{peer.name}: {counts or entry['error'].strip().splitlines()[-1]} ({entry['minutes']:.1f} min)")
        found = judged_peers.document(found, peer, entry, scripts)
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    peers_page.write(page, found)
    click.echo(f"{results}, {page}")
