"""Compile kernels ahead of time, for a GPU that need not be there, from the very launches that a call makes.

``python -m tests.torch.kernels.aot [--dtype NAME] [TARGET …]`` prints, as JSON lines, the registers, spills and shared
memory of every kernel.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

SHARED_MEMORY = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""Bytes of shared memory that a program may have."""

_TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, its arguments in order with constexprs by name, warps and stages."""

    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes of a multiprocessor. ``registers`` a thread, ``spills`` and ``shared`` in bytes."""

    kernel: str
    case: str
    target: str
    num_warps: int
    num_stages: int
    registers: int
    spills: int
    shared: int


def launches(module: ModuleType, call: Callable[[], Any]) -> list[Launched]:
    """The launches that ``call`` makes through ``module``, none of them carried out; arguments may be meta tensors."""
    seen = []

    def record(kernel, grid, device, how, *args, **constants):
        seen.append(Launched(kernel, args, constants, how.num_warps, how.num_stages))

    with patch.object(module, "launch", record):
        call()
    return seen


def _specialise(x: Any, path: tuple[int, ...], constants: dict, attributes: dict) -> Any:
    """The type of an argument as a launch would tell it: 1 and None are constants, and what 16 divides is marked."""
    if isinstance(x, tuple):
        return tuple(_specialise(part, (*path, number), constants, attributes) for number, part in enumerate(x))
    if x is None or (isinstance(x, int) and x == 1):
        constants[path] = x
        return "constexpr"
    if isinstance(x, float):
        return "fp32"
    if isinstance(x, torch.Tensor) or x % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    if isinstance(x, torch.Tensor):
        return f"*{_TYPES[x.dtype]}"
    return "i32" if -(2**31) <= x < 2**31 else "i64"


def compile_for(launched: Launched, case: str, target: str) -> Compiled:
    """Compile a launch's kernel for ``sm_80``, ``sm_90``, ``sm_100`` or ``gfx942`` and read its resources."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launched.kernel.arg_names
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    signature = {
        name: _specialise(x, (number,), constants, attributes)
        for number, (name, x) in enumerate(zip(names, launched.args, strict=False))
    }
    for name, value in launched.constants.items():
        signature[name] = "constexpr"
        constants[(names.index(name),)] = value
    nvidia = target.startswith("sm_")
    gpu = GPUTarget("cuda", int(target[3:]), 32) if nvidia else GPUTarget("hip", target, 64)
    options = {"num_warps": launched.num_warps, "num_stages": launched.num_stages}
    compiled = triton.compile(ASTSource(launched.kernel, signature, constants, attributes), target=gpu, options=options)
    registers, spills = _ptxas(compiled.asm["ptx"], target) if nvidia else _amd(compiled.asm["amdgcn"])
    name = launched.kernel.fn.__name__
    return Compiled(name, case, target, **options, registers=registers, spills=spills, shared=compiled.metadata.shared)


def _ptxas(ptx: str, target: str) -> tuple[int, int]:
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    ptxas = folder / ("ptxas-blackwell" if target == "sm_100" and (folder / "ptxas-blackwell").exists() else "ptxas")
    architecture = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(ptxas), "-v", f"--gpu-name={architecture}", "-o", "/dev/null", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = int(re.findall(r"Used (\d+) registers", report)[0])
    return registers, sum(map(int, re.findall(r"(\d+) bytes spill", report)))


def _amd(assembly: str) -> tuple[int, int]:
    counts = {name: int(re.findall(rf"\.{name}:\s+(\d+)", assembly)[0]) for name in ("vgpr_count", "vgpr_spill_count")}
    return counts["vgpr_count"], 4 * counts["vgpr_spill_count"]


def mlstm_cases(
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32),
    sizes: tuple[tuple[int, int], ...] = ((128, 256),),
    target: str = "sm_90",
) -> Iterator[tuple[str, list[Launched]]]:
    """Every launch of the mLSTM's forward and backward pass and of its step, at the shapes of the benchmark.

    Dense; and packed, with an initial state and with cotangents of the final one.
    """
    from torch_impl.kernels import mlstm

    hip = None if target.startswith("sm_") else "6"
    for dtype in dtypes:
        for K, V in sizes:
            name = f"{_TYPES[dtype]} K{K} V{V}"

            def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.empty(shape, dtype=dtype, device="meta")

            B, S, N = 8, 8192, 16
            tokens = [empty(B, S, N, K), empty(B, S, N, K), empty(B, S, N, V), empty(B, S, N), empty(B, S, N)]
            state = [empty(B, N, *shape, dtype=torch.float32) for shape in ((K, V), (K,), ())]
            none = (None, None, None)

            def dense(tokens=tokens, none=none):
                mlstm.mlstm_forward(*tokens)
                mlstm.mlstm_backward(*tokens, *none, None, tokens[2])

            def packed(tokens=tokens, state=state):
                flat = [x.flatten(0, 1) for x in tokens]
                bounds = torch.empty(len(tokens[0]) + 1, dtype=torch.int64, device="meta")
                mlstm.mlstm_forward(*flat, *state, bounds)
                mlstm.mlstm_backward(*flat, *state, bounds, flat[2], *state)

            def one(tokens=tokens, state=state):
                mlstm.mlstm_step(*(x[:, 0] for x in tokens), *state)

            wide = patch.object(mlstm, "hopper", lambda device: target == "sm_90")
            with wide, patch.object(torch.version, "hip", hip):
                found = {f"{name} dense": launches(mlstm, dense), f"{name} packed": launches(mlstm, packed)}
                found[f"{name} step"] = launches(mlstm, one)
            yield from found.items()


def report(cases: Iterator[tuple[str, list[Launched]]], target: str, workers: int = 2) -> Iterator[Compiled]:
    """Compile every different launch of ``cases``."""
    jobs: dict[tuple, tuple[Launched, str, str]] = {}
    for case, found in cases:
        for launched in found:
            constants = tuple(sorted(launched.constants.items()))
            jobs.setdefault((launched.kernel.fn.__name__, case, constants), (launched, case, target))
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda job: compile_for(*job), jobs.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=["sm_90"], metavar="TARGET", help=", ".join(SHARED_MEMORY))
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16", "float32"])
    options = parser.parse_args()
    dtypes = tuple(getattr(torch, name) for name in options.dtype or ["bfloat16", "float16", "float32"])
    for target in options.targets:
        for compiled in report(mlstm_cases(dtypes, target=target), target):
            print(json.dumps(asdict(compiled)), flush=True)
