"""``python -m benchmarks.gpu.aot_pallas``: lower every Pallas kernel for an H100 that need not be present (`make aot`).

Calls go through the public functions of `jax_impl`, forward and backward, so that the lowered code is the code that
runs.
"""

import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp

import jax_impl
from benchmarks.gpu.lowering import MOST_BLOCKS, lowered
from jax_impl._pallas import SHARED_MEMORY

RESULTS = Path(__file__).parents[1] / "results"
DTYPES = ("bfloat16", "float16", "float32")
HEADS = ((64, 64), (100, 130), (128, 256), (512, 512))
"""K and V of the mLSTM."""
WIDTHS = (16, 64, 128, 256, 1024)
"""H of the GRU."""
B, S, N = 2, 200, 2
MANY = {"70,000 sequences": (70_000, 64, 2), "70,000 heads": (1, 64, 70_000)}
"""B, S and N of calls of the mLSTM with more blocks than the second and third axis of a grid may have."""


@dataclass(frozen=True)
class Entry:
    """The result of lowering a kernel; a kernel that is lowered identically in several calls is listed once per call.

    Attributes:
        operation, dtype, sizes, packed: the call.
        kernel: the kernel's name.
        grid: number of blocks on each of CUDA's three axes.
        products: dtypes of its tensor core products, each as sum, left and right operand; empty without a product.
        shared: bytes of shared memory per block.
        fits: whether that is no more than 227 KiB.
    """

    operation: str
    dtype: str
    sizes: str
    packed: bool
    kernel: str
    grid: tuple[int, ...]
    products: tuple[str, ...]
    shared: int
    fits: bool


@click.command("aot-pallas")
@click.option("--op", "operations", type=click.Choice(("mlstm", "mlstm_step", "gru")), multiple=True)
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, help="Only this dtype.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS / "aot-pallas.json"
)
def aot_pallas_command(operations: tuple[str, ...], dtypes: tuple[str, ...], json_path: Path) -> None:
    """Lower every kernel at the sizes that it is designed for and write the results as JSON and as a .md table.

    Exits with status 1 if a kernel needs too much shared memory, has more blocks than CUDA launches, or has a product
    of float32 operands, which tensor cores would round to TF32.
    """
    entries: list[Entry] = []
    for case in cases():
        if (not operations or case.operation in operations) and (not dtypes or case.dtype in dtypes):
            entries += (found := case.entries())
            click.echo(f"{case.operation} {case.dtype} {case.sizes}{' packed' * case.packed}: {len(found)} kernels")
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(
        json.dumps({"versions": versions(), "kernels": [asdict(entry) for entry in entries]}, indent=1) + "\n"
    )
    json_path.with_suffix(".md").write_text(page(entries))
    click.echo(f"{json_path} and {json_path.with_suffix('.md').name}")
    if any(map(refused, entries)):
        raise SystemExit(1)


@dataclass(frozen=True)
class Case:
    """A call whose two passes are lowered; ``make()`` returns the function and the shapes of its arguments."""

    operation: str
    dtype: str
    sizes: str
    packed: bool
    make: Callable[[], tuple[Callable, tuple]]

    def entries(self) -> list[Entry]:
        function, arguments = self.make()
        # The gradient of a step uses the kernels of a sequence, which have their own lines.
        call = function if self.operation == "mlstm_step" else partial(_both_passes, function)
        _, kernels = lowered(call, *arguments)
        return [
            Entry(
                *(self.operation, self.dtype, self.sizes, self.packed),
                *(kernel.name, kernel.grid, kernel.products, kernel.shared, kernel.shared <= SHARED_MEMORY),
            )
            for kernel in dict.fromkeys(kernels)
        ]


def cases() -> Iterator[Case]:
    """Every call that is lowered."""
    for dtype in DTYPES:
        for K, V in HEADS:
            for packed in (False, True):
                yield Case("mlstm", dtype, f"K {K}, V {V}", packed, partial(_mlstm, dtype, K, V, packed))
            yield Case("mlstm_step", dtype, f"K {K}, V {V}", False, partial(_mlstm_step, dtype, K, V))
        for H in WIDTHS:
            for packed in (False, True):
                yield Case("gru", dtype, f"H {H}", packed, partial(_gru, dtype, H, packed))
    for words, many in MANY.items():
        yield Case("mlstm", "bfloat16", words, False, partial(_mlstm, "bfloat16", 64, 64, False, many))
        yield Case("mlstm_step", "bfloat16", words, False, partial(_mlstm_step, "bfloat16", 64, 64, many))


