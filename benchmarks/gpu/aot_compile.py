"""Compile Triton kernels ahead of time for a GPU that need not be present, from the launches that a call makes."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.races import races
from torch_impl._triton.launch import FUSED

SHARED_MEMORY = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""Bytes of shared memory available to a program, by target."""

TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, its arguments and constexprs by name, and the number of warps and stages."""

    kernel: Any
    arguments: dict[str, Any]
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__

    def signature(self) -> tuple[dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]:
        """The types of the arguments, the constants among them and known properties, in the form the compiler takes."""
        types: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        for number, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            if parameter.is_constexpr:
                types[parameter.name], constants[(number,)] = "constexpr", value
            else:
                # Triton looks into tuples in any case.
                known = not parameter.do_not_specialize or isinstance(value, tuple)
                types[parameter.name] = _specialise(value, (number,), constants, attributes, known)
        return types, constants, attributes

    def identity(self) -> str:
        """Equal for launches that compile to the same code."""
        return repr((self.name, self.num_warps, self.num_stages, *self.signature()))


@dataclass(frozen=True)
class Compiled:
    """Resources of a kernel: ``registers`` per thread; ``spills`` per thread and ``shared`` memory, in bytes; and the
    number of its `races`."""

    kernel: str
    num_warps: int
    num_stages: int
    registers: int
    spills: int
    shared: int
    races: int


def launches(module: ModuleType, call: Callable[[], Any]) -> list[Launched]:
    """The launches that ``call`` makes through ``module``, without running them; arguments may be meta tensors."""
    seen = []

    def record(kernel, grid, device, how, **arguments):
        seen.append(Launched(kernel, arguments, how.num_warps, how.num_stages))

    with patch.object(module, "launch", record):
        call()
    return seen


def _specialise(x: Any, path: tuple[int, ...], constants: dict, attributes: dict, known: bool) -> Any:
    """The type of an argument as a launch would state it: None is a constant and, if the value is to be ``known``, 1 is
    one too, and multiples of 16 are marked."""
    if isinstance(x, tuple):
        return tuple(_specialise(part, (*path, at), constants, attributes, known) for at, part in enumerate(x))
    if x is None or (known and isinstance(x, int) and x == 1):
        constants[path] = x
        return "constexpr"
    if isinstance(x, float):
        return "fp32"
    if known and (isinstance(x, torch.Tensor) or x % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]
    if isinstance(x, torch.Tensor):
        return f"*{TYPES[x.dtype]}"
    return "i32" if -(2**31) <= x < 2**31 else "i64"


def compile_for(launched: Launched, target: str) -> Compiled:
    """Compile a launch's kernel for ``sm_80``, ``sm_90``, ``sm_100`` or ``gfx942`` and read its resources."""
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    nvidia = target.startswith("sm_")
    architecture = int(target[3:]) if nvidia else 0
    gpu = GPUTarget("cuda", architecture, 32) if nvidia else GPUTarget("hip", target, 64)
    options = {"num_warps": launched.num_warps, "num_stages": launched.num_stages}
    source = ASTSource(launched.kernel, *launched.signature())
    compiled = triton.compile(source, target=gpu, options={**options, **FUSED})
    registers, spills = _nvidia(compiled.asm, architecture) if nvidia else _amd(compiled.asm["amdgcn"])
    shared, found = compiled.metadata.shared, races(compiled.asm["ttgir"])
    return Compiled(launched.name, **options, registers=registers, spills=spills, shared=shared, races=len(found))


_REGISTER_ALLOCATION = ((), ("--regAllocOptLevel=2",))
"""Options of the assembler, of which some versions of Triton pass none and others the second."""


def _nvidia(assembly: Any, architecture: int) -> tuple[int, int]:
    """Registers and spills. Spilled values are on the stack; without a stack, the assembler need not run again."""
    from triton.backends.nvidia.compiler import get_ptxas  # pyright: ignore[reportMissingImports]

    report = _report(_tools() / "cuobjdump", ["-res-usage"], assembly["cubin"])
    registers, stack = (int(re.findall(rf"{name}:(\d+)", report)[0]) for name in ("REG", "STACK"))
    if stack == 0:
        return registers, 0
    ptx = assembly["ptx"]
    target = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)[0]
    for options in _REGISTER_ALLOCATION:
        # Which of its two assemblers Triton takes for a GPU depends on its version.
        command = ["-v", "-lineinfo", *options, f"--gpu-name={target}", "-o", "/dev/null"]
        report = _report(Path(get_ptxas(architecture).path), command, ptx.encode())
        found = spilled(report, registers, stack)
        if found is not None:
            return registers, found
    return registers, stack


def spilled(report: str, registers: int, stack: int) -> int | None:
    """Bytes spilled, stores and loads together, from the assembler's report; None if it is of another kernel, whose
    registers or stack differ."""
    if f"{stack} bytes stack frame" not in report or f"Used {registers} registers" not in report:
        return None
    return sum(map(int, re.findall(r"(\d+) bytes spill", report)))


def _tools() -> Path:
    import triton  # pyright: ignore[reportMissingImports]

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def _report(tool: Path, options: list[str], text: bytes) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        done = subprocess.run([tool, *options, file.name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def _amd(assembly: str) -> tuple[int, int]:
    counts = {name: int(re.findall(rf"\.{name}:\s+(\d+)", assembly)[0]) for name in ("vgpr_count", "vgpr_spill_count")}
    return counts["vgpr_count"], 4 * counts["vgpr_spill_count"]
