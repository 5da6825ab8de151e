"""``python -m benchmarks``."""

import sys

from benchmarks.allocator import keep_freed_memory
from benchmarks.command import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        keep_freed_memory()
    main(prog_name="python -m benchmarks")
