"""The choice among the launch plans of a kernel: the launcher's default, or the plan measured fastest on this GPU.

A plan determines how tiles are cut and launched; it does not change the value. Measurements are stored in a file that
outlives the process, by device, Triton version, kernel and the sizes that a plan depends on. B and S are never among
these, so that a sequence is computed in the same way in every batch. A plan in the file that the launcher does not
offer is ignored.

``GATESPEC_AUTOTUNE``: ``1`` measures each kernel once, when a call first needs it, and waits for the device meanwhile;
``0`` ignores the file as well; otherwise the file is read but nothing is measured.
``GATESPEC_CACHE``: the directory of the file, by default ``gatespec`` in the user's cache directory.
"""

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from torch_impl._triton.interpreter import interpreted

P = TypeVar("P", bound=tuple)

_chosen: dict[tuple[int | None, str, str, str], Any] = {}


def tuned(
    kernel: str, sizes: str, plans: Callable[[], Sequence[P]], device: torch.device, run: Callable[[P], Any]
) -> P:
    """The plan to use.

    Args:
        kernel: the launcher's name.
        sizes: the sizes that the plans depend on, ``"bfloat16 K128 V256"``.
        plans: returns the plans to choose from; the first is the default.
        device: the device of the arrays.
        run: runs the kernel with a plan; it may be called repeatedly.
    """
    mode = os.environ.get("GATESPEC_AUTOTUNE", "")
    if device.type != "cuda" or interpreted() or mode == "0":
        return plans()[0]
    here = device.index, kernel, sizes, mode
    if here not in _chosen:
        key = " | ".join((_device_name(device), f"triton {_triton_version()}", kernel, sizes))
        found = _read().get(key, {}).get("plan")
        offered = plans()
        named = {describe(plan): plan for plan in offered}
        if found not in named and mode == "1":
            if torch.cuda.is_current_stream_capturing():
                return offered[0]
            _chosen[here] = _fastest(key, offered, run)
        else:
            _chosen[here] = named.get(found, offered[0])
    return _chosen[here]


def forget() -> None:
    """Make the next call read the file again, as a new process would."""
    _chosen.clear()


def describe(plan: tuple) -> str:
    """The name of a plan in the file, ``"L=64 BK=64 inside=4x2"``."""
    fields = plan._asdict().items()  # type: ignore[attr-defined]
    return " ".join(f"{name}={'x'.join(map(str, x)) if isinstance(x, tuple) else x}" for name, x in fields)


def cache_file() -> Path:
    """The file of measurements."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GATESPEC_CACHE") or Path(home) / "gatespec") / "triton-plans.json"


def _fastest(key: str, plans: Sequence[P], run: Callable[[P], Any]) -> P:
    times: dict[str, float] = {}
    for plan in plans:
        try:
            times[describe(plan)] = _milliseconds(lambda plan=plan: run(plan))
        except Exception as error:
            # A plan that does not fit this GPU is not a candidate; if none fits, the call itself raises the reason.
            if type(error).__name__ not in ("OutOfResources", "PTXASError", "CompilationError"):
                raise
    if not times:
        return plans[0]
    best = min(times, key=lambda name: times[name])
    _write(key, {"plan": best, "milliseconds": times})
    return next(plan for plan in plans if describe(plan) == best)


def _read() -> dict[str, Any]:
    try:
        entries = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return {}
    return (
        {key: entry for key, entry in entries.items() if isinstance(entry, dict)} if isinstance(entries, dict) else {}
    )


def _write(key: str, entry: dict[str, Any]) -> None:
    """Add an entry to the file, atomically."""
    path = cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False) as file:
            json.dump(_read() | {key: entry}, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        warnings.warn(f"the measured plans cannot be saved in {path}: {error}", RuntimeWarning, stacklevel=2)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)


def _triton_version() -> str:
    import triton  # pyright: ignore[reportMissingImports]

    return triton.__version__


def _milliseconds(run: Callable[[], Any]) -> float:
    from triton.testing import do_bench  # pyright: ignore[reportMissingImports]

    return cast(float, do_bench(run, warmup=10, rep=50, return_mode="median"))
