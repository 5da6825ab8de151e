"""``python -m benchmarks aot``: the GPU resources of every Triton kernel, compiled on a machine without a GPU."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

RESULTS = Path(__file__).parents[1] / "results"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Entry:
    """The result of compiling a kernel. `plan` is 0 if it is launched without tuning.

    Attributes:
        target: the GPU, ``sm_90``.
        case, dtype: the call that launches it; launches that compile to the same code are listed under the first one.
        registers: registers per thread; ``spills`` are bytes per thread, ``shared`` is bytes per program.
        races: loops whose copies overwrite what a product may still read (`benchmarks.gpu.races`).
        fits: whether there is enough shared memory.
    """

    target: str
    kernel: str
    case: str
    dtype: str
    plan: int
    num_warps: int
    num_stages: int
    registers: int
    spills: int
    shared: int
    races: int
    fits: bool


@click.command("aot")
@click.option("--target", "targets", type=click.Choice(TARGETS), multiple=True, help="Only this GPU.")
@click.option("--dtype", "dtypes", type=click.Choice(tuple(DTYPES)), multiple=True, help="Only this dtype.")
@click.option("--all-plans/--default-plans", default=True, help="Include the plans that tuning may choose.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Number of parallel compilers.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS / "aot-triton.json"
)
def aot_command(targets: tuple[str, ...], dtypes: tuple[str, ...], all_plans: bool, jobs: int, json_path: Path) -> None:
    """Compile every kernel, at the shapes that it is designed for, and write the results as JSON and as a .md table.

    Exits with status 1 if a default plan spills or does not fit on an NVIDIA GPU, or any plan has a race.
    """
    from torch_impl._triton.interpreter import interpreted

    if interpreted():
        raise click.UsageError("TRITON_INTERPRET is set: kernels are interpreted in this process; unset it to compile")
    entries: list[Entry] = []
    for target in targets or TARGETS:
        for entry in compiled(target, dtypes or tuple(DTYPES), all_plans, jobs):
            entries.append(entry)
            if entry.spills or entry.races or not entry.fits:
                click.echo(
                    f"{target} {entry.kernel} {entry.case} {entry.dtype}, plan {entry.plan}: {_resources(entry)}"
                )
        click.echo(f"{target}: {sum(entry.target == target for entry in entries)} kernels")
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(
        json.dumps({"versions": versions(), "kernels": [asdict(entry) for entry in entries]}, indent=1)
    )
    json_path.with_suffix(".md").write_text(page(entries, versions()))
    click.echo(f"{json_path} and {json_path.with_suffix('.md').name}")
    if any(refused(entry) for entry in entries):
        raise SystemExit(1)


def compiled(target: str, dtypes: Iterable[str], all_plans: bool, jobs: int, **only: Any) -> Iterator[Entry]:
    """Compile the kernels of a target; ``only`` is passed to `benchmarks.gpu.aot_launches.cases`."""
    import torch

    from benchmarks.gpu.aot_compile import SHARED_MEMORY, compile_for
    from benchmarks.gpu.aot_launches import MOST_PLANS, cases

    chosen = tuple(getattr(torch, name) for name in dtypes)
    different: dict[str, tuple[Any, Any]] = {}
    for case in cases(target, chosen, MOST_PLANS if all_plans else 1, **only):
        for launched in case.launched:
            different.setdefault(launched.identity(), (case, launched))
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda job: compile_for(job[1], target), different.values())
        for (case, _), one in zip(different.values(), results, strict=True):
            fits = one.shared <= SHARED_MEMORY[target]
            yield Entry(target=target, case=case.name, dtype=case.dtype, plan=case.plan, fits=fits, **asdict(one))


def refused(entry: Entry) -> bool:
    """Whether a kernel breaks the requirement: no plan has a race, and default plans on NVIDIA GPUs neither spill nor
    exceed shared memory."""
    return entry.races > 0 or (
        entry.plan == 0 and entry.target.startswith("sm_") and (entry.spills > 0 or not entry.fits)
    )


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "triton")}


def _resources(entry: Entry) -> str:
    fits = "" if entry.fits else ", too much"
    races = f", {entry.races} races" if entry.races else ""
    return f"{entry.registers} registers, {entry.spills} bytes spilled, {entry.shared} bytes shared{fits}{races}"


def page(entries: list[Entry], versions: dict[str, str]) -> str:
    """The table in Markdown: for every target and kernel, the maximum over the default plans, and over the others."""
    lines = [
        "# Triton kernels, compiled ahead of time",
        "",
        f"Made by `python -m benchmarks aot` with {', '.join(f'{name} {text}' for name, text in versions.items())}.",
        "Nothing here ran on a GPU. Registers and bytes spilled a thread, bytes of shared memory a program: the most",
        "over all calls and dtypes; each kernel is listed in the JSON file next to this one. *Default* plans are",
        "those that are used unless `python -m benchmarks tune` chooses one of the *others*.",
    ]
    for target in dict.fromkeys(entry.target for entry in entries):
        mine = [entry for entry in entries if entry.target == target]
        lines += ["", f"## {target}", "", f"| kernel | {_HEAD.format('default')} | {_HEAD.format('other')} |"]
        lines += ["|---" * 9 + "|"]
        for kernel in dict.fromkeys(entry.kernel for entry in mine):
            plans = [[e for e in mine if e.kernel == kernel and (e.plan == 0) == at_hand] for at_hand in (True, False)]
            lines.append(f"| {kernel} | " + " | ".join(_most(some) for some in plans) + " |")
        spoilt = [entry for entry in mine if entry.spills or entry.races or not entry.fits]
        if spoilt:
            lines += ["", f"Of {len(mine)} kernels {len(spoilt)} spill, race or do not fit:", ""]
            lines += [f"- {_plan(e)} {e.kernel}, {e.case} {e.dtype}: {_resources(e)}" for e in spoilt]
        else:
            lines += ["", f"None of {len(mine)} kernels spills or has a race, and all fit."]
    return "\n".join(lines) + "\n"


_HEAD = "{0} plans | registers | spilled | shared"


def _plan(entry: Entry) -> str:
    return f"other plan {entry.plan}" if entry.plan else "default plan"


def _most(entries: list[Entry]) -> str:
    """The number of kernels, and the maximum of each resource."""
    if not entries:
        return "0 | | |"
    registers, spills, shared = (max(getattr(e, name) for e in entries) for name in ("registers", "spills", "shared"))
    fits = all(entry.fits for entry in entries)
    words = (len(entries), registers, f"**{spills}**" if spills else 0, shared if fits else f"**{shared}**")
    return " | ".join(map(str, words))
