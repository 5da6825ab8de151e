"""The weights of other packages' sLSTM layers: what is refused."""

from typing import Any

import numpy as np
import pytest

from reference.interop.slstm import SLSTMWeights, slstm_from_weights, slstm_weights_from_xlstm

N, H = 2, 3
RNG = np.random.default_rng(0)


def xlstm(**changed: Any) -> dict[str, np.ndarray]:
    arrays = {f"{name}.weight": RNG.normal(size=(N, H, H)) for name in ("fgate", "igate", "zgate", "ogate")}
    arrays["slstm_cell._recurrent_kernel_"] = RNG.normal(size=(N, 4 * H, H))
    arrays["slstm_cell._bias_"] = RNG.normal(size=4 * N * H)
    return {name: x for name, x in {**arrays, **changed}.items() if x is not None}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"zgate.weight": None}, r"`state_dict\['zgate.weight'\]` is missing"),
        ({"mlp.weight": np.ones(3)}, r"`state_dict\['mlp.weight'\]` is f64\[3\]; expected a parameter of sLSTMLayer"),
        ({"ogate.weight": np.ones((N, H, 4))}, r"`ogate.weight` is f64\[2,3,4\]; expected \[N=2, H=3, H=3\]"),
        (
            {"slstm_cell._recurrent_kernel_": np.ones((N, 3 * H, H))},
            r"`slstm_cell._recurrent_kernel_` is f64\[2,9,3\]; expected \[N=2, H=3, 12\]",
        ),
        ({"slstm_cell._bias_": np.ones(3 * N * H)}, r"`slstm_cell._bias_` is f64\[18\]; expected \[24\]"),
    ],
)
def test_what_of_xlstm_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^slstm_weights_from_xlstm: {said}"):
        slstm_weights_from_xlstm(xlstm(**changed))


def test_a_convolution_doubles_the_features() -> None:
    """z and o read the input as it is; i and f read what the convolution made of it."""
    plain = slstm_weights_from_xlstm(xlstm())
    both = slstm_weights_from_xlstm(xlstm(**{"conv1d.conv.weight": np.ones((N * H, 1, 4))}))
    D = N * H
    assert plain.input_kernel.shape == (D, 4 * D) and both.input_kernel.shape == (2 * D, 4 * D)
    z, i, f, o = np.split(both.input_kernel, 4, axis=1)
    assert z[:D].any() and not z[D:].any() and o[:D].any() and not o[D:].any()
    assert i[D:].any() and not i[:D].any() and f[D:].any() and not f[:D].any()


def test_an_output_projection_follows() -> None:
    weights, x = slstm_weights_from_xlstm(xlstm()), RNG.normal(size=(1, 4, N * H))
    kernel = RNG.normal(size=(N * H, 2))
    expected = slstm_from_weights(weights)(x)[0] @ kernel + 1
    projected = weights.with_output_projection(kernel, np.ones(2))
    np.testing.assert_allclose(slstm_from_weights(projected)(x)[0], expected, rtol=1e-13)
    with pytest.raises(ValueError, match="SLSTMWeights: `output_kernel` is given already"):
        projected.with_output_projection(kernel)
    with pytest.raises(ValueError, match=r"SLSTMWeights: `output_kernel` is f64\[5,2\]; expected \[6, O\]"):
        weights.with_output_projection(kernel[:5])


def test_weights_written_by_hand_are_checked() -> None:
    W = np.ones((N, H, H))
    of = {f"weight_{name}": W for name in "zifo"}
    with pytest.raises(ValueError, match=r"SLSTMWeights: `weight_o` is f64\[2,3,4\]; expected \[N=2, H=3, H=3\]"):
        SLSTMWeights(input_kernel=np.ones((5, 24)), **{**of, "weight_o": np.ones((N, H, 4))})
    with pytest.raises(ValueError, match=r"SLSTMWeights: `input_kernel` is f64\[5,18\]; expected \[I, 24\]"):
        SLSTMWeights(input_kernel=np.ones((5, 18)), **of)
