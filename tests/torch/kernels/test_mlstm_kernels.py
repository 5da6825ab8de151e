"""The mLSTM's kernels against the float64 reference: values, all gradients, packing, strides, extremes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from reference import MLSTMState, mlstm, mlstm_backward, mlstm_step
from reference.backends import Request
from tests.grids import larger
from torch_impl._mlstm.arguments import Arguments, Cotangents, StepArguments
from torch_impl._mlstm.triton.launch import NO_RESIDUALS, ROWS, Residuals
from torch_impl._mlstm.triton.launch import mlstm_backward as backward
from torch_impl._mlstm.triton.launch import mlstm_forward as forward
from torch_impl._mlstm.triton.launch import mlstm_step as step
from torch_impl._mlstm.triton.plans import backward_plan, forward_plan
from torch_impl._records import names_by_option

# Largest ‖found − reference‖ / ‖reference‖ seen over the cases below: 6.3e-6 (gates of ±1e4), 9.5e-4, 1.3e-2. A
# bfloat16 gradient is a few roundings of 2⁻⁹ away; on a GPU float16's intermediates are rounded to TF32.
BOUND = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 4e-2}
INF = float("inf")


def names(options: tuple[str, ...]) -> tuple[str, ...]:
    """The residuals that options keep."""
    return tuple(name for option in options for name in names_by_option(Residuals)[option])


class Case:
    """Random inputs and cotangents, with what the reference says of them."""

    def __init__(
        self, B, S, N, K, V, device, dtype=torch.float32, bounds=None, state=True, cotangents=True, eps=0.0, edit=None
    ):
        generator = torch.Generator().manual_seed(S + 7 * K + V)
        lead = (B, S) if bounds is None else (bounds[-1],)
        B = B if bounds is None else len(bounds) - 1

        def draw(*shape: int, scale: float = 1.0, shift: float = 0.0, dtype: torch.dtype = dtype) -> torch.Tensor:
            return (torch.randn(shape, generator=generator) * scale + shift).to(dtype)

        i, f = draw(*lead, N, scale=2.0), draw(*lead, N, scale=2.0, shift=1.0)
        if edit is not None:
            edit(i, f)
        tokens = [draw(*lead, N, K), draw(*lead, N, K), draw(*lead, N, V), i, f]
        dh = draw(*lead, N, V)
        states = [[draw(B, N, *shape, dtype=torch.float32) for shape in ((K, V), (K,), ())] for _ in range(2)]
        self.dtype, self.eps = dtype, eps
        self.tokens = [x.to(device) for x in tokens]
        self.dh = dh.to(device)
        self.state = [x.to(device) if state else None for x in states[0]]
        self.dstate = [x.to(device) if cotangents else None for x in states[1]]
        self.cu_seqlens = None if bounds is None else torch.tensor(bounds, device=device)

        exact = [x.double().numpy() for x in tokens]
        initial, final = (MLSTMState(*(x.double().numpy() for x in part)) for part in states)
        options = {
            "initial_state": initial if state else None,
            "cu_seqlens": None if bounds is None else np.array(bounds),
            "eps": eps,
        }
        self.h, self.last = mlstm(*exact, return_state=True, **options)
        self.gradients = mlstm_backward(*exact, dh=dh.double().numpy(), dstate=final if cotangents else None, **options)

    def call(self, **options) -> Arguments:
        return Arguments(*self.tokens, *self.state, cu_seqlens=self.cu_seqlens, eps=self.eps, **options)

    @property
    def cotangents(self) -> Cotangents:
        return Cotangents(self.dh, *self.dstate)

    def run(self, keep: tuple[str, ...] = (), **options):
        """Forward and backward; returns h, the final state and the eight gradients."""
        call = self.call(**options)
        (h, *last), residuals = forward(call, names(keep))
        return h, last, backward(call, self.cotangents, residuals)

    def check(self, h, last, d) -> None:
        assert h.dtype == self.dtype and all(part.dtype == torch.float32 for part in last)
        assert [x.dtype for x in d[:5]] == [x.dtype for x in self.tokens]
        self.near(h, self.h, "h")
        C, n, m = (part.double().cpu().numpy() for part in last)
        with np.errstate(invalid="ignore"):
            scale = np.exp(np.nan_to_num(m - self.last.m, nan=0.0, posinf=0.0, neginf=0.0))
        self.near(torch.tensor(C * scale[..., None, None]), self.last.C, "C")
        self.near(torch.tensor(n * scale[..., None]), self.last.n, "n")
        self.near(torch.tensor(m), self.last.m, "m")
        for name, found in zip("qkvif", d[:5], strict=True):
            self.near(found, self.gradients[name], f"d{name}")
        if "initial_state" in self.gradients:
            for name, found, exact in zip("Cnm", d[5:], self.gradients["initial_state"], strict=True):
                self.near(found, exact, f"d{name}")

    def near(self, found: torch.Tensor, exact: np.ndarray, name: str) -> None:
        found = found.double().cpu().numpy()
        assert found.shape == exact.shape, name
        assert (np.isfinite(found) == np.isfinite(exact)).all(), name
        finite = np.isfinite(exact)
        error = np.linalg.norm(found[finite] - exact[finite])
        assert error <= BOUND[self.dtype] * np.linalg.norm(exact[finite]) + 1e-30, (name, error)


CLOSE = {torch.float32: 5e-6, torch.float16: 1.5e-3, torch.bfloat16: 1e-2}
"""Bounds of gates that are no extremes."""
MANY_HEADS = 1e-4
"""float32's bound on a GPU, where gradients are dominated by the few of many steps whose normaliser is next to 0: of
dq the composed backend is off by 3.8e-5 there."""


@pytest.mark.grid
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("K", "V"), [(128, 256), (256, 128), (64, 64)])
def test_sizes_that_people_use_give_the_same_bits_twice(K, V, dtype, device, monkeypatch) -> None:
    """Loops over several tiles of K and V, on a GPU with more programs than run at a time."""
    B, N = (2, 16) if device.type == "cuda" else (1, 1)
    case = Case(B, 130, N, K, V, device, dtype)
    h, last, gradients = case.run()
    monkeypatch.setitem(BOUND, dtype, CLOSE[dtype])
    case.near(h, case.h, "h")
    if device.type == "cuda" and dtype is torch.float32:
        monkeypatch.setitem(BOUND, dtype, MANY_HEADS)
    for name, found in zip("qkvif", gradients, strict=False):
        case.near(found, case.gradients[name], f"d{name}")
    for _ in range(3 if device.type == "cuda" else 1):
        again = case.run()
        for x, y in zip((h, *last, *gradients), (again[0], *again[1], *again[2]), strict=True):
            assert torch.equal(x, y)


SIZES = [
    (0, 5, 1, 3, 4), (2, 0, 2, 3, 5), (2, 1, 2, 1, 1), (1, 64, 1, 1, 1), (1, 65, 2, 33, 5), (1, 33, 1, 70, 70),
    larger((1, 130, 1, 20, 40)), larger((1, 33, 1, 140, 140)),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(sizes, device) -> None:
    case = Case(*sizes, device)
    case.check(*case.run())


@pytest.mark.grid
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 130, 1, 20, 40), (1, 65, 2, 130, 9)])
def test_half_precision(dtype, sizes, device) -> None:
    case = Case(*sizes, device, dtype=dtype)
    case.check(*case.run())


def test_gates_in_float32_over_half_values(device) -> None:
    case = Case(1, 40, 2, 8, 16, device)
    case.dtype = torch.bfloat16
    case.tokens = [*(x.bfloat16() for x in case.tokens[:3]), *case.tokens[3:]]
    case.dh = case.dh.bfloat16()
    case.check(*case.run())


@pytest.mark.parametrize(("chunk", "S"), [(1, 20), (16, 40), (100, 130), larger(256, 130)])
def test_the_chunk_changes_no_value(chunk, S, device) -> None:
    case = Case(1, S, 1, 9, 21, device, eps=1e-2)
    case.check(*case.run(chunk_size=chunk))


def test_two_lanes_with_uneven_blocks_to_a_chunk(device) -> None:
    case = Case(2, 90, 1, 6, 10, device)
    case.check(*case.run(chunk_size=64))


@pytest.mark.parametrize("bounds", [[0, 3, 3, 20, 21], [0, 0, 65, 65], [0], [0, 0, 0], larger([0, 3, 3, 40, 111])])
def test_packed_sequences(bounds, device) -> None:
    case = Case(0, 0, 2, 5, 9, device, bounds=bounds)
    case.check(*case.run())


@pytest.mark.parametrize("bounds", [[0, 50, 20, 70], [5, 20, 70], [-9, 90, 80, 70], [0, 10, 40]])
def test_a_packing_that_is_none_stays_inside_the_arrays(bounds, device) -> None:
    case = Case(0, 0, 1, 4, 4, device, bounds=[*range(len(bounds) - 1), 70])
    case.cu_seqlens = torch.tensor(bounds, device=device)
    h, last, d = case.run()
    assert all(torch.isfinite(x).all() for x in (h, *last, *d))


def test_absent_state_and_cotangents(device) -> None:
    case = Case(1, 20, 2, 5, 6, device, state=False, cotangents=False)
    case.check(*case.run())
    for kept in range(3):
        case = Case(1, 20, 1, 5, 6, device)
        case.dstate = [part if number == kept else None for number, part in enumerate(case.dstate)]
        zeros = [torch.zeros_like(part) for part in case.state]
        full = [part if part is not None else zero for part, zero in zip(case.dstate, zeros, strict=True)]
        few = backward(case.call(), Cotangents(None, *case.dstate))
        all_ = backward(case.call(), Cotangents(torch.zeros_like(case.dh), *full))
        assert all(torch.equal(one, other) for one, other in zip(few, all_, strict=True))


KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")


def launched(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of ``run``, and the names of the kernels that it launches."""
    from torch_impl._mlstm.triton import launch as mlstm

    seen, launch = [], mlstm.launch

    def noted(kernel, *args, **options) -> None:
        seen.append(kernel.__name__)
        launch(kernel, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlstm, "launch", noted)
        return run(), seen


