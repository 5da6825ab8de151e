"""The sLSTM's kernels against the float64 reference: values, all gradients, states, packing, strides, extremes."""

import math

import numpy as np
import pytest
import torch

from reference import SLSTMState, slstm, slstm_backward
from reference.backends import Request
from tests.grids import larger
from torch_impl._slstm.arguments import Arguments, Cotangents
from torch_impl._slstm.triton import launch
from torch_impl._slstm.triton.launch import ROWS, Residuals

# Largest ‖found − reference‖ / ‖reference‖ seen over the cases below: 1.9e-5, 9.1e-4, 3.8e-3. The first is of gates of
# 1000, in whose exponents a rounding is 6e-5. Without them it is 6.5e-6, of 33 steps with an exponential forget gate;
# composed code in float32 is 4.7e-6 away there.
BOUND = {torch.float32: 3e-5, torch.float16: 3e-3, torch.bfloat16: 1.5e-2}
NAMES = ("z", "i", "f", "o", "weight_z", "weight_i", "weight_f", "weight_o")
INF = float("inf")
STREAMED = 65
"""The narrowest head whose float32 weights are read again at every step, in several tiles of units and of inputs."""
both_gates = pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])


class Case:
    """Random inputs, states and cotangents, with what the reference says of them."""

    def __init__(self, B, S, H, device, N=2, dtype=torch.float32, bounds=None, state=True, dstate=("h", "c", "n", "m"),
                 dh=True, clip=None, edit=None, scale=1.0, forget_gate="sigmoid"):  # fmt: skip
        generator = torch.Generator().manual_seed(S + 7 * H)
        lead = (B, S) if bounds is None else (bounds[-1],)
        B = B if bounds is None else len(bounds) - 1

        def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = dtype) -> torch.Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(dtype)

        inputs = [draw(*lead, N, H) for _ in range(4)]
        weights = [draw(N, H, H, scale=H**-0.5) for _ in range(4)]
        c, m, h, *dlast = (draw(B, N, H, dtype=torch.float32) for _ in range(7))
        states = [c, draw(B, N, H, dtype=torch.float32).exp(), m, h]
        if edit is not None:
            edit(*inputs, *states)
        upstream = draw(*lead, N, H, scale=scale)
        self.dtype, self.clip, self.forget_gate = dtype, clip, forget_gate
        self.arrays = tuple(x.to(device) for x in (*inputs, *weights))
        self.state = tuple(x.to(device) for x in states) if state else (None,) * 4
        self.dlast = {f"d{k}_last": d.to(device) for k, d in zip("cnmh", dlast, strict=True) if k in dstate}
        self.dh = upstream.to(device) if dh else None
        self.cu_seqlens = None if bounds is None else torch.tensor(bounds, device=device)

        exact = [x.double().numpy() for x in (*inputs, *weights)]
        options = {
            "initial_state": SLSTMState(*(x.double().numpy() for x in states)) if state else None,
            "forget_gate": forget_gate,
            "cu_seqlens": None if bounds is None else np.array(bounds),
        }
        self.h, self.last = slstm(*exact, **options, return_state=True)
        upstream = upstream.double().numpy() if dh else np.zeros(self.h.shape)
        dlast = SLSTMState(*(d.double().numpy() * (k in dstate) for k, d in zip("cnmh", dlast, strict=True)))
        self.gradients = slstm_backward(*exact, **options, gradient_clipping=clip, dh=upstream, dstate=dlast)

    def run(self):
        call = Arguments(
            *self.arrays, *self.state, cu_seqlens=self.cu_seqlens, forget_gate=self.forget_gate,
            gradient_clipping=self.clip,
        )  # fmt: skip
        results, residuals = launch.slstm_forward(call, Residuals._fields)
        residuals = residuals._replace(h=results.h, c_last=results.c_last, n_last=results.n_last)
        return results, launch.slstm_backward(call, Cotangents(self.dh, **self.dlast), residuals)

    def check(self, results, gradients) -> None:
        h, *last = results
        assert [x.dtype for x in results] == [self.dtype] + [torch.float32] * 4
        assert [x.dtype for x in gradients] == [self.dtype] * 8 + [torch.float32] * 4
        self.near(h, self.h, "h")
        for name, found, exact in zip("cnmh", last, self.last, strict=True):
            self.near(found, exact, f"last {name}")
        for name, found in zip(NAMES, gradients, strict=False):
            self.near(found, self.gradients[name], f"d{name}")
        for name, found, exact in zip("cnmh", gradients[8:], self.gradients.get("initial_state", ()), strict=False):
            self.near(found, exact, f"d{name}0")

    def near(self, found: torch.Tensor, exact: np.ndarray, name: str) -> None:
        found = found.double().cpu().numpy()
        assert found.shape == exact.shape, name
        infinite = np.isinf(exact)
        np.testing.assert_array_equal(found[infinite], exact[infinite], err_msg=name)
        found, exact = found[~infinite], exact[~infinite]
        error = np.linalg.norm(found - exact)
        assert error <= BOUND[self.dtype] * np.linalg.norm(exact) + 1e-30, (name, error, np.linalg.norm(exact))


