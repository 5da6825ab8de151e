"""The weights of other packages' GRU layers: the function they stand for, written out here, and what is refused."""

from typing import Any

import numpy as np
import pytest

from reference.interop.gru import GRUWeights, gru_from_weights
from reference.interop.gru_checkpoints import gru_weights_from_keras, gru_weights_from_onnx, gru_weights_from_xma
from reference.interop.gru_frameworks import gru_weights_from_flax, gru_weights_from_torch

F, H = 3, 4
KERAS = {"units": H, "use_bias": True, "reset_after": False, "activation": "tanh", "recurrent_activation": "sigmoid"}
HEADS = {"num_input_heads": 2, "num_forget_input_heads": 1, "num_reset_input_heads": 2}
RNG = np.random.default_rng(0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def keras_weights() -> list[np.ndarray]:
    return [RNG.normal(size=shape) for shape in ((F, 3 * H), (H, 3 * H), (3 * H,))]


def onnx_weights() -> dict[str, np.ndarray]:
    return {name: RNG.normal(size=s) for name, s in (("W", (1, 3 * H, F)), ("R", (1, 3 * H, H)), ("B", (1, 6 * H)))}


def xma_weights(prefix: str = "", dtype: str = "float64") -> dict[str, np.ndarray]:
    """Nx = 2, Nxf = 1, Nxr = 2 and Nw = 1, Nwf = 2, Nwr = 1: two heads."""
    shapes = {
        "input_projection.weight": (5 * H, F),
        "input_projection.bias": (5 * H,),
        "state_weight": (1, H, H),
        "forget_weight": (2, H, H),
        "reset_weight": (1, H, H),
        "output_projection.weight": (6, 2 * H),
        "output_projection.bias": (6,),
    }
    return {prefix + name: RNG.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def by_gates(
    x: np.ndarray,
    kernels: list[np.ndarray],
    recurrent: list[np.ndarray],
    biases: list[np.ndarray],
    after: np.ndarray | None = None,
) -> np.ndarray:
    """The GRU by the equations of Cho et al. with update gate, reset gate and candidate in this order.

    With a recurrent bias ``after``, the reset gate is applied after the product.
    """
    h, states = np.zeros((x.shape[0], H)), []
    for t in range(x.shape[1]):
        u, r, c = (x[:, t] @ kernel + bias for kernel, bias in zip(kernels, biases, strict=True))
        update, reset = sigmoid(u + h @ recurrent[0]), sigmoid(r + h @ recurrent[1])
        product = (reset * h) @ recurrent[2] if after is None else reset * (h @ recurrent[2] + after)
        h = update * h + (1 - update) * np.tanh(c + product)
        states.append(h)
    return np.stack(states, 1)


def test_columns_of_keras() -> None:
    kernel, recurrent, bias = weights = keras_weights()
    x = RNG.normal(size=(2, 7, F))
    expected = by_gates(x, np.split(kernel, 3, 1), np.split(recurrent, 3, 1), np.split(bias, 3))
    output, state = gru_from_weights(gru_weights_from_keras(weights, KERAS))(x)
    np.testing.assert_allclose(output, expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(state[:, 0], expected[:, -1], rtol=1e-13, atol=1e-14)


def test_rows_of_onnx() -> None:
    weights, x = onnx_weights(), RNG.normal(size=(2, 7, F))
    kernels = [rows.T for rows in np.split(weights["W"][0], 3)]
    recurrent = [rows.T for rows in np.split(weights["R"][0], 3)]
    biases = np.split(weights["B"][0, : 3 * H] + weights["B"][0, 3 * H :], 3)
    attributes = {"hidden_size": H, "direction": b"forward", "activations": [b"Sigmoid", b"Tanh"], "layout": 1}
    output, _ = gru_from_weights(gru_weights_from_onnx(**weights, attributes=attributes))(x)
    np.testing.assert_allclose(output, by_gates(x, kernels, recurrent, biases), rtol=1e-13, atol=1e-14)
    after = gru_weights_from_onnx(**weights, attributes={**attributes, "linear_before_reset": 1})
    biases = [
        weights["B"][0, i * H : (i + 1) * H] + (weights["B"][0, (i + 3) * H : (i + 4) * H] if i < 2 else 0)
        for i in range(3)
    ]
    expected = by_gates(x, kernels, recurrent, biases, weights["B"][0, 5 * H :])
    np.testing.assert_allclose(gru_from_weights(after)(x)[0], expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("use_bias", [True, False])
def test_both_biases_of_keras(use_bias: bool) -> None:
    kernel, recurrent, _ = keras_weights()
    biases, x = RNG.normal(size=(2, 3 * H)), RNG.normal(size=(2, 7, F))
    arrays = [kernel, recurrent, *([biases] if use_bias else [])]
    weights = gru_weights_from_keras(arrays, KERAS | {"reset_after": True, "use_bias": use_bias})
    update, reset, candidate = np.split((biases[0] + biases[1]) * use_bias, 3)
    own = biases[1, 2 * H :] * use_bias
    parts = np.split(kernel, 3, 1), np.split(recurrent, 3, 1), [update, reset, candidate - own]
    output, _ = gru_from_weights(weights)(x)
    np.testing.assert_allclose(output, by_gates(x, *parts, own), rtol=1e-12, atol=1e-13)


def torch_weights(suffix: str, prefix: str = "") -> dict[str, np.ndarray]:
    shapes = {"weight_ih": (3 * H, F), "weight_hh": (3 * H, H), "bias_ih": (3 * H,), "bias_hh": (3 * H,)}
    return {f"{prefix}{name}_{suffix}": RNG.normal(size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_of_torch(bias: bool, reverse: bool) -> None:
    suffix, prefix = "l1_reverse" if reverse else "l1", "encoder.gru."
    named = {**torch_weights("l0", prefix), **torch_weights("l1", prefix), **torch_weights("l1_reverse", prefix)}
    named = {name: array for name, array in named.items() if bias or "bias" not in name} | {"head.weight": np.ones(3)}
    weights = gru_weights_from_torch(named, layer=1, reverse=reverse, prefix=prefix)

    def rows(name: str) -> list[np.ndarray]:
        """Rows r, z, n as update gate, reset gate and candidate."""
        array = named.get(f"{prefix}{name}_{suffix}", np.zeros(3 * H))
        reset, update, candidate = np.split(array, 3)
        return [update, reset, candidate]

    into, own, x = rows("bias_ih"), rows("bias_hh"), RNG.normal(size=(2, 7, F))
    biases = [into[0] + own[0], into[1] + own[1], into[2]]
    matrices = ([matrix.T for matrix in rows(name)] for name in ("weight_ih", "weight_hh"))
    output, _ = gru_from_weights(weights)(x)
    np.testing.assert_allclose(output, by_gates(x, *matrices, biases, own[2]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {"layer": 2}, r"`state_dict\['weight_ih_l2'\]` is missing"),
        ({}, {"reverse": True}, r"`state_dict\['weight_ih_l0_reverse'\]` is missing"),
        ({"weight_hr_l0": np.ones((2, H))}, {}, r"`state_dict\['weight_hr_l0'\]` is f64\[2,4\]; expected a parameter"),
        ({"weight_hh_l0": np.ones((4 * H, H))}, {}, r"`weight_hh_l0` is f64\[16,4\]; expected \[12, 4\]"),
        ({"weight_ih_l0": np.ones((4 * H, F))}, {}, r"`weight_ih_l0` is f64\[16,3\]; expected \[12, I\]"),
        ({"bias_hh_l0": np.ones(H)}, {}, r"`bias_hh_l0` is f64\[4\]; expected \[12\]"),
    ],
)
def test_what_of_torch_is_refused(change: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^gru_weights_from_torch: {said}"):
        gru_weights_from_torch(torch_weights("l0") | change, **options)


def flax_params() -> dict[str, dict[str, np.ndarray]]:
    layers = {
        name: {"kernel": RNG.normal(size=(F if name[0] == "i" else H, H))} for name in "ir iz in hr hz hn".split()
    }
    for name in ("ir", "iz", "in", "hn"):
        layers[name]["bias"] = RNG.normal(size=H)
    return layers


def test_dense_layers_of_flax() -> None:
    params, x = flax_params(), RNG.normal(size=(2, 7, F))
    kernels, recurrent = ([params[f"{of}{gate}"]["kernel"] for gate in "zrn"] for of in "ih")
    expected = by_gates(x, kernels, recurrent, [params[f"i{gate}"]["bias"] for gate in "zrn"], params["hn"]["bias"])
    output, _ = gru_from_weights(gru_weights_from_flax(params))(x)
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hf": {"kernel": np.ones((H, H))}}, r"`params\['hf'\]` is a dict; expected one of"),
        ({"hr": {"kernel": np.ones((H, H)), "bias": np.ones(H)}}, r"`params\['hr'\]` is a mapping of 'kernel', 'bias'"),
        ({"hz": {"kernel": np.ones((H, 3))}}, r"`hz.kernel` is f64\[4,3\]; expected \[H=4, H=4\]"),
        ({"in": {"kernel": np.ones((F, 3)), "bias": np.ones(H)}}, r"`in.kernel` is f64\[3,3\]; expected \["),
    ],
)
def test_what_of_flax_is_refused(change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^gru_weights_from_flax: {said}"):
        gru_weights_from_flax(flax_params() | change)
    params = flax_params()
    del params["iz"]
    with pytest.raises(ValueError, match=r"^gru_weights_from_flax: `params\['iz'\]` is missing"):
        gru_weights_from_flax(params)


def test_dense_layers_of_nnx() -> None:
    params, x = flax_params(), RNG.normal(size=(2, 7, F))
    joined = {
        f"dense_{of}": {"kernel": np.concatenate([params[f"{of}{gate}"]["kernel"] for gate in "rzn"], 1)} for of in "ih"
    }
    joined["dense_i"]["bias"] = np.concatenate([params[f"i{gate}"]["bias"] for gate in "rzn"])
    params["hn"]["bias"] = np.zeros(H)
    expected, _ = gru_from_weights(gru_weights_from_flax(params))(x)
    output, _ = gru_from_weights(gru_weights_from_flax(joined))(x)
    np.testing.assert_allclose(output, expected, rtol=1e-13)
    for name, layer, said in (
        ("dense_h", {"kernel": np.ones((H, H))}, r"`dense_h.kernel` is f64\[4,4\]; expected \[4, 12\]"),
        (
            "dense_i",
            {"kernel": np.ones((F, 3 * H))},
            r"`params\['dense_i'\]` is a mapping of 'kernel'; expected bias and",
        ),
        ("ir", params["ir"], r"`params\['ir'\]` is a dict; expected one of dense_i, dense_h"),
    ):
        with pytest.raises(ValueError, match=f"^gru_weights_from_flax: {said}"):
            gru_weights_from_flax({**joined, name: layer})


@pytest.mark.parametrize("prefix", ["", "model.layers.0.gru."])
def test_heads_of_xma(prefix: str) -> None:
    named, x = xma_weights(prefix), RNG.normal(size=(2, 7, F))
    weights = gru_weights_from_xma({**named, "lm_head.weight": np.ones(3)} if prefix else named, **HEADS, prefix=prefix)
    output, state = gru_from_weights(weights)(x)
    arrays = {name.removeprefix(prefix): array for name, array in named.items()}
    heads = x @ arrays["input_projection.weight"].T + arrays["input_projection.bias"]
    heads = heads.reshape(2, 7, 5, H)
    h, states = np.zeros((2, 2, H)), []
    for t in range(7):
        after = np.empty_like(h)
        for n in range(2):
            f = sigmoid(heads[:, t, 2] + h[:, n] @ arrays["forget_weight"][n])
            r = sigmoid(heads[:, t, 3 + n] + h[:, n] @ arrays["reset_weight"][0])
            z = np.tanh(heads[:, t, n] + (r * h[:, n]) @ arrays["state_weight"][0])
            after[:, n] = f * h[:, n] + (1 - f) * z
        h = after
        states.append(h.reshape(2, 2 * H))
    expected = np.stack(states, 1) @ arrays["output_projection.weight"].T + arrays["output_projection.bias"]
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state, h, rtol=1e-12, atol=1e-13)


def test_an_output_projection_is_given_once() -> None:
    weights = gru_weights_from_keras(keras_weights(), KERAS)
    kernel, x = RNG.normal(size=(H, 2)), RNG.normal(size=(1, 3, F))
    projected = weights.with_output_projection(kernel, np.ones(2))
    expected = gru_from_weights(weights)(x)[0] @ kernel + 1
    np.testing.assert_allclose(gru_from_weights(projected)(x)[0], expected, rtol=1e-13)
    with pytest.raises(ValueError, match="GRUWeights: `output_kernel` is given already"):
        projected.with_output_projection(kernel)
    with pytest.raises(ValueError, match=r"GRUWeights: `output_kernel` is f64\[3,2\]; expected \[4, P\]"):
        weights.with_output_projection(kernel[:3])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reset_after": 1}, "`config.reset_after` is 1; expected True or False"),
        ({"reset_after": True}, r"`bias` is f64\[12\]; expected \[2, 12\]"),
        ({"activation": "linear"}, "`config.activation` is 'linear'; expected 'tanh'"),
        ({"activation": {"class_name": "Swish"}}, "`config.activation` is {'class_name': 'Swish'}; expected 'tanh'"),
        ({"recurrent_activation": "hard_sigmoid"}, "`config.recurrent_activation` is 'hard_sigmoid'"),
        ({"dropout": 0.5}, "`config.dropout` is 0.5; expected 0"),
        ({"go_backwards": True}, "`config.go_backwards` is True; expected False"),
        (
            {"dtype": "mixed_float16"},
            "`config.dtype` is 'mixed_float16'; expected 'float64': the layer computes in the dtype of its weights",
        ),
        ({"spectral_norm": 1}, "`config.spectral_norm` is 1; expected no such setting"),
        ({"units": 5}, r"`kernel` is f64\[3,12\]; expected \[I, 15\]"),
        ({"use_bias": False}, "`weights` is 3 arrays; expected kernel, recurrent_kernel"),
    ],
)
def test_settings_of_keras_that_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^gru_weights_from_keras: {said}"):
        gru_weights_from_keras(keras_weights(), KERAS | change)


@pytest.mark.parametrize("name", KERAS)
def test_a_setting_of_keras_that_is_missing(name: str) -> None:
    config = {key: value for key, value in KERAS.items() if key != name}
    expected = "True or False: add False for a layer" if name == "reset_after" else "the configuration"
    with pytest.raises(ValueError, match=f"`config.{name}` is missing; expected {expected}"):
        gru_weights_from_keras(keras_weights(), config)


def test_arrays_of_keras_that_are_refused() -> None:
    kernel, recurrent, bias = keras_weights()
    with pytest.raises(ValueError, match=r"`weights` is 2 arrays; expected kernel, recurrent_kernel, bias"):
        gru_weights_from_keras([kernel, recurrent], KERAS)
    with pytest.raises(ValueError, match=r"`recurrent_kernel` is f64\[3,12\]; expected \[4, 12\]"):
        gru_weights_from_keras([kernel, recurrent[:3], bias], KERAS)
    # Biases of `reset_after=True`.
    with pytest.raises(ValueError, match=r"`bias` is f64\[2,12\]; expected \[12\]"):
        gru_weights_from_keras([kernel, recurrent, np.stack([bias, bias])], KERAS)
    with pytest.raises(TypeError, match=r"`bias` is f32\[12\]; expected float64 to match `kernel`"):
        gru_weights_from_keras([kernel, recurrent, bias.astype("f4")], KERAS)
    with pytest.raises(TypeError, match=r"`kernel` is i64\[3,12\]; expected float16, bfloat16, float32 or float64"):
        gru_weights_from_keras([kernel.astype("i8"), recurrent, bias], KERAS)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"linear_before_reset": 2}, "`attributes.linear_before_reset` is 2; expected 0 or 1"),
        ({"direction": b"reverse"}, "`attributes.direction` is 'reverse'; expected 'forward'"),
        ({"direction": "bidirectional"}, "`attributes.direction` is 'bidirectional'; expected 'forward'"),
        (
            {"activations": [b"Sigmoid", b"Relu"]},
            r"`attributes.activations` is \('Sigmoid', 'Relu'\); expected Sigmoid, Tanh",
        ),
        ({"activation_alpha": [0.2]}, r"`attributes.activation_alpha` is \(0.2,\); expected \(\)"),
        ({"clip": 5.0}, "`attributes.clip` is 5.0; expected no such attribute"),
        ({"layout": 2}, "`attributes.layout` is 2; expected 0 or 1"),
        ({"hidden_size": 5}, "`attributes.hidden_size` is 5; expected 4 to match `R`"),
        ({"input_forget": 1}, "`attributes.input_forget` is 1; expected no such attribute"),
    ],
)
def test_attributes_of_onnx_that_are_refused(attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^gru_weights_from_onnx: {said}"):
        gru_weights_from_onnx(**onnx_weights(), attributes=attributes)


def test_arrays_of_onnx_that_are_refused() -> None:
    weights = onnx_weights()
    both = {name: np.concatenate([array, array]) for name, array in weights.items()}
    with pytest.raises(ValueError, match=r"`R` is f64\[2,12,4\]; expected \[1, 12, 4\]"):
        gru_weights_from_onnx(**both)
    with pytest.raises(ValueError, match=r"`R` is f64\[1,12,3\]; expected \[1, 3·H, H\]"):
        gru_weights_from_onnx(weights["W"], weights["R"][:, :, :3])
    with pytest.raises(ValueError, match=r"`W` is f64\[1,9,3\]; expected \[1, 12, I\]"):
        gru_weights_from_onnx(weights["W"][:, :9], weights["R"])
    with pytest.raises(ValueError, match=r"`B` is f64\[1,12\]; expected \[1, 24\]"):
        gru_weights_from_onnx(weights["W"], weights["R"], weights["B"][:, :12])


@pytest.mark.parametrize(
    ("name", "axis"),
    [(name, int(name.endswith("_weight") or name == "output_projection.weight")) for name in xma_weights()],
)
def test_a_parameter_of_xma_that_is_missing_or_of_another_shape(name: str, axis: int) -> None:
    weights = xma_weights("gru.")
    wrong = weights | {f"gru.{name}": np.repeat(weights[f"gru.{name}"], 2, axis)}
    with pytest.raises(ValueError, match=rf"`gru.{name}` is f64\[.*\]; expected \["):
        gru_weights_from_xma(wrong, **HEADS, prefix="gru.")
    del weights[f"gru.{name}"]
    with pytest.raises(ValueError, match=rf"`state_dict\['gru.{name}'\]` is missing"):
        gru_weights_from_xma(weights, **HEADS, prefix="gru.")


@pytest.mark.parametrize(
    ("change", "options", "error", "said"),
    [
        ({"conv1d.weight": np.ones((8, 1, 4))}, {}, ValueError, "expected a layer without convolution"),
        ({"norm.weight": np.ones(4)}, {}, ValueError, r"`state_dict\['norm.weight'\]` is f64\[4\]; expected one of"),
        ({"reset_weight": np.ones((1, H, H), "f4")}, {}, TypeError, "`reset_weight` is f32"),
        ({}, {"num_input_heads": 1}, ValueError, r"`input_projection.weight` is f64\[20,3\]; expected \[16, I\]"),
        ({}, {"num_input_heads": 2.0}, TypeError, "`num_input_heads` is 2.0; expected an integer of at least 1"),
    ],
)
def test_what_of_xma_is_refused(change: Any, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        gru_weights_from_xma(xma_weights() | change, **(HEADS | options))


def test_weights_written_by_hand_are_checked() -> None:
    W = np.ones((1, 4, 4))
    with pytest.raises(ValueError, match=r"GRUWeights: `reset_weight` is f64\[1,3,3\]; expected \[Nwr, H=4, H=4\]"):
        GRUWeights(input_kernel=np.ones((2, 12)), state_weight=W, forget_weight=W, reset_weight=np.ones((1, 3, 3)))
    with pytest.raises(ValueError, match=r"GRUWeights: `recurrent_bias` is f64\[1,4\]; expected None without"):
        GRUWeights(
            input_kernel=np.ones((2, 12)), state_weight=W, forget_weight=W, reset_weight=W, recurrent_bias=W[:, 0]
        )
    with pytest.raises(ValueError, match=r"GRUWeights: `recurrent_bias` is f64\[1,3\]; expected \[Nw=1, H=4\]"):
        GRUWeights(
            input_kernel=np.ones((2, 12)),
            state_weight=W,
            forget_weight=W,
            reset_weight=W,
            recurrent_bias=W[:, 0, :3],
            reset_after=True,
        )
    with pytest.raises(ValueError, match=r"GRUWeights: `input_kernel` is f64\[2,11\]; expected \[I, 12\]"):
        GRUWeights(input_kernel=np.ones((2, 11)), state_weight=W, forget_weight=W, reset_weight=W)
