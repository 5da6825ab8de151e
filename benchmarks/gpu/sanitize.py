"""One tiny call of a kernel under a tool of compute-sanitizer: ``python -m benchmarks.gpu.sanitize TOOL CALL``."""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.sanitize")
    parser.add_argument("tool", choices=("memcheck", "racecheck", "initcheck"))
    parser.add_argument("call", help="a name of benchmarks.gpu.calls")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    found = check(options.tool, options.call)
    print(f"{options.tool} {options.call}: {found}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"tool": options.tool, "call": options.call, "found": found}))
    return int(found != "0 errors")


def check(tool: str, call: str) -> str:
    """The tool's own summary of a call in bfloat16, ``0 errors``; or why there is none."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "compute-sanitizer is not on the PATH"
    # PyTorch's caching allocator would hide accesses outside an array.
    command = [program, f"--tool={tool}", "--print-limit=20", sys.executable, "-m", "benchmarks.gpu.calls", call]
    options = ["--device", "cuda", "--tiny", "--dtype", "bfloat16"]
    done = subprocess.run(
        ["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", *command, *options], capture_output=True, text=True
    )
    print(done.stdout[-20000:] + done.stderr[-5000:], flush=True)
    # racecheck counts hazards.
    counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (error|hazard)s?", done.stdout)
    if not counts:
        return f"no summary (status {done.returncode})"
    return f"{counts[-1][0]} errors"


if __name__ == "__main__":
    sys.exit(main())
