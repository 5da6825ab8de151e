"""Several processes of JAX on this machine, each with CPU devices of its own, as a launcher starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def started(*command: object, devices: int) -> list[subprocess.Popen[str]]:
    """Two processes of Python with these arguments, the variables of torchrun, and so many devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    launched["XLA_FLAGS"] = " ".join([*others, f"--xla_force_host_platform_device_count={devices}"])
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            env={**os.environ, **launched, "OMP_NUM_THREADS": "1", "RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]


def finished(processes: list[subprocess.Popen[str]], timeout: float) -> list[tuple[str, str]]:
    """The outputs of processes that all succeed within so many seconds; afterwards none of them runs."""
    try:
        printed = [each.communicate(timeout=timeout) for each in processes]
    finally:
        for each in processes:
            each.kill()
    assert [each.returncode for each in processes] == [0, 0], printed
    return printed
