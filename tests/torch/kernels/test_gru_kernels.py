"""The GRU's kernels against the float64 reference: values, all gradients, head counts, packing, strides, extremes."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from reference import gru, gru_backward
from reference.backends import Request
from tests.grids import larger
from torch_impl._gru.arguments import Arguments, Cotangents
from torch_impl._gru.triton import launch
from torch_impl._gru.triton.launch import ROWS
from torch_impl._recurrent.triton.plans import Plan, default_plan

# Largest ‖found − reference‖ / ‖reference‖ seen over the cases below: 3.7e-7, 1.4e-3, 4.9e-3. A bfloat16
# gradient is a few roundings of 2⁻⁹ away; float16's operands are rounded to TF32 in the backward pass.
BOUND = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 1.5e-2}
NAMES = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight")
INF = float("inf")
both_forms = pytest.mark.parametrize("after", [False, True], ids=["reset before", "reset after"])
STREAMED = 65
"""The narrowest head whose float32 weights are read again at every step, in several tiles of units and of inputs."""


def heads_of(H: int) -> tuple[int, ...]:
    """Two heads, or one where many tiles are slow under the interpreter; `test_packed` has two with as many tiles."""
    return (2 if H < STREAMED else 1,) * 6


class Case:
    """Random inputs and cotangents, with what the reference says of them."""

    def __init__(self, B, S, H, device, heads=(2,) * 6, dtype=torch.float32, bounds=None, state=True, dstate=True,
                 dy=True, clip=None, edit=None, scale=1.0, after=False):  # fmt: skip
        generator = torch.Generator().manual_seed(S + 7 * H)
        lead, N = ((B, S) if bounds is None else (bounds[-1],)), max(heads)
        B = B if bounds is None else len(bounds) - 1

        def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = dtype) -> torch.Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(dtype)

        arrays = [draw(h, H, H, scale=H**-0.5) if n % 2 else draw(*lead, h, H) for n, h in enumerate(heads)]
        if edit is not None:
            edit(*arrays)
        h0, dlast = (draw(B, N, H, dtype=torch.float32) for _ in range(2))
        dys = draw(*lead, N, H, scale=scale)
        bias = draw(heads[1], H) if after else None
        self.dtype, self.clip, self.after = dtype, clip, after
        self.arrays = tuple(x.to(device) for x in arrays)
        self.bias = bias.to(device) if bias is not None else None
        self.state, self.dlast = h0.to(device) if state else None, dlast.to(device) if dstate else None
        self.dy = dys.to(device) if dy else None
        self.cu_seqlens = None if bounds is None else torch.tensor(bounds, device=device)

        exact = [x.double().numpy() for x in arrays]
        rest = (h0.double().numpy() if state else None, clip, None if bounds is None else np.array(bounds))
        form = {"reset_after": after, "recurrent_bias": None if bias is None else bias.double().numpy()}
        self.y, self.last = gru(*exact, *rest, **form)
        dys = dys.double().numpy() if dy else np.zeros(self.y.shape)
        self.gradients = gru_backward(*exact, *rest, **form, dy=dys, dstate=dlast.double().numpy() if dstate else None)

    def run(self):
        options = {"gradient_clipping": self.clip, "reset_after": self.after}
        call = Arguments(*self.arrays, self.state, self.bias, self.cu_seqlens, **options)
        (y, last), residuals = launch.gru_forward(call, launch.worth_keeping(call))
        residuals = residuals._replace(output=y)
        return y, last, launch.gru_backward(call, Cotangents(self.dy, self.dlast), residuals)

    def check(self, y, last, gradients) -> None:
        assert (y.dtype, last.dtype) == (self.dtype, torch.float32)
        assert [x.dtype for x in gradients] == [self.dtype] * 6 + [torch.float32] + [self.dtype] * self.after
        self.near(y, self.y, "y")
        self.near(last, self.last, "last")
        names = (*NAMES, "input_state", "recurrent_bias")[: len(gradients)]
        for name, found in zip(names, gradients, strict=True):
            if name in self.gradients:
                self.near(found, self.gradients[name], f"d{name}")

    def near(self, found: torch.Tensor, exact: np.ndarray, name: str) -> None:
        found = found.double().cpu().numpy()
        assert found.shape == exact.shape, name
        error = np.linalg.norm(found - exact)
        assert error <= BOUND[self.dtype] * np.linalg.norm(exact) + 1e-30, (name, error, np.linalg.norm(exact))


@both_forms
@pytest.mark.grid
@pytest.mark.parametrize("S", [0, 1, 5, 64])
@pytest.mark.parametrize("H", [1, 16, 17])
def test_values_and_gradients(S, H, after, device) -> None:
    case = Case(2, S, H, device, after=after)
    case.check(*case.run())


# The first has more tokens than one partial sum of the weights' gradients; the second more rows than a program holds;
# the third has a tile between two others.
@both_forms
@pytest.mark.parametrize(("B", "S", "H", "N"), [(8, 33, 5, 2), (9, 2, 3, 4), (2, 3, 130, 1), larger(2, 5, 64, 2)])
def test_longer_and_wider(B, S, H, N, after, device) -> None:
    case = Case(B, S, H, device, heads=(1, N, 1, 1, N, N), after=after)
    case.check(*case.run())


@both_forms
@pytest.mark.grid
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("B", "S", "H"), [(2, 5, 16), (2, 3, 100), (2, 1, 260)])
def test_half_precision(dtype, B, S, H, after, device) -> None:
    case = Case(B, S, H, device, dtype=dtype, heads=(2, 2, 1, 1, 2, 2), after=after)
    case.check(*case.run())


@both_forms
@pytest.mark.grid
@pytest.mark.parametrize("heads", [(6, 1, 1, 1, 1, 1), (1, 6, 2, 3, 6, 1), (2, 3, 6, 6, 1, 2), (6, 3, 2, 3, 3, 1)])
def test_head_counts(heads, after, device) -> None:
    case = Case(2, 2, 5, device, heads=heads, after=after)
    case.check(*case.run())


@both_forms
@pytest.mark.parametrize(
    ("H", "bounds"),
    [(16, [0, 0]), (16, [0, 0, 3, 3, 11, 12, 12]), (STREAMED, [0, 0, 2, 3]), larger(130, [0, 0, 2, 5, 5])],
)
def test_packed(bounds, H, after, device) -> None:
    case = Case(0, 0, H, device, heads=(2, 1, 1, 2, 2, 1), bounds=bounds, clip=0.3, after=after)
    case.check(*case.run())


def test_more_packed_sequences_than_a_program_holds(device) -> None:
    bounds = np.cumsum([0, 3, 0, 9, 1, 2, 2, 5, 0, 7, 4, 1]).tolist()
    case = Case(0, 0, 4, device, bounds=bounds)
    case.check(*case.run())


@both_forms
@pytest.mark.parametrize(("clip", "S", "H"), [(0.0, 3, 4), (0.05, 6, 4), (0.05, 3, STREAMED)])
def test_clipping(clip, S, H, after, device) -> None:
    case = Case(2, S, H, device, heads=heads_of(H), clip=clip, after=after)
    case.check(*case.run())


@both_forms
@pytest.mark.parametrize(
    ("H", "state", "dstate", "dy"),
    [
        (4, False, True, True),
        (4, True, False, True),
        (4, True, True, False),
        (STREAMED, False, False, True),
        (STREAMED, False, True, False),
    ],
)
def test_absent_state_and_cotangents(H, state, dstate, dy, after, device) -> None:
    case = Case(2, 2, H, device, heads=heads_of(H), state=state, dstate=dstate, dy=dy, after=after)
    case.check(*case.run())


def test_saturated_gates_keep_their_small_gradients(device) -> None:
    def edit(x, W, xf, Wf, xr, Wr):
        xf[:, ::2] += 15.0
        xr[:, 1::2] -= 15.0
        x[:, 1] += 8.0

    case = Case(2, 8, 8, device, edit=edit)
    case.check(*case.run())


def test_infinite_gates(device) -> None:
    def edit(x, W, xf, Wf, xr, Wr):
        xf[0, 1], xf[0, 3], xr[1, 2], xr[1, 4] = -INF, INF, -INF, INF

    case = Case(2, 6, 8, device, edit=edit)
    case.check(*case.run())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_below_half_precision_reach_the_weights(dtype, device) -> None:
    case = Case(2, 12, 8, device, dtype=dtype, scale=1e-4, dstate=False)
    found = case.run()[2]
    for name, gradient in zip(NAMES, found, strict=False):
        if "weight" in name:
            case.near(gradient, case.gradients[name], name)


@both_forms
def test_strides(after, device) -> None:
    case = Case(3, 5, 6, device, after=after)
    wanted = case.run()

    def scattered(x: torch.Tensor) -> torch.Tensor:
        """The same values in another order of axes, between columns of another array."""
        order = list(reversed(range(x.ndim)))
        return torch.stack([x, x + 1], -1).permute(*order, x.ndim).contiguous().permute(*order, x.ndim)[..., 0]

    case.arrays = tuple(map(scattered, case.arrays))
    case.state, case.dy, case.dlast = scattered(case.state), scattered(case.dy), scattered(case.dlast)
    case.bias = scattered(case.bias) if after else None
    y, last, gradients = case.run()
    for found, exact in zip((y, last, *gradients), (wanted[0], wanted[1], *wanted[2]), strict=True):
        assert torch.equal(found, exact) and found.is_contiguous()


@pytest.mark.parametrize(
    ("H", "T", "bounds"), [(4, 12, [5, 2, 40, -7]), (4, 12, [0, 30, 3, 12]), (STREAMED, 6, [3, 1, 8, -4])]
)
def test_a_bad_packing_stays_within_bounds(bounds, T, H, device) -> None:
    case = Case(0, 0, H, device, bounds=[0, T // 3, 2 * T // 3, T], heads=(2, 1, 2, 1, 2, 1))
    case.cu_seqlens = torch.tensor(bounds, device=device)
    case.arrays = tuple(
        torch.cat([torch.full_like(x[:1], math.nan), x, torch.full_like(x[:1], math.nan)])[1:-1] for x in case.arrays
    )
    _, last, gradients = case.run()
    assert torch.isfinite(last).all() and torch.isfinite(gradients[6]).all()


def test_the_same_call_gives_the_same_bits(device) -> None:
    case = Case(4, 12, 16, device, heads=(2, 1, 2, 1, 2, 1))
    first, again = case.run()[2], case.run()[2]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_form_with_the_reset_gate_after_the_product_needs_no_bias(device) -> None:
    case = Case(2, 4, 5, device, after=True)
    case.bias = torch.zeros_like(case.bias)
    y, last, gradients = case.run()
    case.bias = None
    without = case.run()
    for found, exact in zip((*without[:2], *without[2]), (y, last, *gradients[:7]), strict=True):
        assert torch.equal(found, exact)


def test_a_plan_for_every_width() -> None:
    for H in range(1, 1025):
        for wide, capability, gates in product((False, True), (None, 8, 9, 10), (3, 4)):
            chosen = default_plan(H, wide, capability, gates)
            assert isinstance(chosen, Plan) and chosen.block >= 16
            assert (chosen.block >= H) == (chosen.part is None) or chosen.part is not None


def test_rows() -> None:
    (row,) = ROWS
    sizes = {"H": 1025}
    wide = row.reasons(Request("gru", "cuda", "bfloat16", sizes))
    assert any("H up to 1024" in reason for reason in wide)
    assert any("float64" in reason for reason in row.reasons(Request("gru", "cuda", "float64", {"H": 4})))
