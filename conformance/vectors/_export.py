"""Writes a set of test vectors: a file of arrays for each case, and the manifest that lists them all.

A vector is a call, the oracle's answer, and the error that each element of an answer may have. Laws draw their cases,
but people read a set, so its cases are listed in the record of each operation. Their values come from the seed.
"""

import hashlib
import importlib.metadata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.dtypes import LARGEST, Array
from conformance.base.exceptions import UsageError
from conformance.base.tensors import pack
from conformance.cases import FwbwCase
from conformance.operations import LOG_SCALE, OPERATIONS
from conformance.tolerance import budget
from conformance.tolerance.budget import Expected
from conformance.tolerance.designs import AnyDesign
from conformance.vectors._manifest import MANIFEST, Asked, Entry, Given, Manifest, files_of


def export(
    folder: Path,
    operations: Sequence[str],
    dtypes: Sequence[str],
    *,
    cases: int | None,
    seed: int,
    max_steps: int,
    force: bool,
) -> dict[str, int]:
    """Write a set and return the number of its ``cases`` and ``bytes``; an incomplete set has no manifest.

    Args:
        cases: number of cases per operation and dtype; None for each row of the operation's list once.
        seed: the seed from which all values are drawn.
        max_steps: the number of steps of the longest sequence.

    Raises:
        UsageError: the folder is not a folder, is not empty while ``force`` is not set, or cannot be written.
    """
    _make_room(folder, force)
    entries, size = [], 0
    try:
        for operation in operations:
            for dtype in dtypes:
                for index in range(cases or len(OPERATIONS[operation].vector_cases)):
                    entry, data = vector(operation, dtype, index, seed, max_steps)
                    (folder / entry.file).write_bytes(data)
                    entries.append(entry)
                    size += len(data)
        versions = {name: importlib.metadata.version(name) for name in ("gatespec", "numpy")}
        manifest = Manifest(generator=versions, seed=seed, max_steps=max_steps, cases=tuple(entries))
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


def vector(name: str, dtype: str, index: int, seed: int, max_steps: int) -> tuple[Entry, bytes]:
    """The vector with this index, and the contents of its file.

    The operation's listed cases are used repeatedly, each time with new values and at most ``max_steps`` steps. Values
    are drawn again until every finite answer, with its allowed error, is representable in the dtype of its result.
    """
    operation, id = OPERATIONS[name], f"{name}.{dtype}.{index:03d}"
    listed = operation.vector_cases
    for redrawn in count():
        salt = zlib.crc32(f"{seed}/{name}/{dtype}/{index}/{redrawn}".encode())
        case = _seeded(listed[index % len(listed)], salt, max_steps)
        call, precision = operation.call_of(case, dtype), AnyDesign(dtype, case.steps)
        arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
        value = operation.value(arrays, call.options, precision)
        gradient = operation.gradient(arrays, call.options, cotangents, precision)
        tensors: dict[str, Array] = {}
        arguments = _given("argument", call.arrays, tensors)
        given = _given("cotangent", call.cotangents, tensors)
        outputs = _asked("output", value, call.cotangents, precision, tensors)
        primals = {primal: call.arrays[primal] for primal in call.primals}
        gradients = _asked("gradient", gradient, primals, precision, tensors)
        if all(_largest(tensors, asked) <= LARGEST[asked.dtype] for asked in (*outputs, *gradients)):
            break
    data = pack(tensors)
    entry = Entry(
        id=id,
        operation=name,
        dtype=dtype,
        about=case.describe(),
        sizes=_sizes(case),
        options=operation.portable_options(call.options),
        file=f"{id}.safetensors",
        sha256=hashlib.sha256(data).hexdigest(),
        arguments=arguments,
        cotangents=given,
        outputs=outputs,
        gradients=gradients,
        kinks=gradient.kinks,
    )
    return entry, data


def _given(kind: str, arrays: Mapping[str, Array], tensors: dict[str, Array]) -> tuple[Given, ...]:
    tensors |= {f"{kind}/{name}": x for name, x in arrays.items()}
    return tuple(Given(name=name, key=f"{kind}/{name}", dtype=x.dtype, shape=x.shape) for name, x in arrays.items())


def _asked(
    kind: str, expected: Expected, like: Mapping[str, Array], precision: AnyDesign, tensors: dict[str, Array]
) -> tuple[Asked, ...]:
    """The arrays that are asked for, with the shapes and dtypes of others; the correct values go to ``tensors``.

    The allowed error is 0 where a value is infinite, because only the same value passes.
    """
    asked = []
    for name, x in like.items():
        values, key = expected.values[name], f"{kind}/{name}"
        with np.errstate(invalid="ignore"):
            allowed = budget.allowed(values, np.asarray(expected.slack[name]), precision, x.dtype)
        tensors[key] = Array(values, "float64")
        tensors[f"allowed/{key}"] = Array(np.where(np.isfinite(values), allowed, 0.0), "float64")
        log_scale = f"output/{LOG_SCALE[name]}" if kind == "output" and name in LOG_SCALE else None
        asked.append(
            Asked(name=name, key=key, allowed=f"allowed/{key}", dtype=x.dtype, shape=values.shape, log_scale=log_scale)
        )
    return tuple(asked)


def _largest(tensors: Mapping[str, Array], asked: Asked) -> float:
    values, allowed = tensors[asked.key].values, tensors[asked.allowed].values
    return float(np.where(np.isfinite(values), np.abs(values) + allowed, 0.0).max(initial=0.0))


def _seeded(case: Any, seed: int, max_steps: int) -> Any:
    if isinstance(case, FwbwCase):
        return replace(case, inner=_seeded(case.inner, seed, max_steps))
    lengths = getattr(case, "lengths", None)
    if lengths is not None:
        return replace(case, seed=seed, lengths=tuple(min(length, max_steps) for length in lengths))
    return replace(case, seed=seed, S=min(case.S, max_steps))


def _sizes(case: Any) -> dict[str, int]:
    """The letters of the specification that a call binds; S of a packed call is the length of its longest sequence."""
    if isinstance(case, FwbwCase):
        return {letter: size for letter, size in _sizes(case.inner).items() if letter != "N"}
    bound = {letter: getattr(case, letter) for letter in "BSNHKV" if hasattr(case, letter)}
    lengths = getattr(case, "lengths", None)
    return bound if lengths is None else {**bound, "B": len(lengths), "S": case.steps, "T": sum(lengths)}