@pytest.fixture(scope="module")
def nothing_kept(device) -> dict[bool, tuple[Case, Any, list[str]]]:
    """By whether it is packed: a case with its results and the kernels that are launched if nothing is kept."""
    lengths = {False: None, True: [0, 31, 31, 75]}
    cases = {packed: Case(2, 40, 1, 5, 6, device, bounds=bounds) for packed, bounds in lengths.items()}
    return {packed: (case, *launched(case.run)) for packed, case in cases.items()}


@pytest.mark.parametrize("keep", [*((name,) for name in KEEPS), KEEPS], ids="+".join)
def test_what_is_kept_is_not_computed_again_and_changes_no_value(keep, nothing_kept) -> None:
    case, plain, whole = nothing_kept["keep_M" not in keep]
    kept, seen = launched(lambda: case.run(keep=keep))
    for one, other in zip((plain[0], *plain[1], *plain[2]), (kept[0], *kept[1], *kept[2]), strict=True):
        # Scores are summed in tiles that differ between the two directions.
        assert torch.linalg.norm(one - other) <= 1e-5 * torch.linalg.norm(one)
    skipped = ["gates", "stabilisers"] * ("keep_M" in keep) + ["memories"] * ("keep_c" in keep)
    # Without m it writes m, and only its weights are left out.
    skipped += ["log_weights"] * ({"keep_M", "keep_gates"} <= set(keep))
    assert sorted([*seen, *skipped]) == sorted(whole)


