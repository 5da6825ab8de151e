"""The output of a run: a JSON file with the results, the machine and the versions."""

import json
import math
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.speed.goals import judged
from benchmarks.speed.measure import Entry, Measurement

FORMAT = 1


def machine(device: str, versions: dict[str, str]) -> dict[str, Any]:
    return {
        "device": versions.get("gpu", _processor()) if device == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def rows(measurement: Measurement) -> list[dict[str, Any]]:
    """One row per contender; a contender without a time gives the reason."""
    case = measurement.case
    shared = {
        "case": case.id,
        **asdict(case),
        "flop": case.flop,
        "bytes": case.bytes,
        "flop_per_second": measurement.flop_rate,
        "bytes_per_second": measurement.byte_rate,
        "floor_seconds": measurement.floor,
    }
    return [{**shared, **_entry(entry)} for entry in measurement.entries]


def _entry(entry: Entry) -> dict[str, Any]:
    found, timing, contender = entry.conformity, entry.timing, entry.contender
    differs = contender.differs
    return {
        "contender": contender.name,
        "framework": contender.framework,
        "own": contender.own,
        "reason": entry.reason,
        "differs": None if differs is None else {"how": differs[0], "in": list(differs[1])},
        "restriction": None if contender.restriction is None else contender.restriction.text,
        "conformity": None if found is None else _finite(asdict(found)),
        "setting": entry.choice,
        "seconds": None if timing is None else timing.median,
        "spread": None if timing is None else timing.spread,
        "rounds": None if timing is None else list(timing.rounds),
        "times_ours": None if entry.ratio is None else dict(zip(("ratio", "low", "high"), entry.ratio, strict=True)),
        "fraction_of_floor": entry.fraction,
        "first_call_seconds": entry.first_call,
        "peak_bytes": entry.peak_bytes,
    }


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """Replace infinities and NaNs, which JSON does not have, by words."""
    return {key: str(x) if isinstance(x, float) and not math.isfinite(x) else x for key, x in found.items()}


def document(
    device: str,
    versions: dict[str, str],
    measurements: list[Measurement],
    calls: list[dict[str, Any]] | None = None,
    suite: str | None = None,
) -> dict[str, Any]:
    """The output of a run: the machine, one row per contender and case, and fixed costs and goals if there are any."""
    found: dict[str, Any] = {
        "format": FORMAT,
        "suite": suite,
        "machine": machine(device, versions),
        "peak_bytes_are": {
            "jax": "temporaries and results, as XLA planned them",
            "others": "allocated on the device"
            if device == "cuda"
            else "resident in a process of its own during the call, beyond what it held before",
        },
        "rows": [row for measurement in measurements for row in rows(measurement)],
    }
    if calls is not None:
        found["calls"] = calls
    goals = judged(found)
    return {**found, "goals": goals} if goals else found


def merged(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A run of some cases in place of the same cases of an earlier one; cases that this did not have follow its own.

    Raises:
        ValueError: the two are of different machines, versions or suites.
    """
    old, new = before["machine"], found["machine"]
    # A part of a suite may use fewer packages than the whole.
    if before["suite"] != found["suite"] or {**new, "versions": old["versions"] | new["versions"]} != old:
        raise ValueError(f"a run of {before['suite']} on {old} cannot be updated by one of {found['suite']} on {new}")
    measured = {row["case"] for row in found["rows"]}
    kept = [row for row in before["rows"] if row["case"] not in measured]
    updated = {**before, **found, "machine": old, "rows": [*kept, *found["rows"]]}
    return {**updated, "goals": judged(updated)}


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Read a file that `write` made.

    Raises:
        ValueError: the file is not such a file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or "rows" not in document:
        raise ValueError(f"{path} is not a result of python -m benchmarks run (format {FORMAT})")
    return document
