"""Calls of a PyTorch target by several processes, each of which has one part of every array.

Arrays are DTensors that are sharded over batch and heads, or plain tensors with the steps of the process.

The processes belong to one that imports the target and copies itself. They are started by the first call, and end when
the process that started them does.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance.base.call import Call
from conformance.base.exceptions import UsageError, name_of, text_of
from conformance.base.result_form import WrongResultError
from conformance.frameworks._shards import ranges, step_axis
from conformance.frameworks.implementation import OVER_STEPS, Implementation, NotShardedError, Results
from conformance.operations import OPERATIONS

VARIABLE = "GATESPEC_TORCH_PROCESSES"
"""The environment variable with the number of processes: 2 shard the batch, 4 batch and heads."""
COUNTS = ("2", "4")
LIMIT = 300.0
"""Seconds in which the processes must answer, the first time including the import of the target."""
BATCH, HEADS = "batch", "heads"
KEYWORD = "sequence_group"
"""The keyword of a function that takes a process's steps of every sequence, and the group of the processes."""


def why_none(device: str) -> str | None:
    """The reason why no call can be made with DTensors; None if one can."""
    if device != "cpu" or not sys.platform.startswith("linux"):
        return "DTensors are tried on a CPU, by processes of Linux"
    if not torch.distributed.is_available():
        return "this PyTorch has no torch.distributed"
    if (count := os.environ.get(VARIABLE)) is None:
        return f"one process of PyTorch has one part of a DTensor; {VARIABLE}=4 starts several"
    if count not in COUNTS:
        raise UsageError(f"{VARIABLE} is {count!r}; expected {' or '.join(COUNTS)}")
    return None


class Parts:
    """The processes of a target.

    Args:
        target: the name, framework and device by which it can be loaded.
    """

    def __init__(self, target: tuple[str, str, str]):
        self._connection, theirs = Pipe()
        self._folder = tempfile.TemporaryDirectory()
        given = (target, os.environ[VARIABLE], str(Path(self._folder.name) / "store"), theirs.fileno())
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", __name__, pickle.dumps(given).hex()]
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            # If one ends, all others say that it did.
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self._end = weakref.finalize(self, _end, process, self._connection, self._folder)

    @property
    def alive(self) -> bool:
        """Whether they can be asked; not after a call that ended them."""
        return self._end.alive

    def results(self, kind: str, call: Call) -> tuple[Results, Results]:
        """Outputs and gradients of a call with sharded arrays, as whole arrays.

        Args:
            kind: ``sharding`` or ``sharding over steps``, as in `Implementation.transformed`.

        Raises:
            NotShardedError: the call raises.
            WrongResultError: a result has another form, or the processes return different values of an array that all
                of them have.
            RuntimeError: the processes end or do not answer.
        """
        try:
            self._connection.send((kind, call))
            if not self._connection.poll(LIMIT):
                raise EOFError
            found = self._connection.recv()
        except (EOFError, OSError) as error:
            self._end()
            raise RuntimeError(f"{call.operation}, {kind}: the processes ended or hung") from error
        for _, _, raised in found:
            if raised is not None:
                text, of_form = raised
                raise WrongResultError(call.operation, text) if of_form else NotShardedError(text)
        if kind != OVER_STEPS:
            outputs, gradients, _ = found[-1]
            return outputs, gradients
        outputs, gradients, _ = zip(*found, strict=True)
        return _together(call.operation, "", outputs), _together(call.operation, "the gradient of ", gradients)


def _end(process: subprocess.Popen, connection: Connection, folder: tempfile.TemporaryDirectory) -> None:
    connection.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        # The processes wait for each other: they are a process group of their own.
        os.killpg(process.pid, 9)
        process.wait()
    folder.cleanup()


def serve(target: tuple[str, str, str], count: str, store: str, requests: int) -> None:
    """The main function of the processes: answer calls until the connection is closed."""
    # These imports are slow, and done once for all processes.
    import torch.distributed.device_mesh
    import torch.distributed.tensor

    from conformance.frameworks.targets import load

    implementation, world = load(*target), int(count)
    # A child leaves the loop; the first process forks all others.
    rank = next((rank for rank in range(1, world) if os.fork() == 0), 0)
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=LIMIT)
    )
    connection = Connection(requests) if rank == 0 else None
    while True:
        given: list[Any] = [_received(connection)]
        torch.distributed.broadcast_object_list(given, src=0)
        if given[0] is None:
            break
        found: list[Any] | None = [None] * world if rank == 0 else None
        torch.distributed.gather_object(_answer(implementation, *given[0]), found, dst=0)
        if connection is not None and found is not None:
            connection.send(found)
    torch.distributed.destroy_process_group()
    os._exit(0)


def _received(connection: Connection | None) -> Any:
    try:
        return None if connection is None else connection.recv()
    except EOFError:
        return None


