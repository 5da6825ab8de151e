"""The language model over several devices, with sharded rows, tokens and parameters: losses are those of one device.

PyTorch runs in four gloo processes, of which at last one is killed and one stops; JAX on eight devices of one process.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from safetensors.numpy import load_file

from examples.language_model import settings, training
from examples.language_model.kinds import kind_of
from examples.language_model.layout import Layout
from examples.language_model.packing import Rows
from examples.language_model.settings import Settings, SettingsError
from examples.language_model.trainer import make_trainer
from tests.examples.language_model_tools import ROOT, losses, small, small_text
from tests.torch.processes import free_port
from tests.torch.test_data_parallel import Messages

if TYPE_CHECKING:
    from examples.language_model.jax_training import JaxTrainer

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_text(tmp_path_factory.mktemp("language_model") / "text")


def wanted_of(text: Path, **others: object) -> Settings:
    """Four steps of four rows."""
    fields = {"steps": 4, "warmup_steps": 1, "checkpoint_every": 2, "validate_every": 4, "minibatches": 2}
    return small(text, **(fields | others), row_tokens=32, rows=4, validation_rows=3)


def interrupted(run: Path, new: Path) -> Path:
    """A copy of a run as if it had been killed after step 2."""
    shutil.copytree(run, new)
    shutil.rmtree(new / "checkpoints" / "step-00000004")
    return new


def assert_same(run: Path, whole: Path) -> None:
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)


FOUR_RANKS = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from examples.language_model import settings, torch_training, training
from examples.language_model.layout import Layout
from examples.language_model.trainer import ProcessError

first_port, folder = int(sys.argv[1]), Path(sys.argv[2])
wanted = settings.read(folder / "wanted.json")


def group(number, ranks):
    os.environ |= {"MASTER_PORT": str(first_port + number), "WORLD_SIZE": str(ranks)}


def meet(rank, victim, signal_, layout):
    # The victim gets a signal in the middle of its second step, between the forward and the backward pass.
    of_loss, calls = torch_training.TorchTrainer._loss, []

    def loss(self, *arguments):
        value = of_loss(self, *arguments)
        calls.append(1)
        if rank == victim and len(calls) == 3:  # of two minibatches each
            (folder / f"{signal_.name} sent").write_text(str(time.time()))
            os.kill(os.getpid(), signal_)
        return value

    torch_training.TorchTrainer._loss = loss
    try:
        training.start(folder / signal_.name, wanted, layout)
    except ProcessError as error:
        found = {"said": str(error), "at": time.time()}
        (folder / f"{signal_.name} rank {rank}").write_text(json.dumps(found))
    torch_training.TorchTrainer._loss = of_loss


def work(rank):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    group(0, 4)
    training.start(folder / "sharded", wanted, Layout(sequence_parallel=2, shard_parameters=True))
    group(1, 4)
    training.resume(folder / "of one", lambda line: None, Layout(sequence_parallel=4))
    group(2, 4)
    meet(rank, 3, signal.SIGKILL, Layout(sequence_parallel=2, timeout=60))
    if rank < 2:
        group(3, 2)
        meet(rank, 1, signal.SIGSTOP, Layout(shard_parameters=True, timeout=3))


# Forked, so that PyTorch is imported once. Rank 1 stops, so that it does not end.
ranks = []
for rank in range(4):
    ranks.append(os.fork())
    if not ranks[-1]:
        work(rank)
        os._exit(0)
statuses = [os.waitpid(ranks[rank], 0)[1] for rank in (0, 2, 3)]
os.kill(ranks[1], signal.SIGKILL)
assert statuses == [0, 0, signal.SIGKILL], statuses
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_four_processes_train_as_one_and_none_waits_for_a_lost_one(text: Path, tmp_path: Path) -> None:
    one, wanted = tmp_path / "one", wanted_of(text, input_dropout=0.2)
    whole = training.start(one, wanted)
    settings.write(wanted, tmp_path / "wanted.json")
    interrupted(one, tmp_path / "of one")
    command = [sys.executable, "-c", FOUR_RANKS, str(free_port()), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name in ("sharded", "of one"):
        assert_same(tmp_path / name, one)
    # The checkpoint of four processes with a quarter of the parameters each serves one process.
    resumed = training.resume(interrupted(tmp_path / "sharded", tmp_path / "resumed"), lambda line: None)
    assert_same(tmp_path / "resumed", one)
    assert resumed.bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-5)
    for name, others, timeout in (("SIGKILL", range(3), 60), ("SIGSTOP", range(1), 3)):
        sent = float((tmp_path / f"{name} sent").read_text())
        for rank in others:
            found = json.loads((tmp_path / f"{name} rank {rank}").read_text())
            said = f"has stopped, or did not answer within `--timeout`, {timeout} s, in step 2: "
            assert said in found["said"] and found["at"] - sent < timeout + 5


@pytest.mark.parametrize(
    ("layout", "fields", "said"),
    [
        ({"sequence_parallel": 3}, {}, "`--sequence-parallel` is 3; expected a divisor of 4, the devices"),
        (
            {"sequence_parallel": 4},
            {"row_tokens": 66},
            "`row_tokens` is 66; expected a multiple of `--sequence-parallel`, 4",
        ),
        (
            {"sequence_parallel": 2},
            {"blocks": "mlstm,slstm"},
            "and `blocks` is mlstm,slstm: a step of slstm needs the state",
        ),
        (
            {"sequence_parallel": 2},
            {"blocks": "gru"},
            "`blocks` is gru: a step of gru needs the state after the step before",
        ),
        (
            {"sequence_parallel": 2},
            {"rows": 3},
            "`rows` is 3; expected a multiple of 2, for 2 devices with 1 minibatches",
        ),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_by_name(layout: dict, fields: dict, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Layout(**layout).check(Settings(**fields), 4)
    assert said in str(refused.value)


@pytest.mark.long
def test_eight_devices_of_jax_train_as_one(text: Path, tmp_path: Path) -> None:
    """A row's tokens are on two devices, and parameters on all; the rows and losses are those of PyTorch."""
    jax = pytest.importorskip("jax")
    whole = training.start(tmp_path / "torch", wanted_of(text, input_dropout=0.2))
    wanted, run = wanted_of(text, input_dropout=0.2, framework="jax", minibatches=1), tmp_path / "jax"
    layout = Layout(sequence_parallel=2, shard_parameters=True)
    found = training.start(run, wanted, layout)
    assert_same(run, tmp_path / "torch")
    assert found.bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-5)
    # What eight devices have written, other parts of them read.
    sharded, replicated = (
        cast("JaxTrainer", make_trainer(wanted, kind_of(wanted), each))
        for each in (layout, Layout(sequence_parallel=4))
    )
    checkpoint = run / "checkpoints" / "step-00000004"
    for trainer in (sharded, replicated):
        trainer.restore(checkpoint / "state")
        for name, value in load_file(checkpoint / "weights.safetensors").items():
            np.testing.assert_array_equal(trainer.parameters()[name], value)
    arrays = [x for x in jax.tree.leaves(sharded.state) if x.ndim]
    of_one = [x.addressable_shards[0].data.size for x in arrays]
    # An eighth, and the few arrays that eight devices cannot divide.
    assert sum(of_one) < 0.13 * sum(x.size for x in arrays)
    assert all(x.is_fully_replicated for x in jax.tree.leaves(replicated.state))


