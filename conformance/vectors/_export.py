"""Writes a set of test vectors: a file of arrays for each case, and the manifest that lists them all.

A vector is a call, the oracle's answer, and the error that each element of an answer may have. Laws draw their cases,
but people read a set, so its cases are listed in the record of each operation. Their values come from the seed.
"""

import hashlib
import importlib.metadata
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import LARGEST, Array
from conformance.base.exceptions import UsageError
from conformance.base.tensors import pack
from conformance.cases import FwbwCase
from conformance.operations import LOG_SCALE, OPERATIONS
from conformance.tolerance import budget
from conformance.tolerance.budget import Expected
from conformance.tolerance.designs import AnyDesign
from conformance.vectors._manifest import MANIFEST, Asked, Entry, Given, Manifest, files_of


@dataclass(frozen=True)
class Answer:
    """The correct values of an output or a gradient.

    Attributes:
        values: the oracle's values, in float64.
        dtype: the dtype in which an implementation returns it.
        allowed: the error that each element may have; 0 where ``values`` is infinite, because only the same value
            passes.
    """

    values: np.ndarray
    dtype: str
    allowed: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A call with its expected answers.

    Attributes:
        outputs: by name; C and n are in units of the expected m.
        gradients: by the name of the argument.
        kinks: elements at a kink, where the gradient of either side is within the allowed error.
    """

    operation: str
    dtype: str
    index: int
    case: Any
    call: Call
    outputs: dict[str, Answer]
    gradients: dict[str, Answer]
    kinks: int

    @property
    def id(self) -> str:
        return f"{self.operation}.{self.dtype}.{self.index:03d}"

    @property
    def representable(self) -> bool:
        """Whether every finite answer, with its allowed error, is representable in the dtype of its result."""
        answers = (*self.outputs.values(), *self.gradients.values())
        return all(_largest(answer) <= LARGEST[answer.dtype] for answer in answers)


def vector(operation: str, dtype: str, index: int, seed: int, max_steps: int) -> Vector:
    """The vector with this index; its values are drawn again until all answers are representable in their dtypes.

    The operation's listed cases are used repeatedly, each time with new values and at most ``max_steps`` steps.
    """
    listed, redrawn = OPERATIONS[operation].vector_cases, 0
    while True:
        salt = zlib.crc32(f"{seed}/{operation}/{dtype}/{index}/{redrawn}".encode())
        found = _of_case(operation, dtype, index, _seeded(listed[index % len(listed)], salt, max_steps))
        if found.representable:
            return found
        redrawn += 1


def _seeded(case: Any, seed: int, max_steps: int) -> Any:
    if isinstance(case, FwbwCase):
        return replace(case, inner=_seeded(case.inner, seed, max_steps))
    lengths = getattr(case, "lengths", None)
    if lengths is not None:
        return replace(case, seed=seed, lengths=tuple(min(length, max_steps) for length in lengths))
    return replace(case, seed=seed, S=min(case.S, max_steps))


def _largest(answer: Answer) -> float:
    finite = np.isfinite(answer.values)
    return float(np.where(finite, np.abs(answer.values) + answer.allowed, 0.0).max(initial=0.0))


def _of_case(name: str, dtype: str, index: int, case: Any) -> Vector:
    operation = OPERATIONS[name]
    call, precision = operation.call_of(case, dtype), AnyDesign(dtype, case.steps)
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    value = operation.value(arrays, call.options, precision)
    gradient = operation.gradient(arrays, call.options, cotangents, precision)

    def answers(expected: Expected, like: Mapping[str, Array]) -> dict[str, Answer]:
        found = {}
        for name, x in like.items():
            values = expected.values[name]
            with np.errstate(invalid="ignore"):
                allowed = budget.allowed(values, expected.slack[name], precision, x.dtype)
            found[name] = Answer(values, x.dtype, np.where(np.isfinite(values), allowed, 0.0))
        return found

    return Vector(
        operation=name,
        dtype=dtype,
        index=index,
        case=case,
        call=call,
        outputs=answers(value, call.cotangents),
        gradients=answers(gradient, {name: call.arrays[name] for name in call.primals}),
        kinks=gradient.kinks,
    )


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The vectors that a set holds.

    Attributes:
        operations, dtypes: names.
        cases: number of cases per operation and dtype; None for each row of the operation's list once.
        seed: the seed from which all values are drawn.
        max_steps: the number of steps of the longest sequence.
    """

    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: int | None
    seed: int
    max_steps: int

    def vectors(self) -> Iterator[Vector]:
        for operation in self.operations:
            for dtype in self.dtypes:
                for index in range(self.cases or len(OPERATIONS[operation].vector_cases)):
                    yield vector(operation, dtype, index, self.seed, self.max_steps)


