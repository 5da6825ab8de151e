"""The sLSTM where little or nothing has been written: silent first steps, states of zeros, and a normaliser near 0."""

import numpy as np
import pytest

import reference
from reference import SLSTMState
from tests.both.tools import assert_close, native, relative_error

B, S, N, H = 2, 4, 2, 3
NAMES = ("z", "i", "f", "o", *(f"weight_{name}" for name in "zifo"))
STATES = {
    "none": None,
    "zeros": (0.0, 0.0, 0.0, 0.0),
    "empty": (0.0, 0.0, -np.inf, 0.0),
    # 0.5 has been written with the smallest weight that is a normal number in float32, and a little more.
    "nearly nothing": (1.2e-38, 2.4e-38, 0.0, 0.25),
}


@pytest.mark.grid
@pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_silent_first_steps(framework, dtype, state, scale, forget_gate):
    """Padding on the left writes nothing, and its gradient is that of the definition, however large cotangents are."""
    rng = np.random.default_rng(0)
    values = 0.25 * rng.integers(-8, 9, (4, B, S, N, H))
    values[1, :, :2] = -np.inf
    if forget_gate == "exp":
        values[2] = -np.abs(values[2])
    arrays = [*values, *(0.125 * rng.integers(-4, 5, (4, N, H, H)))]
    given = STATES[state] and SLSTMState(*(np.full((B, N, H), x) for x in STATES[state]))
    # The gradient of c is that of h divided by n, and must be representable.
    dh = (1e-6 if state == "nearly nothing" else scale) * rng.integers(1, 9, (B, S, N, H))

    def call(*x):
        initial = SLSTMState(*x[8:]) if given else None
        return framework.package.slstm(*x[:8], initial_state=initial, forget_gate=forget_gate)

    native_state = native(framework, given or (), "float32")
    (h,), found = framework.pull_back(
        call, [*native(framework, arrays, dtype), *native_state], native(framework, [dh], dtype)
    )
    dh = framework.numpy(*native(framework, [dh], dtype))
    options = {"initial_state": given, "forget_gate": forget_gate}
    expected = reference.slstm_backward(*arrays, **options, dh=dh)
    gradients = [*(expected[name] for name in NAMES), *expected.get("initial_state", ())]
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2}[dtype]
    assert_close([framework.numpy(h)], [reference.slstm(*arrays, **options)], tolerance)
    errors = [relative_error(framework.numpy(x), y, dh.max()) for x, y in zip(found, gradients, strict=True)]
    assert all(error < tolerance for error in errors), errors
