"""``python -m benchmarks peers``: judge the public implementations, confirm their faults, and draw the page."""

import json
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"


@click.command("peers")
@click.argument("names", nargs=-1)
@click.option("--missing", is_flag=True, help="Only peers without a result, to continue after an interruption.")
@click.option("--law", "laws", metavar="NAME", multiple=True, help="Only this law; results of others are kept.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=4.5, help="Time limit for a peer.")
@click.option("--examples", metavar="N", type=click.IntRange(min=1), default=3, help="Cases per law and dtype.")
@click.option(
    "--max-steps", metavar="S", type=click.IntRange(min=1), default=70, help="Length of the longest sequence."
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=float,
    default=60.0,
    help="Time limit for one case; a script may take 5 times that.",
)
@click.option("--confirm", "only_confirm", is_flag=True, help="Only run the scripts that confirm faults.")
@click.option("--draw", "only_draw", is_flag=True, help="Only write the page from the recorded results.")
@click.option("--json", "results", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default=PAGE)
def peers_command(
    names: tuple[str, ...],
    missing: bool,
    laws: tuple[str, ...],
    minutes: float,
    examples: int,
    max_steps: int,
    timeout: float,
    only_confirm: bool,
    only_draw: bool,
    results: Path,
    page: Path,
) -> None:
    """Judge public implementations: all, or those with one of NAMES in their name; other results are kept."""
    from benchmarks.judged import page as peers_page
    from benchmarks.judged import trial as judged_peers

    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    if found and found.get("format") != judged_peers.FORMAT:
        format = judged_peers.FORMAT
        raise click.UsageError(f"{results} is not a result of this version (format {format}); move it away")
    if (only_draw or only_confirm) and not found:
        raise click.UsageError(f"there is no {results}; leave out --draw and --confirm")
    try:
        peers = judged_peers.chosen(names)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if missing:
        whole = (entry for entry in found.get("peers", []) if "error" not in entry and not (entry["only"] and not laws))
        there = {entry["name"] for entry in whole}
        peers = [peer for peer in peers if peer.name not in there]
    effort = judged_peers.Effort(minutes=minutes, examples=examples, max_steps=max_steps, timeout=timeout, laws=laws)

    def keep(entry: dict | None = None, scripts: dict | None = None) -> None:
        nonlocal found
        found = judged_peers.document(found, entry, scripts or {})
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        peers_page.write(page, found)

    if only_draw:
        keep()
    elif not only_confirm:
        for peer in peers:
            entry = judged_peers.judged(peer, effort)
            summary = entry.get("summary", {})
            counts = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in summary.items() if number)
            click.echo(f"{peer.name}: {counts or entry['error'].strip().splitlines()[-1]} ({entry['minutes']:.1f} min)")
            before = next((each for each in found.get("peers", []) if each["name"] == peer.name), {})
            keep(judged_peers.merged(before, entry))
    if not only_draw:
        scripts = dict.fromkeys(each.script for peer in judged_peers.chosen(names) for each in peer.confirmed)
        there = found.get("confirmations", {})
        for script in (each for each in scripts if not ((missing or laws) and each in there)):
            confirmation = judged_peers.confirmed(script, 5 * timeout)
            click.echo(f"{script}: {confirmation['verdict']}")
            keep(scripts={script: confirmation})
    click.echo(f"{results}, {page}")