@both_gates
@pytest.mark.grid
@pytest.mark.parametrize("S", [0, 1, 5, 33])
@pytest.mark.parametrize("H", [1, 16, 17])
def test_values_and_gradients(S, H, forget_gate, device) -> None:
    case = Case(2, S, H, device, forget_gate=forget_gate)
    case.check(*case.run())


# The first has more tokens than one partial sum of the weights' gradients; the second more rows than a program holds.
@pytest.mark.parametrize(("B", "S", "H", "N"), [(8, 33, 5, 1), (9, 2, 3, 3), (2, 3, 64, 2), (2, 3, STREAMED, 2)])
def test_longer_and_wider(B, S, H, N, device) -> None:
    case = Case(B, S, H, device, N=N)
    case.check(*case.run())


@pytest.mark.grid
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("B", "S", "H"), [(2, 5, 16), (2, 3, 100), (2, 1, 260)])
def test_half_precision(dtype, B, S, H, device) -> None:
    case = Case(B, S, H, device, dtype=dtype)
    case.check(*case.run())


@both_gates
@pytest.mark.parametrize(
    ("H", "bounds"),
    [
        *[(16, [0, 0]), (16, [0, 0, 3, 3, 11, 12, 12]), (STREAMED, [0, 0, 2, 3])],
        larger(130, [0, 0, 2, 5, 5]),
    ],
)
def test_packed(bounds, H, forget_gate, device) -> None:
    case = Case(0, 0, H, device, bounds=bounds, clip=0.3, forget_gate=forget_gate)
    case.check(*case.run())


def test_more_packed_sequences_than_a_program_holds(device) -> None:
    bounds = np.cumsum([0, 3, 0, 9, 1, 2, 2, 5, 0, 7, 4, 1]).tolist()
    case = Case(0, 0, 4, device, bounds=bounds)
    case.check(*case.run())


@pytest.mark.parametrize(("clip", "S", "H"), [(0.0, 3, 4), (0.05, 6, 4), (0.05, 3, STREAMED)])
def test_clipping(clip, S, H, device) -> None:
    case = Case(2, S, H, device, clip=clip)
    case.check(*case.run())


@pytest.mark.parametrize(
    ("H", "state", "dstate", "dh"),
    [
        (4, False, "hcnm", True),
        (4, True, "", True),
        (4, True, "hcnm", False),
        *((4, True, name, False) for name in "hcnm"),
        (STREAMED, False, "", True),
        (STREAMED, False, "hc", False),
    ],
)
def test_absent_state_and_cotangents(H, state, dstate, dh, device) -> None:
    case = Case(2, 3, H, device, state=state, dstate=tuple(dstate), dh=dh)
    case.check(*case.run())


@both_gates
@pytest.mark.grid
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("H", [5, STREAMED])
def test_hard_resets_silent_steps_and_an_empty_memory(H, state, forget_gate, device) -> None:
    def edit(z, i, f, o, c, n, m, h):
        i[0, :2], i[1, 3], f[0, 4], f[1, 2], f[1, 3] = -INF, -INF, -INF, -INF, -INF
        if forget_gate == "sigmoid":
            f[0, 5], f[1, 0] = INF, INF
        # The first sequence has an empty memory, which the first two steps do not write to.
        c[0], n[0], m[0] = 0.0, 0.0, -INF

    case = Case(2, 7, H, device, state=state, edit=edit, forget_gate=forget_gate)
    case.check(*case.run())