def export(folder: Path, selection: Selection, *, force: bool) -> dict[str, int]:
    """Write a set and return the number of its ``cases`` and ``bytes``; an incomplete set has no manifest.

    Raises:
        UsageError: the folder is not a folder, is not empty while ``force`` is not set, or cannot be written.
    """
    _make_room(folder, force)
    entries, size = [], 0
    try:
        for each in selection.vectors():
            data = pack(_tensors(each))
            name = f"{each.id}.safetensors"
            (folder / name).write_bytes(data)
            entries.append(_entry(each, name, hashlib.sha256(data).hexdigest()))
            size += len(data)
        versions = {name: importlib.metadata.version(name) for name in ("gatespec", "numpy")}
        manifest = Manifest(
            generator=versions, seed=selection.seed, max_steps=selection.max_steps, cases=tuple(entries)
        )
        text = manifest.text().encode()
        (folder / MANIFEST).write_bytes(text)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}); give another folder") from error
    return {"cases": len(entries), "bytes": size + len(text)}


def _make_room(folder: Path, force: bool) -> None:
    """The folder, without the files of an earlier export; other files in it are kept."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; give a folder, which need not exist yet")
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            return
        if not force:
            raise UsageError(
                f"{folder} is not empty; give another folder, or --force to replace the set of vectors in it"
            )
        for name in files_of(folder):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}); give another folder") from error


def _tensors(each: Vector) -> dict[str, Array]:
    tensors = {f"argument/{name}": x for name, x in each.call.arrays.items()}
    tensors |= {f"cotangent/{name}": x for name, x in each.call.cotangents.items()}
    for kind, answers in (("output", each.outputs), ("gradient", each.gradients)):
        for name, answer in answers.items():
            tensors[f"{kind}/{name}"] = Array(answer.values, "float64")
            tensors[f"allowed/{kind}/{name}"] = Array(answer.allowed, "float64")
    return tensors


def _entry(each: Vector, file: str, digest: str) -> Entry:
    def given(kind: str, arrays: Mapping[str, Array]) -> tuple[Given, ...]:
        return tuple(Given(name=name, key=f"{kind}/{name}", dtype=x.dtype, shape=x.shape) for name, x in arrays.items())

    def asked(kind: str, answers: dict[str, Answer]) -> tuple[Asked, ...]:
        return tuple(
            Asked(
                name=name,
                key=f"{kind}/{name}",
                allowed=f"allowed/{kind}/{name}",
                dtype=answer.dtype,
                shape=answer.values.shape,
                log_scale=f"output/{LOG_SCALE[name]}" if kind == "output" and name in LOG_SCALE else None,
            )
            for name, answer in answers.items()
        )

    return Entry(
        id=each.id,
        operation=each.operation,
        dtype=each.dtype,
        about=each.case.describe(),
        sizes=_sizes(each.case),
        options=OPERATIONS[each.operation].portable_options(each.call.options),
        file=file,
        sha256=digest,
        arguments=given("argument", each.call.arrays),
        cotangents=given("cotangent", each.call.cotangents),
        outputs=asked("output", each.outputs),
        gradients=asked("gradient", each.gradients),
        kinks=each.kinks,
    )


def _sizes(case: Any) -> dict[str, int]:
    """The letters of the specification that a call binds; S of a packed call is the length of its longest sequence."""
    if isinstance(case, FwbwCase):
        return {letter: size for letter, size in _sizes(case.inner).items() if letter != "N"}
    bound = {letter: getattr(case, letter) for letter in "BSNHKV" if hasattr(case, letter)}
    lengths = getattr(case, "lengths", None)
    return bound if lengths is None else {**bound, "B": len(lengths), "S": case.steps, "T": sum(lengths)}