def refused(entry: Entry) -> bool:
    launches = all(blocks <= most for blocks, most in zip(entry.grid, MOST_BLOCKS, strict=True))
    return not entry.fits or not launches or any(product != "f32.bf16.bf16" for product in entry.products)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in ("jax", "jaxlib")}}


def page(entries: list[Entry]) -> str:
    """The table in Markdown, with one line for kernels that differ only in the sizes of the call."""
    of = versions()
    intro = f"""# Every Pallas kernel, lowered ahead of time

For an H100 that was not there, by `make aot` (JAX {of["jax"]}, Python {of["python"]}): both passes of every
call, through the public functions. A kernel fits where a block takes at most {SHARED_MEMORY:,} bytes of shared memory;
no grid is larger than CUDA allows.
Products: sum, left and right operand, as the lowered module has them. Registers are unknown until a GPU compiles it.

| operation | kernel | values | products | shared memory, bytes | calls |
|---|---|---|---|---|---|
"""
    lines: dict[str, list[str]] = {}
    for entry in entries:
        operands = ", ".join(entry.products) or "none"
        shared = f"{entry.shared:,}" + ("" if entry.fits else ", does not fit")
        line = f"| {entry.operation} | `{entry.kernel}` | {entry.dtype} | {operands} | {shared} |"
        calls = lines.setdefault(line, [])
        if entry.packed and entry.sizes in calls:
            calls[calls.index(entry.sizes)] += " (packed too)"
        else:
            calls.append(entry.sizes + " (packed)" * entry.packed)
    return intro + "".join(f"{line} {'; '.join(calls)} |\n" for line, calls in lines.items())


def _both_passes(function: Callable, *arguments: Any) -> Any:
    """The result and the gradients; the cotangents are the result itself, because it has their shapes."""
    result, pull_back = jax.vjp(function, *arguments)
    return result, pull_back(result)


def _mlstm(dtype: str, K: int, V: int, packed: bool, sizes: tuple = (B, S, N)) -> tuple[Callable, tuple]:
    B, S, N = sizes
    tokens = (B * S,) if packed else (B, S)
    q, v, gate = _shape(dtype, *tokens, N, K), _shape(dtype, *tokens, N, V), _shape(dtype, *tokens, N)

    def call(packing: Any, q: Any, k: Any, v: Any, i: Any, f: Any, state: Any) -> Any:
        options = {"initial_state": state, "return_state": True, "cu_seqlens": packing, "kernel_backend": "pallas"}
        return jax_impl.mlstm(q, k, v, i, f, **options)

    return partial(call, _packing() if packed else None), (q, q, v, gate, gate, _state(B, N, K, V))


def _mlstm_step(dtype: str, K: int, V: int, sizes: tuple = (B, S, N)) -> tuple[Callable, tuple]:
    B, _, N = sizes
    q, v, gate = _shape(dtype, B, N, K), _shape(dtype, B, N, V), _shape(dtype, B, N)
    return partial(jax_impl.mlstm_step, kernel_backend="pallas"), (q, q, v, gate, gate, _state(B, N, K, V))


def _gru(dtype: str, H: int, packed: bool) -> tuple[Callable, tuple]:
    x = _shape(dtype, *((B * S,) if packed else (B, S)), N, H)
    weight, h = _shape(dtype, N, H, H), _shape("float32", B, N, H)

    def call(packing: Any, x: Any, xf: Any, xr: Any, W: Any, Wf: Any, Wr: Any, h: Any) -> Any:
        return jax_impl.gru(x, W, xf, Wf, xr, Wr, h, cu_seqlens=packing, kernel_backend="pallas")

    return partial(call, _packing() if packed else None), (x, x, x, weight, weight, weight, h)


def _packing() -> jax.Array:
    return jnp.array([0, S // 2, B * S], jnp.int32)


def _state(B: int, N: int, K: int, V: int) -> Any:
    return tuple(_shape("float32", B, N, *sizes) for sizes in ((K, V), (K,), ()))


def _shape(dtype: str, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


if __name__ == "__main__":
    aot_pallas_command()