def test_what_is_kept_is_what_is_read(device) -> None:
    """The first residual of each option, spoilt, spoils a gradient."""
    case = Case(1, 70, 1, 5, 6, device)
    _, residuals = forward(case.call(), Residuals._fields)
    good = backward(case.call(), case.cotangents, residuals)
    for keep in KEEPS:
        name = names((keep,))[0]
        spoilt = residuals._replace(**{name: getattr(residuals, name) + 0.5})
        bad = backward(case.call(), case.cotangents, spoilt)
        assert any(not torch.allclose(one, other, rtol=1e-3) for one, other in zip(good, bad, strict=True)), name


def test_exactly_the_residuals_that_are_named_are_returned(device) -> None:
    case = Case(1, 20, 1, 3, 4, device)
    for keep in ((), *((name,) for name in Residuals._fields), Residuals._fields):
        _, residuals = forward(case.call(), keep)
        assert tuple(name for name, x in residuals._asdict().items() if x is not None) == keep
    assert residuals != NO_RESIDUALS


def test_what_was_kept_tells_the_length_of_a_block(device) -> None:
    """torch's matmul precision, which chooses it, may change between the two directions."""
    case = Case(1, 33, 1, 5, 6, device)
    (h, *last), _ = forward(case.call())
    for keep in ("keep_G", "keep_gates", "keep_c"):
        _, residuals = forward(case.call(chunk_size=16), names((keep,)))
        d = backward(case.call(), case.cotangents, residuals)
        case.check(h, last, d)


