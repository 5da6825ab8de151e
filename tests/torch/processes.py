"""Runs a function on every rank of a group of gloo processes."""

import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def on_ranks(function: Callable[[int], Any], ranks: int, folder: Path) -> list[Any]:
    """The results of ``function(rank)``, each from a process of its own, through files in a folder."""
    torch.multiprocessing.spawn(_on_rank, args=(function, ranks, free_port(), folder), nprocs=ranks)
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(ranks)]


def _on_rank(rank: int, function: Callable[[int], Any], ranks: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    address, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=120)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=limit)
    torch.save(function(rank), folder / str(rank))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Without the end of the interpreter: a process was once aborted for a C++ thread that was destroyed while it ran.
    sys.stdout.flush()
    os._exit(0)