def _answer(implementation: Implementation, kind: str, call: Call) -> tuple[Results, Results, tuple[str, bool] | None]:
    """Outputs and gradients; if the call raises, the message and whether it is about the form of a result."""
    try:
        if kind == OVER_STEPS:
            function = _with_own_steps(implementation.functions[call.operation])
            outputs, gradients = implementation.with_functions({call.operation: function}).vjp(call)
            return outputs, gradients, None
        placed = _Placed(call)
        natives, dnatives = (
            {name: placed(name, implementation.native(x)) for name, x in each.items()}
            for each in (call.arrays, call.cotangents)
        )
        results = implementation._differentiated(call, natives, dnatives)
        outputs, gradients = ({name: _whole(x) for name, x in each.items() if x is not None} for each in results)
        return implementation._neutrals(outputs), implementation._neutrals(gradients), None
    except WrongResultError as error:
        return {}, {}, (str(error), True)
    except Exception as error:
        return {}, {}, (f"{name_of(error)}: {text_of(error)}", False)


def _whole(x: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x


def _with_own_steps(function: Any) -> Any:
    """The function of whole sequences that is called with this process's steps, and is 0 at all others."""

    def of_whole(*sequences: torch.Tensor, cu_seqlens: torch.Tensor | None = None, **options: Any) -> Any:
        axis = step_axis(cu_seqlens)
        steps, group = sequences[0].shape[axis], torch.distributed.group.WORLD
        own = ranges(sequences[0].shape, axis, torch.distributed.get_world_size())[torch.distributed.get_rank()]
        if cu_seqlens is not None:
            options["cu_seqlens"] = cu_seqlens
        shards = (x.narrow(axis, own.start, own.stop - own.start) for x in sequences)
        found = function(*shards, **options, **{KEYWORD: group})
        h, *states = found if isinstance(found, tuple) else (found,)
        _agree(h.shape[axis] == own.stop - own.start)
        before, after = (h.new_zeros((*h.shape[:axis], n, *h.shape[axis + 1 :])) for n in (own.start, steps - own.stop))
        placed = torch.cat([before, h, after], axis)
        return (placed, *states) if states else placed

    return of_whole


def _agree(right: bool) -> None:
    """Raise in every process if one has a result of another length: the others would wait for it in the gradient."""
    all_right = torch.tensor(int(right))
    torch.distributed.all_reduce(all_right, torch.distributed.ReduceOp.MIN)
    if not all_right:
        raise WrongResultError("", "a process returned another number of steps than it was given")


def _together(operation: str, of: str, found: tuple[Results, ...]) -> Results:
    """Arrays with steps from the steps of each process; all other arrays are the same in every process."""
    record, results = OPERATIONS[operation], {}
    for name, x in found[0].items():
        values = [each[name].values for each in found]
        if record.stepped(name):
            x = replace(x, values=np.sum(values, axis=0))
        elif not all(np.array_equal(values[0], each, equal_nan=True) for each in values):
            raise WrongResultError(operation, f"{of}{name} is not the same in all processes")
        results[name] = x
    return results


class _Placed:
    """Places the floating-point arrays of a call on a mesh of two processes, or of two by two.

    Dense arrays are sharded over the batch where it is not 1. All are sharded over heads if the mesh's axis divides
    every number of heads but 1; what has one head then is replicated.
    """

    def __init__(self, call: Call):
        from torch.distributed.device_mesh import init_device_mesh

        record, packed = OPERATIONS[call.operation], "cu_seqlens" in call.arrays
        self._axes = {letter: record.axes(letter, packed) for letter in "BN"}
        # Arrays of steps alone have no leading axis.
        self._least = {each.name: len(each.shape.split()) for each in (*record.arguments, *record.outputs)}
        count = torch.distributed.get_world_size() // 2
        self._mesh = init_device_mesh("cpu", (2, count), mesh_dim_names=(BATCH, HEADS))
        found = ((self._axis(name, "N", x.values.ndim), x.values.shape) for name, x in call.arrays.items())
        heads = {shape[axis] for axis, shape in found if axis is not None}
        self._kinds = ("" if packed else "B", "N" if all(n == 1 or n % count == 0 for n in heads) else "")

    def __call__(self, name: str, x: torch.Tensor) -> Any:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        if not x.is_floating_point():
            return x
        axes = (self._axis(name, kind, x.ndim) if kind else None for kind in self._kinds)
        places = [Replicate() if axis is None or x.shape[axis] == 1 else Shard(axis) for axis in axes]
        return distribute_tensor(x, self._mesh, places)

    def _axis(self, name: str, kind: str, rank: int) -> int | None:
        """The axis of the batch, ``"B"``, which is the first of several leading ones, or of the heads, ``"N"``."""
        axis = self._axes[kind].get(name)
        return None if kind == "B" and rank < self._least.get(name, 0) else axis


if __name__ == "__main__":
    told = pickle.loads(bytes.fromhex(sys.argv.pop()))
    serve(*told)
