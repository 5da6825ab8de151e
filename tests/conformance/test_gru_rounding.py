"""The rounding that a GRU carries from step to step, compared with errors that are drawn and carried."""

import numpy as np
import pytest

import reference
from conformance import oracle
from conformance.cases import GRUCase
from conformance.oracle._gru_magnitudes import _Carried, _derivative
from conformance.tolerance.budget import KAPPA, Precision


def test_carried_errors_have_the_size_of_independent_errors_that_are_drawn() -> None:
    rng = np.random.default_rng(0)
    S, H = 7, 3
    J, f = rng.normal(size=(S, H, H)) / 2, np.zeros(H)
    size = np.exp(rng.normal(size=(S, H)))
    carried, drawn = _Carried((H,), alike=False), np.zeros((40_000, H))
    for t in range(S):
        carried.step(J[t], f, size[t])
        drawn = drawn @ J[t] + size[t] * rng.normal(size=drawn.shape)
    assert carried.size == pytest.approx(drawn.std(axis=0), rel=0.02)


def test_errors_of_the_same_sign_add_up_as_far_as_their_element_is_carried() -> None:
    f, steps = np.array([1.0, 0.5]), 16
    alike, independent = _Carried((2,), alike=True), _Carried((2,), alike=False)
    for _ in range(steps):
        for carried in (alike, independent):
            carried.step(np.diag(f), f, np.ones(2))
    assert alike.size == pytest.approx([steps, 2.0], rel=1e-4)
    assert independent.size == pytest.approx([4.0, (4 / 3) ** 0.5], rel=1e-4)


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_nothing_leaves_the_range_of_float64_because_it_is_squared(scale: float) -> None:
    carried = _Carried((2,), alike=False)
    for _ in range(4):
        carried.step(np.eye(2), np.ones(2), np.array([scale, scale * 1e-40]))
    assert carried.size == pytest.approx(2 * scale * np.array([1, 1e-40]), rel=1e-12)


@pytest.mark.parametrize("reset_after", [False, True])
def test_the_derivative_of_a_step_is_that_of_the_reference(reset_after: bool) -> None:
    case = GRUCase(2, 1, 3, (2, 1, 2, 2, 1, 2), state=True, reset_after=reset_after, bias=True)
    arrays = {name: x for name, x in oracle.values(case.arrays("float64")).items() if name != "cu_seqlens"}
    heads = {
        name: np.repeat(x, 2 // x.shape[axis], axis)
        for name, x in arrays.items()
        for axis in [0 if name.endswith(("weight", "bias")) else -2]
    }
    h = arrays["input_state"]
    W, Wf, Wr = (heads[name] for name in ("weight", "forget_weight", "reset_weight"))

    def times(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.einsum("bni,nij->bnj", x, weight)

    f, r = (
        1 / (1 + np.exp(-times(h, w) - heads[name][:, 0])) for w, name in ((Wf, "forget_input"), (Wr, "reset_input"))
    )
    p = times(h, W) + heads["recurrent_bias"] if reset_after else None
    z = np.tanh((times(r * h, W) if p is None else r * p) + heads["input"][:, 0])
    J = _derivative(h, f, r, z, p, (W, Wf, Wr))
    for i in range(3):
        moved = [
            reference.gru(**{**arrays, "input_state": h + sign * 1e-6 * np.eye(3)[i]}, reset_after=reset_after)[1]
            for sign in (1, -1)
        ]
        assert (moved[0] - moved[1]) / 2e-6 == pytest.approx(J[:, :, i], abs=1e-9)


def test_the_rounding_of_a_closed_gate_is_followed_through_the_weights_to_earlier_steps() -> None:
    """1 − f is a few roundoffs, so f as a rounded number changes the gradient before it more than any rounded input."""
    case = GRUCase(
        2, 5, 3, (6, 3, 2, 1, 6, 2), state=True, gates="saturated", scale=2.0, cotangents="one step", seed=4264
    )
    arrays, cotangents = (oracle.values(of) for of in (case.arrays("float64"), case.cotangent_arrays("float64")))
    slack = oracle.gru_gradient(arrays, {}, cotangents, Precision("float64", 5)).slack["input_state"]

    def gradient(shift: np.ndarray | float) -> np.ndarray:
        moved = {**arrays, "forget_input": arrays["forget_input"] + shift}
        found = reference.gru_backward(**moved, dy=cotangents["y"], dstate=cotangents["state"])
        return found["input_state"]

    # Of each forget gate, one roundoff of the gate: as much of its preactivation as changes the gate by it.
    f = 1 / (1 + np.exp(-arrays["forget_input"]))
    one = 2.0**-53 / (1 - f).clip(1e-12)
    exact, followed = gradient(0.0), 0
    for at in np.ndindex(f.shape):
        shift = np.zeros(f.shape)
        shift[at] = one[at]
        if one[at] > 1e-3:  # Too large for a derivative.
            continue
        error = np.abs(gradient(shift) - exact)
        assert (KAPPA * error <= 1.01 * slack + 1e-300).all(), (at, (KAPPA * error / slack).max())
        followed += 1
    assert followed > 20
