"""Training: thirty steps in both frameworks, and runs that were killed. `make examples` runs the longer proofs."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.language_model import corpus, settings, training
from examples.language_model.checkpoints import CheckpointError
from examples.language_model.kinds import kind_of
from examples.language_model.packing import RowSource
from examples.language_model.settings import Settings, SettingsError
from examples.language_model.trainer import Trainer, make_trainer
from tests.examples.language_model_tools import ROOT, losses, small, small_text

pytest.importorskip("torch")
pytest.importorskip("jax")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_text(tmp_path_factory.mktemp("language_model") / "text")


def steps(wanted: Settings, count: int) -> tuple[Trainer, list[float]]:
    """A trainer after some steps, and their losses."""
    trainer = make_trainer(wanted, kind_of(wanted))
    source = RowSource(documents=corpus.read(wanted).training, row_tokens=wanted.row_tokens, seed=wanted.seed)
    rows = (source.rows(step * wanted.rows, wanted.rows) for step in range(count))
    return trainer, [trainer.step(each, step).loss for step, each in enumerate(rows)]


def test_thirty_steps_agree_in_both_frameworks_on_one_device_and_on_eight(text: Path) -> None:
    """PyTorch in one process, JAX on the eight devices of the tests: same weights, same rows, same losses."""
    blocks = "mlstm,slstm"
    of_torch, expected = steps(small(text, rows=8, blocks=blocks), 30)
    of_jax, found = steps(small(text, rows=8, blocks=blocks, framework="jax"), 30)
    assert (of_torch.devices, of_jax.devices) == (1, 8)
    assert np.mean(expected[-5:]) < np.mean(expected[:5]) - 1
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    parameters = of_jax.parameters()
    assert parameters.keys() == of_torch.parameters().keys()
    assert all(value.dtype == np.float32 for value in parameters.values())


def test_minibatches_and_rows_give_the_same_steps(text: Path) -> None:
    _, whole = steps(small(text, rows=4, blocks="gru,slstm"), 4)
    _, parts = steps(small(text, rows=4, blocks="gru,slstm", minibatches=2), 4)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_bfloat16_changes_the_computation_and_not_the_parameters(text: Path) -> None:
    _, exact = steps(small(text), 3)
    trainer, rounded = steps(small(text, precision="bfloat16"), 3)
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=2e-2)
    assert all(value.dtype == np.float32 for value in trainer.parameters().values())


def test_hidden_bytes_are_drawn_anew_in_each_step_and_alike_in_each_run(text: Path) -> None:
    wanted = small(text, input_dropout=0.5)
    _, once = steps(wanted, 2)
    _, again = steps(wanted, 2)
    _, without = steps(small(text), 2)
    assert once == again and once[0] != without[0]
    trainer = make_trainer(wanted, kind_of(wanted))
    rows = RowSource(documents=corpus.read(wanted).training, row_tokens=64, seed=0).rows(0, 2)
    frozen = {name: value.copy() for name, value in trainer.parameters().items()}
    found = []
    for step in (0, 1):
        with_first_values = make_trainer(wanted, kind_of(wanted))
        found.append(with_first_values.step(rows, step).loss)
        assert any((with_first_values.parameters()[name] != frozen[name]).any() for name in frozen)
    assert found[0] != found[1]


DIE = """
import os, signal, sys
from pathlib import Path
from examples.language_model import metrics, settings, training
add = metrics.Metrics.add
def add_and_die(self, step, **values):
    add(self, step, **values)
    if step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
metrics.Metrics.add = add_and_die
training.start(Path(sys.argv[1]), settings.read(Path(sys.argv[2])))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_run_ends_as_the_uninterrupted_one(text: Path, tmp_path: Path) -> None:
    import torch

    wanted = small(text, input_dropout=0.1)
    whole = training.start(tmp_path / "whole", wanted)
    settings.write(wanted, tmp_path / "wanted.json")
    killed, at = tmp_path / "killed", random.SystemRandom().randrange(1, 30)
    command = [sys.executable, "-W", "error", "-c", DIE, str(killed), str(tmp_path / "wanted.json"), str(at)]
    # Sums are split over threads: as many in both.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(losses(killed)) == at
    said: list[str] = []
    resumed = training.resume(killed, said.append)
    last = (at - 1) // 10 * 10
    assert said == [f"from checkpoint step-{last:08d}" if last else "no checkpoint yet: from the beginning"]
    assert losses(killed) == losses(tmp_path / "whole"), f"killed in step {at}"
    assert resumed.bits_per_byte == whole.bits_per_byte


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(text: Path, tmp_path: Path) -> None:
    run, wanted = tmp_path / "run", small(text, blocks="gru,slstm", steps=12, checkpoint_every=4)
    whole = training.start(run, wanted)
    before = losses(run)
    with pytest.raises(SettingsError, match="holds a run; `resume` continues it"):
        training.start(run, wanted)
    newest = run / "checkpoints" / "step-00000012"
    largest = max(newest.glob("state/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-7])
    said: list[str] = []
    assert training.resume(run, said.append).bits_per_byte == whole.bits_per_byte
    assert said[0].startswith(f"checkpoint step-00000012 is damaged: state/{largest.name} has ")
    assert said[1] == "from checkpoint step-00000008"
    assert losses(run) == before
    # Another text, or another setting, is not what the checkpoint is of.
    given = (run / "settings.json").read_text()
    for old, new, refused in (
        ('"beta1": 0.9', '"beta1": 0.8', "`beta1` 0.9; settings.json has 0.8"),
        ('"gru,slstm"', '"slstm,gru"', "`blocks` 'gru,slstm'; settings.json has 'slstm,gru'"),
    ):
        (run / "settings.json").write_text(given.replace(old, new))
        with pytest.raises(CheckpointError, match=re.escape(f"step-00000012 was made with {refused}")):
            training.resume(run, said.append)
