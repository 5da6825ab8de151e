"""``python -m benchmarks``."""

import sys

from benchmarks.command import main
from benchmarks.speed.timing import keep_freed_memory

if __name__ == "__main__":
    if sys.argv[1:2] in (["run"], ["busy"]):
        keep_freed_memory()
    main(prog_name="python -m benchmarks")
