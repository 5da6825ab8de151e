"""Records: the arguments, results and residuals of an operator by name, and everything that follows from their fields.

A record is a NamedTuple. The type of a field is its type in the operator's schema. A tensor that has heads (and, among
arguments, a gradient) describes its layout with `Axes`. Everything positional is derived here: schemas, empty outputs,
the axes into which vmap is folded. Fields that are tensors come before those that are not.
"""

import functools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor

VALUES, ACCUMULATED = "values", "accumulated"
"""Dtypes by role: that of `v` or `input`, and the accumulation dtype, which carries its states."""

PACKED = {"B S": "T", "B blocks": "blocks", "B starts": "starts", "B segments": "segments"}
"""Axes of a dense call, with the one axis that replaces them when sequences are packed."""


@dataclass(frozen=True)
class Axes:
    """The layout of a tensor.

    Attributes:
        letters: its axes in order, ``"B S N K"``; the head axis begins with N. ``V+1`` is one column more than V.
        dtype: a role, or a dtype.
        memory: the same axes in memory order, if that differs.
        option: for a residual, the option of the fwbw configuration that keeps it.
    """

    letters: str
    dtype: str | torch.dtype = VALUES
    memory: str = ""
    option: str = ""

    @functools.cached_property
    def _by_packing(self) -> tuple["Axes", "Axes"]:
        letters, memory = self.letters, (self.memory or self.letters).split()
        for dense, packed in PACKED.items():
            if letters.startswith(f"{dense} "):
                letters = letters.replace(dense, packed)
                batch, steps = dense.split()
                memory = [packed if letter == steps else letter for letter in memory if letter != batch]
        return self, Axes(letters, self.dtype, " ".join(memory), self.option)

    def when(self, packed: bool) -> "Axes":
        """These axes for a call with packed or with dense sequences."""
        return self._by_packing[packed]

    @functools.cached_property
    def heads(self) -> int:
        """The position of the head axis."""
        return next(number for number, letter in enumerate(self.letters.split()) if letter.startswith("N"))

    @functools.cached_property
    def from_memory(self) -> tuple[int, ...]:
        """For every axis its position in memory: the argument of ``permute`` for a tensor that is contiguous there."""
        memory = _numbered(self.memory or self.letters)
        return tuple(memory.index(letter) for letter in _numbered(self.letters))

    @functools.cached_property
    def to_memory(self) -> tuple[int, ...]:
        """The argument of ``permute`` that goes back to memory order."""
        letters = _numbered(self.letters)
        return tuple(letters.index(letter) for letter in _numbered(self.memory or self.letters))

    def empty(self, like: Tensor, sizes: Mapping[str, Any], dtypes: Mapping[str, torch.dtype]) -> Tensor:
        """An empty tensor with this layout.

        Args:
            like: a tensor on the same device.
            sizes: the sizes of the letters.
            dtypes: the dtypes of the roles.
        """
        shape = [
            sum(int(part) if part.isdigit() else sizes[part] for part in letter.split("+"))
            for letter in (self.memory or self.letters).split()
        ]
        dtype = dtypes[self.dtype] if isinstance(self.dtype, str) else self.dtype
        return like.new_empty(shape, dtype=dtype).permute(self.from_memory)


def _numbered(letters: str) -> list[tuple[str, int]]:
    """The letters, numbered so that two occurrences of the same letter differ."""
    split = letters.split()
    return [(letter, split[:number].count(letter)) for number, letter in enumerate(split)]


@dataclass(frozen=True)
class Field:
    """A field of a record: its name, its type in a schema, and its axes if it has heads."""

    name: str
    schema: str
    axes: Axes | None


_SCHEMA = {
    Tensor: "Tensor",
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
}


def _schema(hint: Any) -> str:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (inner,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        return f"{_SCHEMA[inner]}?"
    return _SCHEMA[hint]


@functools.cache
def fields(record: type) -> tuple[Field, ...]:
    """The fields of a record in order."""
    found = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        axes = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Axes)), None)
        plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
        found.append(Field(name=name, schema=_schema(plain), axes=axes))
    kinds = [field.schema.startswith("Tensor") for field in found]
    assert kinds == sorted(kinds, reverse=True), f"{record.__name__}: tensors come before options"
    return tuple(found)


def schema(record: type) -> str:
    """The record as the arguments of an operator, ``"Tensor q, Tensor? C, float eps"``."""
    return ", ".join(f"{field.schema} {field.name}" for field in fields(record))


@functools.cache
def head_axes(record: type, packed: bool) -> tuple[int | None, ...]:
    """The head axis of every field; None for a field without heads."""
    return tuple(None if field.axes is None else field.axes.when(packed).heads for field in fields(record))


def names_by_option(residuals: type) -> dict[str, tuple[str, ...]]:
    """By option of the fwbw configuration, the names of the residuals that it keeps."""
    names: dict[str, tuple[str, ...]] = {}
    for field in fields(residuals):
        if field.axes is not None and field.axes.option:
            names[field.axes.option] = (*names.get(field.axes.option, ()), field.name)
    return names


def empty_like_fields(
    record: type,
    names: Sequence[str],
    packed: bool,
    like: Tensor,
    sizes: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype],
) -> list[Tensor]:
    """Empty tensors for the named fields, in the order of the record."""
    return [
        field.axes.when(packed).empty(like, sizes, dtypes)
        for field in fields(record)
        if field.name in names and field.axes is not None
    ]