def count_messages(rank: int, port: int, folder: Path) -> None:
    """The collectives of a step with two and with four minibatches, of replicated and of sharded parameters."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for sharded in (False, True):
        for minibatches in (2, 4):
            launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
            os.environ |= launched | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            port += 1
            wanted = replace(settings.read(folder / "wanted.json"), rows=8, minibatches=minibatches)
            trainer = make_trainer(wanted, kind_of(wanted), Layout(shard_parameters=sharded, timeout=60))
            with Messages() as sent:
                trainer.step(rows_of(wanted), 0)
            found[f"{sharded} {minibatches}"] = sent.counts
            trainer.close()
    (folder / f"rank {rank}").write_text(json.dumps(found))


def rows_of(wanted: Settings) -> Rows:
    """Rows of one document each."""
    shape = (wanted.rows, wanted.row_tokens)
    tokens = np.random.default_rng(0).integers(0, 256, shape).astype(np.int32)
    bounds = np.broadcast_to(np.array([0, wanted.row_tokens], np.int32), (wanted.rows, 2))
    return Rows(tokens=tokens, targets=np.roll(tokens, -1, 1), cu_seqlens=np.ascontiguousarray(bounds))


@pytest.mark.long
def test_gradients_are_sent_once_per_step(text: Path, tmp_path: Path) -> None:
    """In PyTorch one all-reduce, or one reduce-scatter for each part that FSDP2 shards; never one per minibatch."""
    import torch

    settings.write(wanted_of(text, blocks="mlstm:2"), tmp_path / "wanted.json")
    torch.multiprocessing.spawn(count_messages, args=(free_port(), tmp_path), nprocs=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"rank {rank}").read_text())
        for minibatches in (2, 4):
            assert found[f"False {minibatches}"] == {"allreduce_": 1}
            sharded = found[f"True {minibatches}"]
            # Of two blocks and what is around them; the all-reduce is that of the loss.
            assert sharded["_reduce_scatter_base_"] == 3 and sharded["allreduce_"] == 1, sharded


@pytest.mark.parametrize("layout", [{}, {"shard_parameters": True}, {"sequence_parallel": 2}])
def test_gradients_of_jax_are_added_up_after_the_last_minibatch(text: Path, layout: dict) -> None:
    """No all-reduce of a step stands inside the loop over minibatches, whose parts of sequences send what they must."""
    pytest.importorskip("jax")
    wanted = replace(wanted_of(text, framework="jax"), rows=16)
    trainer = cast("JaxTrainer", make_trainer(wanted, kind_of(wanted), Layout(**layout)))
    program = trainer._step.lower(trainer.state, vars(rows_of(wanted))).compile().as_text()
    lines = [line for line in program.splitlines() if re.search(r" (all-reduce|reduce-scatter)(-start)?\(", line)]
    assert lines and not [line for line in lines if "/while/" in line]
    assert "/while/" in program