def test_the_floor_of_one(device) -> None:
    # With m₀ = 0, i ≤ 0 and f = +∞ the stabiliser stays 0, and exp(−m) is that floor.
    def edit(i, f):
        i.clamp_(max=0.0)
        f.fill_(INF)

    case = Case(1, 40, 1, 5, 6, device, state=False, edit=edit)
    found, expected = case.run(stabilize_correctly=False), case.run()
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(one, other) for one, other in zip(found[2], expected[2], strict=True))


def _resets(i, f):
    f[0, [0, 7, 40, 41, 42]], f[0, 9] = -INF, INF
    i[0, [0, 3, 40, 41]] = -INF


def _huge(i, f):
    f.copy_(torch.where(f > 1, 1e4, -1e4))
    i.copy_(torch.where(i > 0, 1e4, -1e4))


def _open(i, f):
    f.fill_(INF)


def _empty(i, f):
    i.fill_(-INF)
    f[:, ::2] = -INF


@pytest.mark.grid
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("edit", [_resets, _huge, _open, _empty])
def test_extreme_gates(edit, dtype, device) -> None:
    case = Case(1, 65, 1, 5, 7, device, dtype=dtype, edit=edit)
    h, last, d = case.run()
    case.check(h, last, d)


@pytest.mark.parametrize(("S", "outweighs"), [(60, 4.0), (60, 20.0), (130, 12.0)])
def test_where_one_write_outweighs_all_others(S, outweighs, device) -> None:
    """Then dq, dk and the gates' gradients are differences of equal terms, and h, rounded, may not be among them; later
    blocks read small differences of that write, and add small differences to its gradient, as well."""

    def edit(i, f):
        f.add_(8.0)
        i.div_(2.0)
        i[0, 9] += outweighs

    case = Case(1, S, 1, 16, 32, device, dtype=torch.bfloat16, state=False, cotangents=False, edit=edit)
    case.tokens[3:] = [x.float() for x in case.tokens[3:]]
    h, last, d = case.run()
    case.check(h, last, d)
    if S > 64:
        case.near(d[0][:, 64:], case.gradients["q"][:, 64:], "dq of later blocks")
    case.near(d[1][:, 9:10], case.gradients["k"][:, 9:10], "dk of the write")


def test_where_one_write_outweighs_all_others_and_the_state_is_carried(device) -> None:
    def first(i, f):
        f.add_(8.0)
        i.div_(2.0)
        i[0, 9] += 10.0

    def second(i, f):
        f.add_(8.0)
        i.div_(2.0)

    before = Case(1, 60, 1, 16, 32, device, state=False, cotangents=False, edit=first)
    state = [torch.from_numpy(part).float().to(device) for part in before.last]
    case = Case(1, 70, 1, 16, 32, device, dtype=torch.bfloat16, cotangents=False, edit=second)
    case.state = state
    case.gradients = mlstm_backward(
        *(x.double().cpu().numpy() for x in case.tokens),
        initial_state=MLSTMState(*(x.double().cpu().numpy() for x in state)),
        dh=case.dh.double().cpu().numpy(),
    )
    d = case.run()[2]
    for name, found in zip("qkvif", d[:5], strict=True):
        case.near(found, case.gradients[name], f"d{name}")


def test_nothing_crosses_a_hard_reset(device) -> None:
    def edit(i, f):
        f[0, 20], f[0, 50] = -INF, -INF

    case = Case(1, 70, 1, 5, 7, device, edit=edit, cotangents=False)
    case.dh[:, 20:] = 0.0
    d = case.run()[2]
    # What is written from step 20 on is read by nothing that counts, and step 20 itself lets nothing through.
    assert all((x[:, 20:] == 0).all() for x in d[:5])
    assert (d[4][:, 1:20] != 0).all()


def test_strided_inputs(device) -> None:
    case = Case(2, 5, 2, 5, 6, device)
    straight = case.run()
    whole = case.tokens
    head_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in whole]
    reversed_axes = [x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim))) for x in whole]
    every_other = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in whole]
    for tokens in (head_first, reversed_axes, every_other):
        assert not tokens[0].is_contiguous()
        case.tokens, case.dh = tokens, case.dh.transpose(1, 2).contiguous().transpose(1, 2)
        h, _, d = case.run()
        assert torch.equal(h, straight[0])
        assert all(torch.equal(one, other) for one, other in zip(d, straight[2], strict=True))


