"""Compiled kernels that travel: baked by ``python -m benchmarks bake FILE`` without a GPU, unpacked by ``on_gpu.sh``.

The launches go through Triton's own launcher with a driver that does nothing (``stub_libcuda.c``), so that they are
found again where Triton, Python and the kernels' sources are the same.
"""

import ctypes
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from benchmarks.gpu.races import races
from benchmarks.gpu.stages import CALLS, TESTS

STUB = Path(__file__).with_name("stub_libcuda.c")
KEPT = (".cubin", ".json", ".so")
"""Suffixes of the files of a compiled kernel that a launch reads; the rest is for people."""
MOST_BYTES = 64 * 2**20


@click.command("bake")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dtype", "dtypes", type=click.Choice(("bfloat16", "float16", "float32")), multiple=True)
@click.option("--tests/--no-tests", default=True, help="Include the kernels that only the tests launch.")
def bake_command(path: Path, dtypes: tuple[str, ...], tests: bool) -> None:
    """Compile the kernels that a run of on_gpu.sh launches, for an H100 or H200, and pack them into FILE (.tgz).

    Exits with status 1 if one of them has a race.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        # Scans and matrices take no name of a backend, and would not take their kernels on a CPU.
        calls = tuple(name for name in CALLS if name.startswith(("mlstm", "gru", "slstm")))
        bake(cache, Path(folder), dtypes or ("bfloat16", "float16", "float32"), calls)
        if tests:
            bake_tests(cache, Path(folder))
        count, racing = compiled(cache), [file for file in cache.glob("*/*.ttgir") if races(file.read_text())]
        path.parent.mkdir(parents=True, exist_ok=True)
        pack(cache, path)
    size = path.stat().st_size
    click.echo(f"{path}: {count} kernels, {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        raise click.ClickException(f"{path} is larger than {MOST_BYTES // 2**20} MiB")
    if racing:
        raise click.ClickException(f"kernels with a race: {', '.join(sorted(file.stem for file in racing))}")


def bake(cache: Path, folder: Path, dtypes: tuple[str, ...], calls: tuple[str, ...], **only: Any) -> int:
    """Launch every kernel on the stub driver, with ``cache`` as Triton's cache; returns how many were compiled.

    Args:
        folder: where the driver is built.
        calls: names of `benchmarks.gpu.calls`.
        only: passed to `benchmarks.gpu.aot_launches.cases`.
    """
    import torch

    from benchmarks.gpu.aot_launches import cases
    from torch_impl._triton.launch import FUSED

    os.environ["TRITON_CACHE_DIR"] = str(cache)
    use_stub(folder)
    done = set()
    for case in cases("sm_90", tuple(getattr(torch, name) for name in dtypes), 1, **only):
        for one in case.launched:
            if one.identity() not in done:
                done.add(one.identity())
                one.kernel[(1,)](**one.arguments, num_warps=one.num_warps, num_stages=one.num_stages, **FUSED)
    for name in calls:
        for dtype in dtypes:
            _call(name, dtype)
    return compiled(cache)


def bake_tests(cache: Path, folder: Path, *only: str) -> None:
    """Run the tests of kernels on the stub driver. They fail, because it computes nothing; ``only`` names some."""
    tests = TESTS / "torch" / "kernels"
    left_out = (f"--ignore={tests / name}" for name in ("test_interpreter.py", "test_aot.py", "test_launch.py"))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "--confcutdir", str(tests), "-q"]
    command += ["--import-mode=importlib", "--tb=no", "-pno:cacheprovider", "-pbenchmarks.gpu.baking", *left_out]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "GATESPEC_STUB": str(folder)}
    done = subprocess.run([*command, *(only or [str(tests)])], env=environment, capture_output=True, text=True)
    # pytest's statuses: all passed, some failed.
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the tests of kernels did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _call(name: str, dtype: str) -> None:
    """Make a call of `benchmarks.gpu.calls` on CPU tensors, which are as aligned as a GPU's; nothing is computed."""
    import numpy as np

    from benchmarks.gpu import calls
    from torch_impl._triton import interpreter

    call = calls.CALLS[name]
    # A row offers its kernels on a CPU where they are interpreted; they were defined to be compiled.
    with patch.object(interpreter, "interpreted", lambda: True):
        for shapes, offsets in zip((call.shapes, call.tiny), call.offsets or (None, None), strict=True):
            x = calls.arrays(call, shapes, dtype)
            dy = None if call.states else np.zeros(calls.exact(call, x, None, offsets)["output"].shape)
            calls.by_torch(call, x, dy, offsets, dtype, "cpu", backend=calls.backend_of(call, "cuda"))


def use_stub(folder: Path) -> None:
    """Make this process' Triton use a driver that does nothing, on an H100 that is not there."""
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.backends.nvidia import driver as nvidia  # pyright: ignore[reportMissingImports]

    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}", f"-I{include}", STUB, "-o", library],
        check=True,
    )
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

    class Driver(nvidia.CudaDriver):
        def __init__(self) -> None:
            self.utils, self.launcher_cls = nvidia.CudaUtils(), nvidia.CudaLauncher
            self.get_device_capability = lambda device=0: (9, 0)
            self.get_current_stream = lambda device=0: 0
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

    triton.runtime.driver.set_active(Driver())


def compiled(cache: Path) -> int:
    """The number of kernels in a cache of Triton's."""
    return sum(1 for _ in cache.glob("*/*.cubin"))


def pack(cache: Path, path: Path) -> None:
    """Write what a launch reads of a cache into a .tgz."""
    with tarfile.open(path, "w:gz") as archive:
        for file in _files(cache):
            archive.add(file, file.relative_to(cache))


def unpack(path: Path, cache: Path) -> int:
    """Add a packed cache to another one, in which files are named by full paths; returns the number of its kernels."""
    with tarfile.open(path) as archive:
        archive.extractall(cache, filter="data")
    for group in cache.glob("*/__grp__*"):
        names = json.loads(group.read_text())["child_paths"]
        group.write_text(json.dumps({"child_paths": {name: str(group.parent / name) for name in names}}))
    return compiled(cache)


def _files(cache: Path) -> Iterator[Path]:
    return (path for path in sorted(cache.glob("*/*")) if path.suffix in KEPT)
