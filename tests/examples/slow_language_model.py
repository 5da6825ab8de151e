"""Longer proofs of the language model, run by `make examples`: fifty steps, killed runs of JAX, several processes."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from examples.language_model import settings, training
from tests.examples.language_model_tools import ROOT, losses, small, small_text
from tests.examples.test_language_model_training import DIE, steps
from tests.jax.processes import finished, started

SCRIPT = ("-m", "examples.language_model")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_text(tmp_path_factory.mktemp("language_model") / "text")


def python(*arguments: object, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with one thread and so many devices in JAX."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace", timeout=900
    )


def command(*arguments: object, devices: int = 1) -> subprocess.CompletedProcess[str]:
    done = python(*SCRIPT, *arguments, devices=devices)
    assert done.returncode == 0, done.stderr
    return done


def options(wanted: settings.Settings) -> list[str]:
    fields = vars(wanted).items()
    return [part for name, value in fields for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.mark.parametrize("blocks", ["mlstm:2", "slstm:2", "gru:2", "mlstm,slstm,mlstm"])
def test_fifty_steps_agree_in_both_frameworks(text: Path, blocks: str) -> None:
    fields = {"blocks": blocks, "width": 32, "steps": 50, "rows": 8}
    _, of_torch = steps(small(text, **fields), 50)
    _, of_jax = steps(small(text, **fields, framework="jax"), 50)
    np.testing.assert_allclose(of_jax, of_torch, rtol=1e-5)


def test_a_killed_run_of_jax_ends_as_the_uninterrupted_one(text: Path, tmp_path: Path) -> None:
    wanted, file = small(text, framework="jax", input_dropout=0.1, minibatches=2), tmp_path / "wanted.json"
    settings.write(wanted, file)
    command("train", tmp_path / "whole", "--sampled", 0, *options(wanted))
    at = 17
    assert python("-c", DIE, tmp_path / "killed", file, at).returncode == -9
    assert len(losses(tmp_path / "killed")) == at
    done = command("resume", tmp_path / "killed", "--sampled", 0)
    assert "from checkpoint step-00000010" in done.stderr
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_bfloat16_in_jax_changes_the_computation_and_not_the_parameters(text: Path) -> None:
    for blocks in ("mlstm", "slstm", "gru"):
        _, exact = steps(small(text, rows=8, framework="jax", blocks=blocks), 3)
        trainer, rounded = steps(small(text, rows=8, framework="jax", blocks=blocks, precision="bfloat16"), 3)
        assert rounded != exact
        np.testing.assert_allclose(rounded, exact, rtol=2e-2)
        assert all(value.dtype == np.float32 for value in trainer.parameters().values())


def test_two_processes_of_torchrun_train_as_one_and_their_checkpoint_resumes_in_one(text: Path, tmp_path: Path) -> None:
    wanted = small(text, steps=12, checkpoint_every=6, rows=4, minibatches=2, validation_rows=3)
    whole = training.start(tmp_path / "one", wanted)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "examples.language_model")
    done = python(*torchrun, "train", tmp_path / "two", "--sampled", 0, *options(wanted))
    assert done.returncode == 0, done.stderr
    of_one, of_two = (np.array(losses(tmp_path / name)) for name in ("one", "two"))
    np.testing.assert_allclose(of_two, of_one, rtol=1e-5)
    # The last checkpoint is of the last step: what a single process reads from it predicts as well.
    resumed = training.resume(tmp_path / "two", lambda line: None)
    assert resumed.bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-5)


@pytest.mark.parametrize("layout", [(), ("--sequence-parallel", 2, "--shard-parameters")])
def test_two_processes_of_jax_train_as_one(text: Path, tmp_path: Path, layout: tuple[object, ...]) -> None:
    """Two devices in each; what four devices have written, one and two devices continue."""
    fields = {"framework": "jax", "steps": 12, "checkpoint_every": 6, "rows": 8, "minibatches": 2}
    wanted = small(text, **fields, validation_rows=3, input_dropout=0.1)
    command("train", tmp_path / "one", "--sampled", 0, *options(wanted))
    of_two = started(*SCRIPT, "train", tmp_path / "two", "--sampled", 0, *layout, *options(wanted), devices=2)
    printed = finished(of_two, timeout=600)
    assert ["bits per byte" in output for output, _ in printed] == [True, False]
    of_one = np.array(losses(tmp_path / "one"))
    np.testing.assert_allclose(losses(tmp_path / "two"), of_one, rtol=1e-5)
    names = {path.name for path in (tmp_path / "two" / "checkpoints").iterdir()}
    assert names == {"step-00000006", "step-00000012"}
    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-00000012")
    command("resume", tmp_path / "two", "--sampled", 0, "--sequence-parallel", 2, devices=2)
    np.testing.assert_allclose(losses(tmp_path / "two"), of_one, rtol=1e-5)


LOSE_ONE = """
import os, signal, sys, time
from pathlib import Path
from examples.language_model import jax_training, settings, training
from examples.language_model.layout import Layout
step = jax_training.JaxTrainer.step
def step_or_die(self, rows, number):
    if number == 1 and os.environ["RANK"] == "1":
        Path(sys.argv[3]).write_text(str(time.time()))
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
    return step(self, rows, number)
jax_training.JaxTrainer.step = step_or_die
training.start(Path(sys.argv[1]), settings.read(Path(sys.argv[2])), Layout(sequence_parallel=2, timeout=10))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_process_of_jax_does_not_wait_for_a_lost_one(text: Path, tmp_path: Path, name: str) -> None:
    settings.write(small(text, framework="jax", steps=20, rows=8), tmp_path / "wanted.json")
    files = (tmp_path / "run", tmp_path / "wanted.json", tmp_path / "lost")
    waiting, lost = started("-c", LOSE_ONE, *files, name, devices=2)
    try:
        _, said = waiting.communicate(timeout=300)
    finally:
        lost.kill()
        lost.communicate()
    seconds = time.time() - float((tmp_path / "lost").read_text())
    assert waiting.returncode != 0 and seconds < 40, (seconds, said)
    assert re.search("heartbeat|Connection (closed|reset) by peer|timed? ?out", said, re.IGNORECASE), said


def test_the_command_trains_reports_and_samples_alike_in_both_frameworks(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = command("train", run, "--sampled", 20, *options(small(text, blocks="mlstm,slstm,gru")))
    assert re.search(r"\d\.\d{3} bits per byte: this model\n", done.stdout)
    names = {path.name for path in run.iterdir()} - {"tensorboard"}
    assert names == {"checkpoints", "loss.png", "metrics.jsonl", "samples.txt", "settings.json", "summary.json"}
    assert (run / "samples.txt").read_text().count("-" * 80) == 4
    arguments = ("sample", run, "--prompt", "def ", "--length", 30, "--seed", 5)
    of_torch = command(*arguments, "--framework", "torch").stdout
    assert of_torch.startswith("def ") and of_torch == command(*arguments, "--framework", "jax").stdout
    refused = python("-m", "examples.language_model", "train", run, "--steps", 100)
    assert (refused.returncode, refused.stderr) == (1, f"Error: {run} holds a run; `resume` continues it\n")
