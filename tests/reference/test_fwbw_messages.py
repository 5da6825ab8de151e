"""What `fwbw_backward` refuses names the argument that is wrong."""

import numpy as np
import pytest

import reference


@pytest.mark.parametrize("dh", ["x", np.ones((1, 4, 2), int)], ids=["text", "integers"])
def test_a_wrong_dh_is_blamed_itself(dh: object) -> None:
    x, gate = np.ones((1, 4, 2)), np.ones((1, 4))
    config = reference.mLSTMBackendFwbwConfig()
    *_, ctx = reference.fwbw_forward(x, x, x, gate, gate, config)
    with pytest.raises(TypeError, match="`dh`"):
        reference.fwbw_backward(ctx, dh, config)  # pyright: ignore[reportArgumentType]
