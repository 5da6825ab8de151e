"""A small text and small settings, for the tests of `examples.language_model`."""

import shutil
import sysconfig
from pathlib import Path
from typing import Any

from examples.language_model import metrics
from examples.language_model.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def small_text(directory: Path) -> Path:
    """A directory with two dozen modules of the standard library.

    Names decide which files are held out, and not all versions of Python have the same modules.
    """
    directory.mkdir()
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for number, path in enumerate([path for path in modules if 300 < path.stat().st_size < 20_000][:24]):
        shutil.copyfile(path, directory / f"text{number}.py")
    return directory


def small(text: Path, **others: Any) -> Settings:
    """Settings of a run that takes seconds."""
    fields = {
        "data": str(text),
        "validation_share": 0.2,
        "width": 16,
        "blocks": "mlstm",
        "heads": 2,
        "steps": 30,
        "rows": 2,
        "row_tokens": 64,
        "warmup_steps": 5,
        "validation_rows": 4,
        "validate_every": 30,
        "checkpoint_every": 10,
    }
    return Settings(**(fields | others))


def losses(run: Path) -> list[tuple[int, float, float]]:
    """Step, loss and norm of the gradient, to the last bit."""
    lines = metrics.read(run / "metrics.jsonl")
    return [(line["step"], line["loss"], line["gradient_norm"]) for line in lines if "loss" in line]
