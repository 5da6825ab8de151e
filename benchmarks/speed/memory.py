"""Peak memory on a CPU: the additional memory that a process holds while it makes a single call.

``python -m benchmarks.speed.memory CASE CONTENDER PEERS`` prints it in bytes. A small call of the same kind comes
first, so that a framework's one-time setup is not counted.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.speed.conforming import smaller
from benchmarks.speed.measure import Bench, Entry
from benchmarks.speed.operations import Case
from benchmarks.speed.timing import Run, give_back_memory

TIMEOUT = 120


def resident(field: str) -> int:
    """Bytes that this process holds (``VmRSS``), or its maximum so far (``VmHWM``); Linux only."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_high_water_mark() -> None:
    """Return free memory to the system, and reset ``VmHWM`` to what the process then holds."""
    give_back_memory()
    Path("/proc/self/clear_refs").write_text("5")


def of_process(case: Case, entry: Entry, peers: tuple[str, ...]) -> int:
    """Peak number of bytes that a call holds, not counting its inputs.

    Raises:
        RuntimeError: the process failed or took too long; the text is the end of its output.
    """
    words = [json.dumps(asdict(case)), entry.contender.name, json.dumps(entry.choice), json.dumps(peers)]
    command = [sys.executable, "-m", "benchmarks.speed.memory", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"it took more than {TIMEOUT} seconds") from error
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    return int(done.stdout.split()[-1])


def main(words: list[str]) -> None:
    from benchmarks.speed.rows.all_rows import contenders

    case, name, choice, peers = Case(**json.loads(words[0])), words[1], json.loads(words[2]), json.loads(words[3])
    (contender,) = [each for each in contenders(case.op, tuple(peers)) if each.name == name]
    driver = Bench("cpu", tuple(peers)).driver(contender.framework, case.dtype)

    def call(case: Case) -> Run:
        function, natives = contender.load(case, choice), driver.natives(contender.transposed(case.arrays()))
        return (driver.forward if case.direction == "forward" else driver.both)(function, natives)

    call(smaller(case))()
    run = call(case)
    forget_high_water_mark()
    before = resident("VmRSS")
    run()
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1:])
