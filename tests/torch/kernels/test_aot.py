"""The default kernels compile for GPUs that are not there, spill nothing, and fit into shared memory."""

from importlib.util import find_spec
from typing import Any

import pytest

from torch_impl._triton.interpreter import interpreted

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(interpreted(), reason="this process interprets kernels"),
]

MLSTM = {
    *("gates", "stabilisers", "log_weights", "memories", "outputs"),
    *("normalisers", "memory_gradients", "gradients"),
}
RECURRENT = {
    *("forward_resident", "forward_streamed", "factors", "factors_gates", "factors_candidate"),
    *("backward_resident", "backward_streamed", "weights_gradient"),
}
REST = {"step", "cumulative", "decay", "decay_backward"}
H16, H64, H256 = "B8 S4096 N85 H16", "B16 S1024 N12 H64", "B128 S128 N1 H256"


SPILLED = {
    ("gfx942", "normalisers", "mlstm K100 V72 odd", "bf16", 0, 4),
    ("sm_100", "backward_resident", "gru reset after B16 S1024 N8 H128", "bf16", 0, 106),
    ("sm_80", "backward_resident", "gru B8 S1024 N8 H32", "fp16", 0, 8),
    ("sm_80", "backward_resident", "gru reset after B16 S1024 N12 H64", "fp16", 0, 24),
    ("sm_80", "backward_resident", "gru reset after B8 S1024 N8 H32", "fp16", 0, 8),
    ("sm_80", "backward_streamed", "slstm B128 S128 N1 H256", "bf16", 0, 24),
    ("sm_80", "forward_resident", "slstm B8 S4096 N85 H16", "fp32", 0, 8),
    ("sm_80", "forward_streamed", "slstm B16 S1024 N8 H128", "bf16", 0, 16),
    ("sm_80", "forward_streamed", "slstm B16 S1024 N8 H128", "fp16", 0, 16),
    ("sm_80", "memory_gradients", "mlstm K100 V72 odd", "fp32", 0, 8),
    ("sm_90", "backward_resident", "gru reset after B16 S1024 N8 H128", "bf16", 0, 106),
    ("sm_90", "backward_streamed", "slstm B16 S512 N8 H512", "bf16", 0, 40),
    ("sm_90", "forward_resident", "gru reset after B8 S4096 N85 H16", "fp16", 5, 8),
    ("sm_90", "forward_streamed", "slstm B16 S512 N8 H512", "bf16", 0, 32),
    ("sm_90", "forward_streamed", "slstm B16 S512 N8 H512", "fp16", 0, 40),
    ("sm_90", "gradients", "mlstm K100 V72 odd", "fp16", 0, 80),
}
"""What spills under Triton 3.6 although none should: target, kernel, call, dtype, plan, bytes a thread. None is of a
shape for which the kernels of sm_90 are designed, but one that tuning may choose."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "mlstm", "recurrent", "others"),
    [
        ("bfloat16", ("dense", "step"), (H64, H256), REST),
        ("float16", ("packed",), (H16, H256), set()),
        ("float32", ("dense",), (H16, H256), set()),
    ],
)
def test_aot_default_kernels_for_hopper(dtype, mlstm, recurrent, others, tmp_path, monkeypatch, request) -> None:
    """At the shapes they are designed for; ``python -m benchmarks aot`` does other targets, calls and plans."""
    from benchmarks.gpu.aot import compiled, refused

    if request.config.getoption("grids", "whole") == "whole":
        mlstm, recurrent, others = ("dense", "packed", "step"), (H16, H64, H256), REST
    # One thread: CPython 3.11 now and then fails to parse in several ("AST constructor recursion depth mismatch").
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    calls = {"mlstm": mlstm, "gru": recurrent, "slstm": recurrent, "sums": bool(others)}
    entries = list(compiled("sm_90", (dtype,), all_plans=False, jobs=1, **calls))
    assert {entry.kernel for entry in entries} == MLSTM | RECURRENT | others
    assert [entry for entry in entries if refused(entry)] == []


@pytest.mark.parametrize(("table", "triton", "plans"), [("aot-triton", "3.6.", 3), ("aot-triton-3.9", "3.9.", 1)])
def test_the_committed_tables_hold_every_kernel_and_no_default_that_spills(table, triton, plans) -> None:
    """Whatever the target, but for those that are known; under Triton 3.6, on sm_90 those that tuning may choose too.

    The table of the newest Triton has default plans alone.
    """
    import json

    from benchmarks.gpu.aot import DTYPES, RESULTS, TARGETS

    document = json.loads((RESULTS / f"{table}.json").read_text())
    assert document["versions"]["triton"].startswith(triton)
    kernels = document["kernels"]
    for target in TARGETS:
        mine = [entry for entry in kernels if entry["target"] == target]
        assert {entry["kernel"] for entry in mine} == MLSTM | RECURRENT | REST, target
        assert {entry["dtype"] for entry in mine} == set(DTYPES.values()), target
        assert len({entry["plan"] for entry in mine}) >= plans, target
        assert all(entry["fits"] for entry in mine), target
    chosen = [entry for entry in kernels if entry["plan"] == 0 or entry["target"] == "sm_90"]
    names = ("target", "kernel", "case", "dtype", "plan", "spills")
    spilled = {tuple(entry[name] for name in names) for entry in chosen if entry["spills"]}
    if table == "aot-triton":
        assert spilled == SPILLED
        assert [entry for entry in kernels if entry["races"]] == []
    else:
        assert spilled == set()


def test_what_is_refused() -> None:
    from dataclasses import replace

    from benchmarks.gpu.aot import Entry, page, refused

    good = Entry("sm_90", "gates", "mlstm", "bf16", 0, 1, 1, 34, 0, 0, 0, True)
    assert not refused(good)
    assert refused(replace(good, spills=4)) and refused(replace(good, fits=False))
    assert refused(replace(good, races=1)) and refused(replace(good, races=1, plan=1))
    assert not refused(replace(good, spills=4, plan=1)) and not refused(replace(good, spills=4, target="gfx942"))
    text = page([good, replace(good, plan=2, spills=4, dtype="fp32")], {"triton": "3.6.0"})
    assert "| gates | 1 | 34 | 0 | 0 | 1 | 34 | **4** | 0 |" in text
    assert "Of 2 kernels 1 spill, race or do not fit:" in text
    assert "- other plan 2 gates, mlstm fp32: 34 registers, 4 bytes spilled, 0 bytes shared" in text
    assert "None of 1 kernels spills or has a race, and all fit." in page([good], {})


@pytest.mark.parametrize("apart", [False, True])
def test_a_race_is_seen(apart) -> None:
    """A fault of Triton (triton-lang/triton#6691), which an H100 showed: a second use of a load takes a buffer away."""
    import torch

    from benchmarks.gpu.aot_compile import Launched, compile_for
    from tests.torch.kernels.racing_loop import product_and_sum

    x, y = torch.empty(64, 256, dtype=torch.bfloat16), torch.empty(256, 64, dtype=torch.bfloat16)
    arguments = {"x": x, "y": y, "product": torch.empty(64, 64), "sums": torch.empty(64), "K": 256, "APART": apart}
    assert compile_for(Launched(product_and_sum, arguments, 4, 2), "sm_90").races == (0 if apart else 1)


def test_buffers_in_turn_are_no_race() -> None:
    """A loop with a buffer more than iterations ahead; in another region, names occur again."""
    from benchmarks.gpu.races import races

    def code(buffers: int, pending: int) -> str:
        loop = f"""
            %a = ttg.local_alloc : () -> !ttg.memdesc<{buffers}x64xbf16>
            %v = ttg.memdesc_index %a[%c0]
            %t = ttg.async_copy_global_to_local %p, %v
            %s = scf.for %i = %c0 to %n step %c1 {{
              %w = ttg.memdesc_index %a[%i]
              %d = ttng.warp_group_dot %w, %w, %z {{isAsync = true}}
              %e:2 = ttng.warp_group_dot_wait %d, %w {{pendings = {pending} : i32}}
              %u = ttg.memdesc_index %a[%j]
              %r = ttg.async_copy_global_to_local %p, %u
              scf.yield %e#0
            }}"""
        return loop + loop

    assert [race.iterations for race in races(code(1, 1))] == [0, 0]
    assert [race.iterations for race in races(code(2, 2))] == [1, 1]
    assert races(code(2, 1)) == races(code(1, 0)) == races(code(3, 2)) == []


def test_spills_are_those_of_the_kernel_that_was_compiled() -> None:
    """Another assembler, or other options, may need other registers: its figures are not taken."""
    from benchmarks.gpu.aot_compile import spilled

    report = "    24 bytes stack frame, 20 bytes spill stores, 16 bytes spill loads\nptxas info : Used 128 registers"
    assert spilled(report, 128, 24) == 36
    assert spilled(report, 96, 24) is None and spilled(report, 128, 32) is None
    array = "    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info : Used 40 registers"
    assert spilled(array, 40, 24) == 0


def test_launches_that_compile_alike_are_compiled_once() -> None:
    from benchmarks.gpu.aot_launches import cases

    first, second = (
        next(iter(cases("sm_90", most_plans=1, mlstm=("dense",), gru=(), slstm=()))).launched for _ in range(2)
    )
    names, different = [launched.name for launched in first], {launched.identity() for launched in first}
    assert different == {launched.identity() for launched in second}
    # The backward pass needs the stabilisers and the log weights again.
    assert all(names.count(name) == 2 for name in ("gates", "stabilisers", "log_weights", "memories"))
    assert len(different) == len(first) - 3


def test_every_launch_states_whether_products_and_sums_are_fused() -> None:
    """Triton's own default is to change."""
    import torch

    from torch_impl._triton.launch import Launch, launch

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda **options: seen.append((grid, options))

    seen: list[Any] = []
    launch(Kernel(), 3, torch.device("cpu"), Launch(2, 1), n=5)
    assert seen == [((3,), {"n": 5, "num_warps": 2, "num_stages": 1, "enable_fp_fusion": True})]


def test_sizes_of_a_batch_are_compiled_into_no_kernel() -> None:
    """Calls with other B, S and N launch the same kernels; one has sizes of 1 and one has multiples of 16.

    Kernels that read gates, ``(B, S, N)``, are compiled for strides of 1 and for multiples of 16. WIDTH, of a scan over
    the blocks of a sequence, follows S.
    """
    import torch

    from benchmarks.gpu.aot_compile import launches
    from torch_impl._mlstm.arguments import Arguments, Cotangents
    from torch_impl._mlstm.triton import launch as mlstm

    def programs(B: int, S: int, N: int) -> set[str]:
        q, gate = (torch.empty((B, S, N, *shape), dtype=torch.bfloat16, device="meta") for shape in ((32,), ()))
        x = Arguments(q=q, k=q, v=q, i=gate, f=gate)

        def both() -> None:
            mlstm.mlstm_forward(x)
            mlstm.mlstm_backward(x, Cotangents(dh=q))

        others = ("gates", "log_weights", "gradients", "stabilisers")
        return {one.identity() for one in launches(mlstm, both) if one.name not in others}

    assert programs(1, 5, 1) == programs(16, 1024, 16) == programs(3, 70, 2)


@pytest.mark.parametrize("why", ["odd sizes", "an odd address", "odd strides", "fits"])
def test_what_would_not_be_read_16_bytes_at_a_time_is_copied(why) -> None:
    """Kernels see multiples of 16 alone: K, V, the strides and addresses of q, k, v, dh, and of the states."""
    import torch

    from benchmarks.gpu.aot_compile import launches
    from torch_impl._mlstm.arguments import Arguments, Cotangents
    from torch_impl._mlstm.triton import launch as mlstm

    B, S, N, K, V = (2, 5, 3, 20, 24) if why == "odd sizes" else (2, 5, 3, 16, 32)

    def draw(*shape: int) -> torch.Tensor:
        if why == "an odd address":
            size = torch.Size(shape).numel()
            return torch.randn(size + 1)[1:].view(shape)
        return torch.randn(*shape[:-1], shape[-1] + 1)[..., :-1] if why == "odd strides" else torch.randn(shape)

    x = Arguments(q=draw(B, S, N, K), k=draw(B, S, N, K), v=draw(B, S, N, V), i=draw(B, S, N), f=draw(B, S, N))
    x = x._replace(C=draw(B, N, K, V), n=draw(B, N, K), m=torch.zeros(B, N))
    dh, dC, dn = draw(B, S, N, V), draw(B, N, K, V), draw(B, N, K)
    given = {part.data_ptr() for part in (x.q, x.k, x.v, x.C, x.n, dh, dC, dn) if part is not None}

    def both() -> None:
        (h, C, n, _), residuals = mlstm.mlstm_forward(x, mlstm.Residuals._fields)
        assert (h.shape, C.shape, n.shape) == (x.v.shape, (B, N, K, V), (B, N, K))
        parts = (h, C, n, residuals.C_start, residuals.n_last)
        assert all(part is not None and part.is_contiguous() for part in parts)
        gradients = mlstm.mlstm_backward(x, Cotangents(dh=dh, dC=dC, dn=dn, dm=x.m), residuals)
        wanted = (*x[:5], x.C, x.n, x.m)
        assert [d.shape for d in gradients] == [part.shape for part in wanted if part is not None]

    seen = launches(mlstm, both)
    wide = ("q", "k", "v", "dh", "C_first", "n_first", "dC_last", "dn_last", "h", "dq", "dk", "dv")
    for launched in seen:
        for name, value in launched.arguments.items():
            if name in wide and value is not None:
                assert value.data_ptr() % 16 == 0, (launched.name, name)
                assert all(stride % 16 == 0 for stride in value.stride()[:-1]), (launched.name, name)
        assert launched.arguments.get("K", 16) % 16 == launched.arguments.get("V", 16) % 16 == 0
    used = {value.data_ptr() for launched in seen for value in launched.arguments.values() if torch.is_tensor(value)}
    assert (given <= used) if why == "fits" else not given & used