@both_gates
@pytest.mark.parametrize("n", [0.0, 2e-38])
def test_silent_first_steps_of_a_state_with_little_or_nothing_in_it(n, forget_gate, device) -> None:
    def edit(z, i, f, o, c, n0, m, h):
        i[:, :2] = -INF
        f[:] = f.abs() if forget_gate == "sigmoid" else -f.abs()
        c[:], n0[:], m[:] = n / 2, n, 0.0

    case = Case(2, 5, 8, device, edit=edit, scale=1e-6 if n else 1e6, dstate=(), forget_gate=forget_gate)
    results, gradients = case.run()
    case.near(results.h, case.h, "h")
    initial = case.gradients["initial_state"]
    # That of m is c dc + n dn, which cancel.
    for name, found in zip((*NAMES, "c", "n"), gradients, strict=False):
        case.near(found, case.gradients[name] if name in NAMES else getattr(initial, name), f"d{name}")


def test_gates_of_any_finite_size(device) -> None:
    def edit(z, i, f, o, c, n, m, h):
        i[:, ::2] *= 30.0
        f[:, 1::2] *= 30.0
        i[0, 3] += 1000.0
        f[1, 4] -= 1000.0

    case = Case(2, 8, 8, device, edit=edit, dstate=("h",))
    case.check(*case.run())


@both_gates
@pytest.mark.parametrize("size", [1e8, 1e20, 1e35])
def test_gates_so_large_that_the_rounding_of_m_adds_up(size, forget_gate, device) -> None:
    def edit(z, i, f, o, c, n, m, h):
        i *= size
        # The first sequence decays and is not written to.
        i[0] = -64 * size
        f *= size
        f[:, 3], i[1, 3] = -INF, -INF
        if forget_gate == "exp":
            f[:] = -f.abs()

    results, gradients = Case(2, 64, 4, device, edit=edit, dstate=("h",), forget_gate=forget_gate).run()
    assert all(torch.isfinite(x).all() for x in (results.h, results.c_last, results.n_last, *gradients))


def test_saturated_gates_keep_their_small_gradients(device) -> None:
    def edit(z, i, f, o, c, n, m, h):
        o[:, ::2] += 15.0
        z[:, 1] += 8.0
        f[:, ::3] += 15.0

    case = Case(2, 8, 8, device, edit=edit)
    case.check(*case.run())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_below_half_precision_reach_the_weights(dtype, device) -> None:
    case = Case(2, 12, 8, device, dtype=dtype, scale=1e-4, dstate=())
    _, gradients = case.run()
    for name, gradient in zip(NAMES, gradients, strict=False):
        if "weight" in name:
            case.near(gradient, case.gradients[name], name)


def test_strides(device) -> None:
    case = Case(3, 5, 6, device)
    results, gradients = case.run()

    def scattered(x: torch.Tensor) -> torch.Tensor:
        """The same values in another order of axes, between columns of another array."""
        order = list(reversed(range(x.ndim)))
        return torch.stack([x, x + 1], -1).permute(*order, x.ndim).contiguous().permute(*order, x.ndim)[..., 0]

    case.arrays, case.state = tuple(map(scattered, case.arrays)), tuple(map(scattered, case.state))
    case.dh, case.dlast = scattered(case.dh), {name: scattered(d) for name, d in case.dlast.items()}
    again = case.run()
    for found, exact in zip((*again[0], *again[1]), (*results, *gradients), strict=True):
        assert torch.equal(found, exact) and found.is_contiguous()


@pytest.mark.parametrize(("H", "T", "bounds"), [(4, 12, [5, 2, 40, -7]), (STREAMED, 6, [3, 1, 8, -4])])
def test_a_bad_packing_stays_within_bounds(bounds, T, H, device) -> None:
    case = Case(0, 0, H, device, bounds=[0, T // 3, 2 * T // 3, T])
    case.cu_seqlens = torch.tensor(bounds, device=device)
    case.arrays = tuple(
        torch.cat([torch.full_like(x[:1], math.nan), x, torch.full_like(x[:1], math.nan)])[1:-1] for x in case.arrays
    )
    results, gradients = case.run()
    for x in (*results[1:], *gradients[8:]):
        assert torch.isfinite(x).all()


def test_the_same_call_gives_the_same_bits(device) -> None:
    case = Case(4, 12, 16, device)
    first, again = case.run()[1], case.run()[1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_rows() -> None:
    for row in ROWS:
        assert any(
            "H up to 1024" in reason for reason in row.reasons(Request(row.operation, "cuda", "bfloat16", {"H": 1025}))
        )
        assert any("float64" in reason for reason in row.reasons(Request(row.operation, "cuda", "float64", {"H": 4})))
