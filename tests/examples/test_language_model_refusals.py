"""What the commands of `examples.language_model` refuse: one line that names it, and no traceback."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from safetensors import SafetensorError

from examples.language_model import corpus, training
from examples.language_model.__main__ import main
from examples.language_model.checkpoints import CheckpointError
from examples.language_model.settings import Settings
from tests.examples.language_model_tools import small, small_text

FRAMEWORKS = [
    pytest.param(name, marks=pytest.mark.skipif(not __import__("importlib.util").util.find_spec(name), reason=name))
    for name in ("torch", "jax")
]


def refused(*arguments: object) -> str:
    """The error of a command that ends with a status and one line."""
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert isinstance(done.exception, SystemExit) and done.exit_code in (1, 2), (done.exception, done.output)
    return done.stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_text(tmp_path_factory.mktemp("language_model") / "text")


@pytest.fixture(scope="module", params=FRAMEWORKS)
def finished(text: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A run of four steps with checkpoints of the second and the fourth."""
    run = tmp_path_factory.mktemp("language_model") / request.param
    fields = {"framework": request.param, "blocks": "slstm", "steps": 4, "warmup_steps": 1, "row_tokens": 16}
    training.start(run, small(text, **fields, rows=8, validation_rows=1, validate_every=4, checkpoint_every=2))
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


# On Python 3.13 a writer of PyTorch reports once more, when it is collected, that it could not close its file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_named_and_the_run_resumes(run: Path) -> None:
    """No file may grow beyond 3,000 bytes, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")
    if json.loads((run / "settings.json").read_text())["framework"] == "jax":
        pytest.skip("orbax writes in threads, which log a traceback of their own before the command ends with its line")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        said = refused("resume", run, "--sampled", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "Error: the checkpoint of step 4 cannot be written: " in said
    done = CliRunner().invoke(main, ["resume", str(run), "--sampled", "0"])
    assert done.exit_code == 0 and done.stderr.startswith("from checkpoint step-00000002"), (
        done.exception,
        done.output,
    )
    assert (run / "checkpoints" / "step-00000004" / "manifest.json").is_file()


def test_weights_that_cannot_be_written_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors raises an error of its own, which is no OSError."""

    def full(*_: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    shutil.rmtree(run / "checkpoints" / "step-00000004")
    monkeypatch.setattr(training, "save_file", full)
    said = refused("resume", run, "--sampled", 0)
    assert said.endswith(
        "Error: the checkpoint of step 4 cannot be written: SafetensorError: I/O error: No space left on device (os "
        "error 28)\n"
    )


@pytest.mark.parametrize("fails", [True, False])
def test_all_processes_raise_if_one_cannot_write(fails: bool) -> None:
    """None waits for a message that the one that failed will not send."""
    waited = []

    class Trainer:
        def wait_for_all(self, failed: bool = False) -> bool:
            waited.append(failed)
            return True

    words = "OSError: full" if fails else "another process failed"
    with (
        pytest.raises(CheckpointError, match=f"^it cannot be written: {words}$"),
        training._on_all_processes(cast("Any", Trainer()), "it cannot be written"),
    ):
        if fails:
            raise OSError("full")
    assert waited == [fails]


def manifest_with(**changed: Any) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | changed)


