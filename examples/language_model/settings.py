"""The settings of a run: one frozen record, checked once, kept next to the run as JSON.

Each field has a help text and a condition; the command line, the file and the checks are derived from them.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any


class SettingsError(ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the text names it."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A condition on a value, and the words for it."""

    words: str
    holds: Callable[[Any], bool]


def up_to(largest: int) -> Law:
    """The value is from 1 to the largest."""
    return Law(words=f"from 1 to {largest:,}", holds=lambda x: 1 <= x <= largest)


POSITIVE = Law(words="at least 1", holds=lambda x: x >= 1)
NOT_NEGATIVE = Law(words="at least 0", holds=lambda x: x >= 0)
ABOVE_ZERO = Law(words="above 0", holds=lambda x: x > 0)
FRACTION = Law(words="from 0 up to, not including, 1", holds=lambda x: 0 <= x < 1)
SHARE = Law(words="between 0 and 1, both excluded", holds=lambda x: 0 < x < 1)
PART = Law(words="from 0 to 1", holds=lambda x: 0 <= x <= 1)


SEED = Law(words="from 0 to 2,147,483,647", holds=lambda x: 0 <= x < 2**31)


def one_of(*words: str) -> Law:
    """The value is one of these words."""
    return Law(words=f"one of {', '.join(words)}", holds=lambda x: x in words)


CELLS = ("mlstm", "slstm", "gru")


def cells_of(blocks: str) -> tuple[str, ...]:
    """The cell of each block; ``mlstm:2,slstm`` is two blocks of the mLSTM and one of the sLSTM.

    Raises:
        ValueError: the text is not such a list, or has more than 1,024 blocks.
    """
    parts = [re.fullmatch(rf"({'|'.join(CELLS)})(?::([1-9]\d{{0,3}}))?", part) for part in blocks.split(",")]
    cells = tuple(part[1] for part in parts if part for _ in range(int(part[2] or 1)))
    if None in parts or len(cells) > 2**10:
        raise ValueError(blocks)
    return cells


def _are_cells(blocks: str) -> bool:
    try:
        return bool(cells_of(blocks))
    except ValueError:
        return False


BLOCKS = Law(words=f"{', '.join(CELLS)}, as in mlstm:7,slstm; up to 1,024 blocks", holds=_are_cells)


