"""Peak memory on a CPU: of a process that makes one call and nothing else, beyond one that makes none.

``python -m benchmarks.memory CASE CONTENDER PEERS [idle]`` prints the process's high-water mark in bytes.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.measure import Bench, Entry

TIMEOUT = 600


def high_water_mark() -> int:
    """This process's largest resident set, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def of_process(case: Case, entry: Entry, peers: tuple[str, ...]) -> int:
    """Bytes that a call holds at its most, its inputs not counted.

    Raises:
        RuntimeError: the process failed; the text is the end of what it said.
    """

    def run(*extra: str) -> int:
        words = [json.dumps(asdict(case)), entry.contender.name, json.dumps(entry.choice), json.dumps(peers), *extra]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", *words], capture_output=True, text=True, timeout=TIMEOUT
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-500:])
        return int(done.stdout.split()[-1])

    return max(0, run() - run("idle"))


def main(words: list[str]) -> None:
    from benchmarks.contenders import contenders

    case, name, choice, peers = Case(**json.loads(words[0])), words[1], json.loads(words[2]), json.loads(words[3])
    (contender,) = [each for each in contenders(case.op, tuple(peers)) if each.name == name]
    driver = Bench("cpu", tuple(peers)).driver(contender.framework, case.dtype)
    arrays = case.arrays()
    if contender.head_first and case.op == "mlstm":
        arrays = {name: x.swapaxes(1, 2) for name, x in arrays.items()}
    natives = driver.natives(arrays)
    function = contender.load(case, choice)
    if "idle" not in words[4:]:
        (driver.forward if case.direction == "forward" else driver.both)(function, natives)()
    print(high_water_mark())


if __name__ == "__main__":
    main(sys.argv[1:])
