"""Tries one law again on one stored case, for saved scripts."""

from pathlib import Path
from typing import Any

import numpy as np

from conformance.base.dtypes import Array
from conformance.base.exceptions import UsageError
from conformance.base.tensors import unpack
from conformance.cases import from_json
from conformance.frameworks.targets import load
from conformance.judge.search import retried
from conformance.laws import all_laws
from conformance.operations import add_specification


def replay(
    target: str,
    *,
    law: str,
    dtype: str,
    case: dict[str, Any],
    arrays: Path | None = None,
    framework: str | None = None,
    device: str = "cpu",
    kernel_backend: str | None = None,
    spec: str | None = None,
) -> str | None:
    """Try ``law`` on ``case``.

    Args:
        target: as on the command line.
        law: its id, ``mlstm.gradient``.
        dtype: the dtype of the values.
        case: the case as `conformance.cases.to_json` wrote it.
        arrays: a file with the inputs of every call. Those of the first call must equal, bit for bit, those that the
            case draws here; otherwise this is not the stored case.
        spec: the file that states the law's recurrence.

    Returns:
        What broke the law; None if it holds.

    Raises:
        UsageError: there is no such law or target, or the arrays differ.
        RefusedError: the target refuses the case.
    """
    if spec is not None:
        add_specification(Path(spec))
    laws = {each.id: each for each in all_laws()}
    if law not in laws:
        raise UsageError(f"there is no law {law!r}; `gatespec laws` lists them")
    implementation = load(target, framework, device).in_run(kernel_backend=kernel_backend)
    found, calls = retried(implementation, laws[law], dtype, from_json(case))
    if arrays is not None and calls:
        stored = unpack(arrays.read_bytes())
        first = calls[0].call
        drawn = {**first.arrays, **{f"d_{name}": x for name, x in first.cotangents.items()}}
        for name, x in drawn.items():
            before = stored.get(f"0.{name}")
            if not isinstance(x, Array) or before is None:
                continue
            if x.shape != before.shape or not np.array_equal(x.values, before.values, equal_nan=True):
                raise UsageError(
                    f"{name} is not what {arrays} holds: NumPy {np.__version__} draws other numbers from this seed"
                )
    return found[0].problem if found else None