def test_strides_beyond_32_bits_within_a_tile_are_copied() -> None:
    from torch_impl._mlstm.triton.launch import _addressable

    for strides in ((2**30, 2**26, 3, 1), (2**30, 6, 3, 2**24)):
        far = torch.empty_strided((2, 5, 2, 3), strides, device="meta")
        assert _addressable(far, False).stride() == (30, 6, 3, 1)
    near = torch.empty_strided((2, 5, 2, 3), (2**40, 2**24, 2**35, 2**20), device="meta")
    assert _addressable(near, False) is near


def test_a_batch_does_not_change_its_members(device) -> None:
    case = Case(2, 18, 2, 5, 6, device)
    h, last, d = case.run()
    case.tokens, case.dh = [x[1:2] for x in case.tokens], case.dh[1:2]
    case.state, case.dstate = [x[1:2] for x in case.state], [x[1:2] for x in case.dstate]
    h_alone, last_alone, d_alone = case.run()
    assert torch.equal(h[1:2], h_alone)
    assert all(torch.equal(x[1:2], y) for x, y in zip((*last, *d), (*last_alone, *d_alone), strict=True))


@pytest.mark.grid
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 7, 33), (1, 2, 200, 70), (0, 2, 3, 4)])
def test_step(sizes, dtype, device) -> None:
    B, N, K, V = sizes
    generator = torch.Generator().manual_seed(K)
    tokens = [torch.randn(B, N, *c, generator=generator).to(dtype) for c in ((K,), (K,), (V,), (), ())]
    state = [torch.randn(B, N, *c, generator=generator) for c in ((K, V), (K,), ())]
    arrays = (x.to(device) for x in (*tokens, state[0].mT.contiguous().mT, *state[1:]))
    (h, *after), _ = step(StepArguments(*arrays, eps=0.1, backend="triton"))
    exact, exact_state = mlstm_step(
        *(x.double().numpy() for x in tokens), MLSTMState(*(x.double().numpy() for x in state)), eps=0.1
    )
    for found, expected in zip((h, *after), (exact, *exact_state), strict=True):
        found = found.double().cpu().numpy()
        assert np.linalg.norm(found - expected) <= BOUND[dtype] * np.linalg.norm(expected)


def test_rows_say_what_they_take() -> None:
    row = ROWS[0]
    assert {row.operation for row in ROWS} == {"mlstm", "mlstm_step"}
    reasons = row.reasons(Request("mlstm", "cuda", "float64", {"K": 513, "V": 512}))
    assert "it takes float32, float16, bfloat16, but the values are float64" in reasons
    assert "it takes K up to 512, but the call has K=513" in reasons


def test_a_row_says_why_it_cannot_run_here(monkeypatch) -> None:
    from torch_impl._triton import interpreter

    request = Request("mlstm", "cpu", "float32")
    monkeypatch.setattr(interpreter, "_INSTALLED", False)
    assert ROWS[0].reasons(request) == ["Triton is not installed; `pip install triton` adds it"]
    monkeypatch.setattr(interpreter, "_INSTALLED", True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "set TRITON_INTERPRET=1" in ROWS[0].reasons(request)[0]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert ROWS[0].reasons(request) == []


@pytest.mark.parametrize("plan", [forward_plan, backward_plan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plans_cover_the_chunk_asked_for(plan, dtype) -> None:
    for chunk, expected in ((1, 16), (16, 16), (17, 32), (64, 64), (100, 128), (4096, 4096)):
        sizes = plan(dtype, 128, 256, chunk)
        if plan is forward_plan:
            assert sizes.L * sizes.every == expected
        assert sizes.L <= max(expected, 16) and sizes.L & (sizes.L - 1) == 0


def test_a_long_sum_of_half_products_is_kept_in_float32(device) -> None:
    # Gates hold everything and weigh it unevenly: rounding a weighted key to bfloat16 would cost 1e-3.
    case = Case(1, 130, 1, 3, 4, device, dtype=torch.bfloat16, state=False, edit=lambda i, f: f.fill_(8.0))
    (_, *last), _ = forward(Arguments(*case.tokens))
    scale = np.exp(last[2].double().cpu().numpy() - case.last.m)[..., None, None]
    error = np.abs(last[0].double().cpu().numpy() * scale - case.last.C).max()
    assert error <= 2e-5 * np.abs(case.last.C).max()