MANIFESTS: dict[str, Callable[[str], str]] = {
    "a step that is text": manifest_with(step="x"),
    "facts that are a list": manifest_with(facts=[]),
    "a step that is infinite": manifest_with(step=float("inf")),
    "a size that is infinite": lambda text: text.replace('"bytes": ', '"bytes": Infinity, "old": '),
    "a step that is true": manifest_with(step=True),
    "200,000 brackets": lambda text: "[" * 200_000,
    "no files": manifest_with(files={}),
    "files that are a list": manifest_with(files=[]),
    "a file that is a number": manifest_with(files={"weights.safetensors": 1}),
    "a list": lambda text: "[]",
    "half of it": lambda text: text[: len(text) // 2],
    "UTF-16": lambda text: text.encode("utf-16").decode("latin-1"),
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_damaged_manifest_is_named_and_the_checkpoint_before_it_is_used(run: Path, damage: str) -> None:
    path = run / "checkpoints" / "step-00000004" / "manifest.json"
    path.write_text(MANIFESTS[damage](path.read_text()), encoding="latin-1")
    done = CliRunner().invoke(main, ["sample", str(run), "--length", "0"])
    assert done.exit_code == 0, (done.exception, done.output)
    assert done.stderr.startswith("checkpoint step-00000004 is damaged: ") and done.stderr.count("\n") == 1


def test_truncated_files_of_a_checkpoint_are_named(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    state = max((path for path in (newest / "state").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    state.write_bytes(state.read_bytes()[:5])
    done = CliRunner().invoke(main, ["sample", str(run), "--length", "0"])
    assert done.exit_code == 0 and f"{state.relative_to(newest)} has 5 bytes; expected " in done.stderr
    # With a manifest that says so, only the framework notices.
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    path = newest / "manifest.json"
    manifest = json.loads(path.read_text())
    shutil.rmtree(newest / "state")
    manifest["files"] = {name: of for name, of in manifest["files"].items() if not name.startswith("state")}
    path.write_text(json.dumps(manifest))
    assert "checkpoint step-00000004: its state cannot be restored: " in refused("resume", run)
    (newest / "weights.safetensors").unlink()
    manifest["files"] = {}
    path.write_text(json.dumps(manifest))
    assert "checkpoint step-00000004: weights.safetensors cannot be read: " in refused("sample", run)


def test_plain_files_where_directories_belong(run: Path, text: Path, tmp_path: Path) -> None:
    (run / "checkpoints" / ".unfinished-x").write_text("")
    (run / "checkpoints" / ".unfinished-step-00000004").write_text("")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    (run / "checkpoints" / "step-00000004").write_text("")
    done = CliRunner().invoke(main, ["resume", str(run), "--sampled", "0"])
    assert done.exit_code == 0, (done.exception, done.output)
    assert (run / "checkpoints" / "step-00000004" / "manifest.json").is_file()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    file = tmp_path / "file"
    file.write_text("")
    assert refused("train", file, "--data", text) == f"Error: {file} is not a directory\n"
    for arguments in (("resume", file), ("sample", file)):
        assert f"{file}/settings.json cannot be read as settings: " in refused(*arguments)
    assert "Not a directory" in refused("train", file / "run", "--data", text, "--steps", 60, "--rows", 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n"), "metrics.jsonl: line 1 cannot be read"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\n"), "metrics.jsonl: line 1 cannot be read"),
        (lambda run: (run / "settings.json").write_text("[" * 200_000), "settings.json cannot be read as settings"),
        (lambda run: (run / "settings.json").write_text(""), "settings.json cannot be read as settings"),
        (lambda run: (run / "settings.json").write_bytes(b"\xff"), "settings.json cannot be read as settings"),
    ],
)
def test_other_damaged_files_of_a_run(run: Path, damage: Callable[[Path], Any], said: str) -> None:
    damage(run)
    assert said in refused("resume", run)


def test_a_pattern_that_leaves_the_directory_or_is_none(text: Path, tmp_path: Path) -> None:
    for pattern in ("/*", "../*", "a/../../*", "/", "**/.."):
        assert f"`pattern` is {pattern!r}" in refused("train", tmp_path / "run", "--data", text, "--pattern", pattern)
        assert not (tmp_path / "run").exists()


def test_sizes_beyond_this_machine(text: Path, tmp_path: Path) -> None:
    for options, said in (
        (("--width", 10**9), "`width` is 1000000000; expected from 1 to 1,048,576"),
        (("--width", 2**20, "--heads", 16), "GiB to train; this machine has "),
        (("--width", 2**17, "--blocks", "gru,slstm"), "GiB to train; this machine has "),
    ):
        assert said in refused("train", tmp_path / "run", "--data", text, *options)
        assert not (tmp_path / "run").exists()


def test_a_data_file_whose_name_is_not_utf_8_is_read(tmp_path: Path) -> None:
    for name in (b"a\xff.py", *(f"m{index}.py".encode() for index in range(9))):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"text of " + name)
    found = corpus.read(Settings(data=str(tmp_path), smallest_file=1, validation_share=0.3))
    assert len(found.training.lengths) + len(found.validation.lengths) == 10


def test_draws_that_are_no_draws(run: Path) -> None:
    for option in ("--temperature", "--top-p"):
        for value in ("nan", "inf", "-1"):
            name = option[2:].replace("-", "_")
            assert f"Error: Sampling: `{name}` is {float(value)}; expected a number" in refused(
                "sample", run, option, value
            )
    assert "`top_p` is 0.0; expected" in refused("sample", run, "--top-p", "0")


def test_a_prompt_that_is_not_utf_8_is_bytes(run: Path) -> None:
    done = CliRunner().invoke(main, ["sample", str(run), "--prompt", os.fsdecode(b"a\xff"), "--length", "0"])
    assert (done.exit_code, done.stdout_bytes) == (0, b"a\xff\n"), done.exception
