"""The loop over steps: rows, losses, validations, checkpoints, a progress bar; the same in both frameworks."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import save_file

from examples.language_model import checkpoints, corpus, metrics, settings
from examples.language_model.baselines import bits_per_byte
from examples.language_model.checkpoints import Checkpoint, CheckpointError
from examples.language_model.corpus import Corpus
from examples.language_model.kinds import kind_of
from examples.language_model.layout import ONE_DEVICE_EACH, Layout
from examples.language_model.packing import Rows, RowSource, held_out_rows
from examples.language_model.progress import Progress
from examples.language_model.schedule import learning_rate
from examples.language_model.settings import Settings, SettingsError
from examples.language_model.trainer import Trainer, held_out_nats, make_trainer

SETTINGS = "settings.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that has done all its steps.

    Attributes:
        corpus: the text.
        validation: the rows that it was validated on.
        bits_per_byte: bits per byte of these rows after the last step.
        parameters: the number of parameters.
        is_main: whether this process writes and prints.
    """

    corpus: Corpus
    validation: Rows
    bits_per_byte: float
    parameters: int
    is_main: bool


def start(directory: Path, wanted: Settings, layout: Layout = ONE_DEVICE_EACH) -> Finished:
    """Start a run in a new directory.

    Raises:
        SettingsError: the directory already holds a run.
        CorpusError, SettingsError: the text or a setting does not fit.
    """
    if directory.exists() and not directory.is_dir():
        raise SettingsError(f"{directory} is not a directory")
    if (directory / SETTINGS).exists():
        raise SettingsError(f"{directory} holds a run; `resume` continues it")
    if wanted.data is not None:
        # The run can then be resumed from anywhere.
        wanted = dataclasses.replace(wanted, data=str(Path(wanted.data).absolute()))
    return _run(directory, wanted, None, layout)


def resume(directory: Path, say: Callable[[str], None], layout: Layout = ONE_DEVICE_EACH) -> Finished:
    """Continue a run from its newest undamaged checkpoint, or from the beginning if it has none.

    Raises:
        CheckpointError: every checkpoint is damaged, or the newest was made with other settings or another text.
        CorpusError, SettingsError: the text or a setting does not fit.
    """
    wanted = settings.read(directory / SETTINGS)
    found = checkpoints.newest(directory / "checkpoints", say)
    say("no checkpoint yet: from the beginning" if found is None else f"from checkpoint {found.directory.name}")
    return _run(directory, wanted, found, layout)


