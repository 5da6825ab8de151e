"""``python -m benchmarks``."""

from benchmarks.command import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