def setting(default: Any, help: str, law: Law | None = None) -> Any:
    """A field with its default, its help text and its condition."""
    return field(default=default, metadata={"help": help, "law": law})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that determines the values of a run, except the text itself and the number of devices.

    Raises:
        SettingsError: a field has another type or is out of range, or two fields contradict each other.
    """

    framework: str = setting("torch", "the framework that trains", one_of("torch", "jax"))
    data: str | None = setting(
        None, "a directory of text, or one file; without it, the standard library of this Python"
    )
    pattern: str = setting("*.py", "which files of the directory are read")
    smallest_file: int = setting(256, "leave out files of fewer bytes", POSITIVE)
    validation_share: float = setting(
        0.05, "share of the files that is held out, or of the bytes of a single file", SHARE
    )
    width: int = setting(128, "features of the residual stream", up_to(2**20))
    blocks: str = setting("mlstm:2", "cells of the blocks in order, each with a number of blocks or for one", BLOCKS)
    heads: int = setting(4, "heads of a block; divides the width", POSITIVE)
    steps: int = setting(600, "optimiser steps", up_to(99_999_999))
    rows: int = setting(4, "packed rows in a step, over all devices", POSITIVE)
    row_tokens: int = setting(512, "tokens of a packed row, the longest context", POSITIVE)
    minibatches: int = setting(1, "minibatches whose gradients are accumulated, on each device", POSITIVE)
    precision: str = setting(
        "float32", "dtype of the computation; parameters are float32", one_of("float32", "bfloat16")
    )
    input_dropout: float = setting(0.0, "probability that an input byte is hidden from the model", FRACTION)
    learning_rate: float = setting(4e-3, "highest learning rate", ABOVE_ZERO)
    warmup_steps: int = setting(50, "steps in which the learning rate rises", NOT_NEGATIVE)
    final_learning_rate: float = setting(0.1, "last learning rate, as a part of the highest", PART)
    weight_decay: float = setting(0.1, "AdamW's decay, of parameters with at least two axes", NOT_NEGATIVE)
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient", FRACTION)
    beta2: float = setting(0.95, "AdamW's decay of the mean squared gradient", FRACTION)
    epsilon: float = setting(1e-8, "AdamW's term in the denominator", ABOVE_ZERO)
    gradient_norm: float = setting(1.0, "a longer gradient is scaled to this norm", ABOVE_ZERO)
    seed: int = setting(0, "seed of weights, order of the data and hidden bytes", SEED)
    validate_every: int = setting(200, "steps between validations", POSITIVE)
    validation_rows: int = setting(128, "rows of held-out text in a validation, at most", POSITIVE)
    checkpoint_every: int = setting(100, "steps between checkpoints", POSITIVE)
    keep_checkpoints: int = setting(
        2, "how many checkpoints are kept, at least 2", Law(words="at least 2", holds=lambda x: x >= 2)
    )

    def __post_init__(self) -> None:
        for of in dataclasses.fields(self):
            object.__setattr__(self, of.name, _checked(of, getattr(self, of.name)))
        if self.width % self.heads:
            raise SettingsError(f"`heads` is {self.heads}, which does not divide `width`, {self.width}")
        if "mlstm" in self.cells and self.width % (2 * self.heads):
            raise SettingsError(
                f"`heads` is {self.heads}: queries and keys are half as wide as `width`, {self.width}, "
                f"and {self.heads} does not divide {self.width // 2}"
            )
        if self.rows * self.row_tokens >= 2**31:
            raise SettingsError(
                f"`rows` is {self.rows} and `row_tokens` is {self.row_tokens}; expected fewer than 2^31 tokens in all"
            )
        if self.rows % self.minibatches:
            raise SettingsError(f"`minibatches` is {self.minibatches}, which does not divide `rows`, {self.rows}")
        if self.warmup_steps >= self.steps:
            raise SettingsError(f"`warmup_steps` is {self.warmup_steps}; expected less than `steps`, {self.steps}")

    @property
    def cells(self) -> tuple[str, ...]:
        """The cell of each block, from the first."""
        return cells_of(self.blocks)

    def check_devices(self, devices: int) -> None:
        """Raise if the rows of a step cannot be divided among this number of devices.

        Raises:
            SettingsError: `rows` is not a multiple of devices × minibatches.
        """
        if self.rows % (devices * self.minibatches):
            raise SettingsError(
                f"`rows` is {self.rows}; expected a multiple of {devices * self.minibatches}, "
                f"for {devices} devices with {self.minibatches} minibatches each"
            )


def from_fields(fields: Mapping[str, Any]) -> Settings:
    """Settings from a mapping, such as the content of a file.

    Raises:
        SettingsError: a field is unknown, of another type or out of range.
    """
    known = {of.name for of in dataclasses.fields(Settings)}
    if unknown := sorted(set(fields) - known):
        raise SettingsError(f"`{unknown[0]}` is not a setting; known are {', '.join(sorted(known))}")
    return Settings(**fields)


def read(path: Path) -> Settings:
    """The settings in a file.

    Raises:
        SettingsError: the file cannot be read, is not a JSON object, or holds a bad field.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read as settings: {error}") from error
    if not isinstance(fields, dict):
        raise SettingsError(f"{path} holds {type(fields).__name__}; expected an object of settings")
    if missing := sorted({of.name for of in dataclasses.fields(Settings)} - set(fields)):
        raise SettingsError(f"{path} lacks `{missing[0]}`")
    return from_fields(fields)


def write(settings: Settings, path: Path) -> None:
    """Write settings to a file, one field per line."""
    replace_text(path, json.dumps(dataclasses.asdict(settings), indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file that replaces the old one when it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def kind_of(of: dataclasses.Field) -> type:
    """The type of a field; for an optional field, the type of its values other than None."""
    return {"int": int, "float": float}.get(getattr(of.type, "__name__", ""), str)


def _checked(of: dataclasses.Field, value: Any) -> Any:
    """The value, converted to the type of its field."""
    kind, law = kind_of(of), of.metadata["law"]
    assert of.default is not MISSING
    if value is None and of.default is None:
        return None
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if type(value) is not kind:
        raise SettingsError(f"`{of.name}` is {value!r} of type {type(value).__name__}; expected {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"`{of.name}` is {value!r}; expected a finite number")
    if law is not None and not law.holds(value):
        raise SettingsError(f"`{of.name}` is {value!r}; expected {law.words}")
    return value