def _run(directory: Path, wanted: Settings, found: Checkpoint | None, layout: Layout) -> Finished:
    text = corpus.read(wanted)
    source = RowSource(documents=text.training, row_tokens=wanted.row_tokens, seed=wanted.seed)
    validation_source = RowSource(documents=text.validation, row_tokens=wanted.row_tokens, seed=None)
    validation = held_out_rows(validation_source, wanted.validation_rows)
    facts = {"settings": dataclasses.asdict(wanted), "corpus": text.fingerprint}
    if found is not None:
        _check_facts(found, facts)
    kind = kind_of(wanted)
    _check_memory(wanted, sum(math.prod(shape) for shape in kind.shapes.values()))
    trainer = make_trainer(wanted, kind, layout)
    try:
        if found is not None:
            with _failing_as(f"checkpoint {found.directory.name}: its state cannot be restored"):
                trainer.restore(found.directory / "state")
        if trainer.is_main:
            directory.mkdir(parents=True, exist_ok=True)
            settings.write(wanted, directory / SETTINGS)
            checkpoints.remove_unfinished(directory / "checkpoints")
        trainer.wait_for_all()
        done = 0 if found is None else found.step
        loop = _Loop(directory=directory, settings=wanted, trainer=trainer, source=source, validation=validation)
        bits = loop.run(done, facts)
        return Finished(
            corpus=text,
            validation=validation,
            bits_per_byte=bits,
            parameters=sum(value.size for value in trainer.parameters().values()),
            is_main=trainer.is_main,
        )
    finally:
        trainer.close()


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """One process's part in a run."""

    directory: Path
    settings: Settings
    trainer: Trainer
    source: RowSource
    validation: Rows

    def run(self, done: int, facts: dict) -> float:
        """Do the remaining steps, and return the bits per byte of the last validation."""
        wanted, trainer = self.settings, self.trainer
        log = metrics.Metrics(self.directory, done) if trainer.is_main else nullcontext()
        tokens_of_step = wanted.rows * wanted.row_tokens
        bits = self._validated() if done == wanted.steps else float("nan")
        with log as lines, Progress(done, wanted.steps, tokens_of_step, shown=trainer.is_main) as progress:
            for step in range(done, wanted.steps):
                began = time.perf_counter()
                result = trainer.step(self.source.rows(step * wanted.rows, wanted.rows), step)
                seconds = time.perf_counter() - began
                progress.stepped(result.loss)
                if lines is not None:
                    lines.add(
                        step + 1,
                        loss=result.loss,
                        gradient_norm=result.gradient_norm,
                        learning_rate=learning_rate(wanted, step),
                        tokens=(step + 1) * tokens_of_step,
                        tokens_per_second=tokens_of_step / seconds,
                    )
                last = step + 1 == wanted.steps
                if last or (step + 1) % wanted.validate_every == 0:
                    bits = self._validated()
                    progress.validated(bits)
                    if lines is not None:
                        lines.add(step + 1, validation_bits_per_byte=bits)
                if last or (step + 1) % wanted.checkpoint_every == 0:
                    self._checkpoint(step + 1, facts)
        return bits

    def _validated(self) -> float:
        return bits_per_byte(held_out_nats(self.trainer, self.validation), self.validation.targets)

    def _checkpoint(self, step: int, facts: dict) -> None:
        """Write a checkpoint: the framework's state, and the weights by name, which both frameworks can read."""
        trainer, directory = self.trainer, self.directory / "checkpoints"
        unfinished = checkpoints.unfinished(directory, step)
        what = f"the checkpoint of step {step} cannot be written"
        with _on_all_processes(trainer, what):
            if trainer.is_main:
                checkpoints.begin(directory, step)
        with _on_all_processes(trainer, what):
            trainer.save(unfinished / "state")
        weights = trainer.parameters()
        with _on_all_processes(trainer, what):
            if trainer.is_main:
                save_file(weights, unfinished / WEIGHTS)
                checkpoints.finish(directory, step, facts, self.settings.keep_checkpoints)


@contextmanager
def _on_all_processes(trainer: Trainer, what: str) -> Iterator[None]:
    """Wait for all processes after what each does; if one of them fails, all raise `CheckpointError`."""
    failure = None
    try:
        with _failing_as(what):
            yield
    except CheckpointError as error:
        failure = error
    if trainer.wait_for_all(failed=failure is not None):
        raise failure or CheckpointError(f"{what}: another process failed")


def _check_memory(wanted: Settings, parameters: int) -> None:
    """Raise for a model whose parameters, gradients and two means of AdamW, in float32, fill this machine."""
    needed, memory = 16 * parameters, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise SettingsError(
            f"`width` is {wanted.width:,} and `blocks` is {wanted.blocks}: {parameters:,} parameters, which need "
            f"{needed / 2**30:,.0f} GiB to train; this machine has {memory / 2**30:,.0f}"
        )


@contextmanager
def _failing_as(what: str) -> Iterator[None]:
    """Raise `CheckpointError` for any error of a framework's library of checkpoints."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # that of torch.distributed.checkpoint is no Exception, and ends with its cause
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}" if isinstance(error, Exception) else lines[-1]
        raise CheckpointError(f"{what}: {text}") from error


def _check_facts(found: Checkpoint, facts: dict) -> None:
    """Raise for a checkpoint that was made with other settings or another text."""
    name, before, now = found.directory.name, found.facts.get("settings"), facts["settings"]
    if not isinstance(before, dict):
        raise CheckpointError(f"checkpoint {name} does not say its settings")
    for setting in now:
        if before.get(setting) != now[setting]:
            raise CheckpointError(
                f"checkpoint {name} was made with `{setting}` {before.get(setting)!r}; {SETTINGS} has {now[setting]!r}"
            )
    if found.facts.get("corpus") != facts["corpus"]:
        raise CheckpointError(f"checkpoint {name} was made from another text than `data` holds now")
