"""Weights of GRU layers of Keras, ONNX and xma, read into the layout of `GRUWeights`.

All three compute the same function as `gru`; layers of Keras and ONNX have one head (`one_head`). Settings under which
a layer computes another function are refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from reference._arrays import NUMPY
from reference._call import Call, describe
from reference.interop.gru_weights import GRUWeights, in_columns, one_head

_KERAS_SETTINGS: Mapping[str, tuple[Any, str]] = {
    "activation": ("tanh", "the candidate is a tanh"),
    "recurrent_activation": ("sigmoid", "both gates are sigmoids"),
    "dropout": (0, "there is no dropout; set it to 0 in the configuration to load the weights for inference"),
    "recurrent_dropout": (0, "there is no dropout; set it to 0 in the configuration to load the weights for inference"),
    "go_backwards": (False, "reverse the input in time instead"),
    "stateful": (False, "pass the returned state to the next call instead"),
    "zero_output_for_mask": (False, "there are no masks; pack the sequences instead"),
    "time_major": (False, "the batch is the first axis"),
}
"""Settings of Keras that have one legal value here, and why."""

_KERAS_REQUIRED = ("units", "use_bias", "reset_after", "activation", "recurrent_activation")

_KERAS_CONFIGURATION = "the configuration of a keras.layers.GRU"
_KERAS_ADVICE = {"reset_after": "True or False: add False for a layer that was saved before Keras had this setting"}
"""Advice for a required setting that is missing."""

_KERAS_WITHOUT_EFFECT = {
    "name", "trainable", "return_sequences", "return_state", "unroll", "implementation", "seed",
    "batch_input_shape", "batch_shape",
    "kernel_initializer", "kernel_regularizer", "kernel_constraint",
    "recurrent_initializer", "recurrent_regularizer", "recurrent_constraint",
    "bias_initializer", "bias_regularizer", "bias_constraint", "activity_regularizer",
}  # fmt: skip
"""Settings that say how Keras trains or what it returns, and do not change the function of the weights."""

_ONNX_ACTIVATIONS = ("sigmoid", "tanh")
_ONNX_SETTINGS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "linear_before_reset": ((0, 1), "the reset gate is applied before or after the recurrent product"),
    "direction": (("forward",), "reverse the input in time instead, and run two layers for both directions"),
    "activation_alpha": (((),), "sigmoid and tanh take no parameter"),
    "activation_beta": (((),), "sigmoid and tanh take no parameter"),
    # It says how the data lie, not the weights.
    "layout": ((0, 1), "an ONNX layout"),
}

_XMA_WEIGHTS = ("state_weight", "forget_weight", "reset_weight")
_XMA_PROJECTIONS = ("input_projection", "output_projection")


def gru_weights_from_keras(weights: Sequence[np.ndarray], config: Mapping[str, Any]) -> GRUWeights:
    """Weights of ``keras.layers.GRU``.

    Keras keeps columns in the order z, r, h̃; z is the forget gate.

    Args:
        weights: ``layer.get_weights()``: ``kernel (input_size, 3·units)``, ``recurrent_kernel (units, 3·units)`` and,
            with ``use_bias``, ``bias (3·units,)``; with ``reset_after`` it is ``(2, 3·units)``, the biases of the input
            and then those of the recurrence. Floating-point NumPy arrays of one dtype.
        config: ``layer.get_config()``.

    Returns:
        Weights of a layer with one head of dimension ``units``, whose output is Keras' ``return_sequences=True``.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: an array is missing or has another shape, a setting is missing or unknown, or it asks for
            something that `gru` does not compute: activations other than tanh and sigmoid, dropout,
            ``go_backwards``, ``stateful``, ``zero_output_for_mask``, or a dtype policy other than the weights' dtype.

    Source:
        Keras 3, ``keras.layers.GRU``.
    """
    call = Call("gru_weights_from_keras", NUMPY)
    check_mapping(call, "config", config, "`layer.get_config()`")
    if isinstance(weights, str | bytes) or not isinstance(weights, Sequence):
        call.refuse(TypeError, "weights", describe(weights), "a list of arrays, `layer.get_weights()`")
    for name in _KERAS_REQUIRED:
        if name not in config:
            call.refuse(ValueError, f"config.{name}", "missing", _KERAS_ADVICE.get(name, _KERAS_CONFIGURATION))
    for name, value in config.items():
        if name in _KERAS_SETTINGS:
            expected, why = _KERAS_SETTINGS[name]
            _expect(call, f"config.{name}", value, expected, why)
        elif name not in (*_KERAS_REQUIRED, *_KERAS_WITHOUT_EFFECT, "dtype"):
            call.refuse(ValueError, f"config.{name}", _shown(value), "no such setting: its meaning is not known")
    units = call.integer("config.units", config["units"], 1)
    assert units is not None
    has_bias = call.flag("config.use_bias", config["use_bias"])
    reset_after = call.flag("config.reset_after", config["reset_after"])
    names = ("kernel", "recurrent_kernel", "bias") if has_bias else ("kernel", "recurrent_kernel")
    if len(weights) != len(names):
        call.refuse(ValueError, "weights", f"{len(weights)} arrays", f"{', '.join(names)}")
    arrays = dict(zip(names, weights, strict=True))
    call.floating(**arrays)
    call.shape("kernel", arrays["kernel"], f"I {3 * units}")
    call.shape("recurrent_kernel", arrays["recurrent_kernel"], f"{units} {3 * units}")
    if has_bias:
        call.shape("bias", arrays["bias"], f"2 {3 * units}" if reset_after else f"{3 * units}")
    if "dtype" in config:
        policy, dtype = _keras_policy(config["dtype"]), str(arrays["kernel"].dtype)
        why = (
            f"the layer computes in the dtype of its weights; set it to {dtype!r} in the configuration to load them so"
        )
        _expect(call, "config.dtype", policy, dtype, why)
    biases = (None, None) if not has_bias else arrays["bias"] if reset_after else (arrays["bias"], None)
    update, reset, candidate = in_columns(arrays["kernel"], arrays["recurrent_kernel"], *biases)
    return one_head(update=update, reset=reset, candidate=candidate, reset_after=reset_after)


def _keras_policy(dtype: Any) -> Any:
    """The name of a dtype policy, which Keras 3 writes as a nested configuration."""
    if isinstance(dtype, Mapping) and isinstance(dtype.get("config"), Mapping):
        return dtype["config"].get("name")
    return dtype


def gru_weights_from_onnx(
    W: np.ndarray, R: np.ndarray, B: np.ndarray | None = None, attributes: Mapping[str, Any] | None = None
) -> GRUWeights:
    """Weights of ONNX's operator ``GRU``.

    ONNX keeps rows in the order z, r, h. `W`, `R` and
    `B` are the node's inputs of these names; an ``initial_h`` is the layer's `input_state`, and ``sequence_lens``
    becomes a packing, ``cu_seqlens``.

    Args:
        W: ``(1, 3·H, input_size)``.
        R: ``(1, 3·H, H)``.
        B: ``(1, 6·H)``, the biases of the input and then those of the recurrence; None means none.
        attributes: the node's attributes by name, ``onnx.helper.get_attribute_value``; strings may be bytes. What
            is not given has ONNX's default, as in a node.

    Returns:
        Weights of a layer with one head. It takes the batch as first axis, as ONNX does with ``layout=1``.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: shapes disagree, an attribute is unknown, or it asks for something that `gru` does not compute:
            a direction other than forward, other activations, ``clip``.

    Source:
        ONNX operators, ``GRU``, versions 14 and 22.
    """
    call = Call("gru_weights_from_onnx", NUMPY)
    if attributes is not None:
        check_mapping(call, "attributes", attributes, "the attributes by name")
    given = {name: _decoded(value) for name, value in (attributes or {}).items()}
    for name, value in given.items():
        if name in _ONNX_SETTINGS:
            legal, why = _ONNX_SETTINGS[name]
            if value not in legal:
                _refuse_setting(call, f"attributes.{name}", value, " or ".join(_shown(each) for each in legal), why)
        elif name == "activations":
            names = value if isinstance(value, tuple) else ()
            if tuple(str(each).lower() for each in names) != _ONNX_ACTIVATIONS:
                _refuse_setting(call, "attributes.activations", value, "Sigmoid, Tanh", "those of `gru`")
        elif name == "clip":
            _refuse_setting(
                call, "attributes.clip", value, "no such attribute", "`gru` does not bound its preactivations"
            )
        elif name != "hidden_size":
            call.refuse(ValueError, f"attributes.{name}", _shown(value), "no such attribute: its meaning is not known")
    call.floating(W=W, R=R, **({} if B is None else {"B": B}))
    if R.ndim != 3 or R.shape[1] != 3 * R.shape[2]:
        call.refuse(ValueError, "R", describe(R), "[1, 3·H, H]")
    H = R.shape[2]
    if "hidden_size" in given and given["hidden_size"] != H:
        call.refuse(ValueError, "attributes.hidden_size", _shown(given["hidden_size"]), f"{H} to match `R`")
    call.shape("R", R, f"1 {3 * H} {H}")
    call.shape("W", W, f"1 {3 * H} I")
    if B is not None:
        call.shape("B", B, f"1 {6 * H}")
    biases = (None, None) if B is None else np.split(B[0], 2)
    update, reset, candidate = in_columns(W[0].T, R[0].T, *biases)
    reset_after = given.get("linear_before_reset", 0) == 1
    return one_head(update=update, reset=reset, candidate=candidate, reset_after=reset_after)


def _decoded(value: Any) -> Any:
    """An attribute's value: bytes as text, lists and arrays as tuples."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return tuple(_decoded(each) for each in value)


def gru_weights_from_xma(
    state_dict: Mapping[str, np.ndarray],
    *,
    num_input_heads: int,
    num_forget_input_heads: int,
    num_reset_input_heads: int,
    gradient_clipping: float | None = None,
    prefix: str = "",
) -> GRUWeights:
    """Weights of the GRU layer of xma (accelerated-model-architectures), whose function is that of `GRU`.

    The state dict does not hold the numbers of input heads, which are arguments of xma's layer, nor its clipping. The
    numbers of weight heads are read from the shapes.

    Args:
        state_dict: parameters by name, as ``safetensors.numpy.load_file`` returns them: ``input_projection.weight``,
            ``state_weight``, ``forget_weight``, ``reset_weight``, ``output_projection.weight`` and, if the layer has
            biases, ``input_projection.bias`` and ``output_projection.bias``. A projection's weight is
            ``(features out, features in)``.
        num_input_heads, num_forget_input_heads, num_reset_input_heads: as given to xma's layer.
        gradient_clipping: as given to xma's layer; a number, or None.
        prefix: what stands before these names, such as ``"model.layers.0.gru."``. Names without it are not read.

    Returns:
        Weights of a layer with the same parameters.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: a parameter is missing, unknown (a ``conv1d`` included, which `GRU` does not have) or has another
            shape; a head count is not an integer of at least 1 or does not divide the largest one.

    Source:
        github.com/open-lm-engine/accelerated-model-architectures, ``xma/layers/gru``.
    """
    call = Call("gru_weights_from_xma", NUMPY)
    check_mapping(call, "state_dict", state_dict, "arrays by name")
    if gradient_clipping is not None:
        call.number("gradient_clipping", gradient_clipping, "None or a number", lambda _: True)
    if not isinstance(prefix, str):
        call.refuse(TypeError, "prefix", describe(prefix), "the beginning of names")
    for name in state_dict:
        if not isinstance(name, str):
            call.refuse(TypeError, "state_dict", f"a mapping with the key {name!r}", "arrays by name")
    arrays = {name.removeprefix(prefix): array for name, array in state_dict.items() if name.startswith(prefix)}
    needed = (*_XMA_WEIGHTS, *(f"{name}.weight" for name in _XMA_PROJECTIONS))
    biases = tuple(f"{name}.bias" for name in _XMA_PROJECTIONS)
    needed += biases if any(name in arrays for name in biases) else ()
    for name in needed:
        if name not in arrays:
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", "missing", "a parameter of xma's GRU")
    for name, array in arrays.items():
        if name.partition(".")[0] == "conv1d":
            expected = "a layer without convolution, `kernel_size=None`"
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", describe(array), expected)
        if name not in needed:
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", describe(array), f"one of {', '.join(needed)}")
    call.floating(**arrays)
    if arrays["state_weight"].ndim:
        call.bind("H", arrays["state_weight"].shape[-1], f"{prefix}state_weight")
    for name, heads in zip(_XMA_WEIGHTS, ("Nw", "Nwf", "Nwr"), strict=True):
        call.shape(f"{prefix}{name}", arrays[name], f"{heads} H H")
    counts = (
        call.integer("num_input_heads", num_input_heads, 1),
        call.integer("num_forget_input_heads", num_forget_input_heads, 1),
        call.integer("num_reset_input_heads", num_reset_input_heads, 1),
    )
    into = sum(count or 0 for count in counts) * call["H"]
    states = max(*(count or 0 for count in counts), call["Nw"], call["Nwf"], call["Nwr"]) * call["H"]
    shapes = {"input_projection.weight": f"{into} I", "input_projection.bias": f"{into}"}
    shapes |= {"output_projection.weight": f"O {states}", "output_projection.bias": "O"}
    for name, shape in shapes.items():
        if name in arrays:
            call.shape(f"{prefix}{name}", arrays[name], shape)
    return GRUWeights(
        input_kernel=arrays["input_projection.weight"].T,
        input_bias=arrays.get("input_projection.bias"),
        state_weight=arrays["state_weight"],
        forget_weight=arrays["forget_weight"],
        reset_weight=arrays["reset_weight"],
        output_kernel=arrays["output_projection.weight"].T,
        output_bias=arrays.get("output_projection.bias"),
        num_input_heads=num_input_heads,
        num_forget_input_heads=num_forget_input_heads,
        num_reset_input_heads=num_reset_input_heads,
        gradient_clipping=gradient_clipping,
    )


def check_mapping(call: Call, argument: str, value: Any, expected: str) -> None:
    if not isinstance(value, Mapping):
        call.refuse(TypeError, argument, describe(value), f"a mapping: {expected}")


def _expect(call: Call, name: str, value: Any, expected: Any, why: str) -> None:
    is_plain = isinstance(value, bool | int | float | str)
    if not is_plain or (type(value) is bool and type(expected) is not bool) or value != expected:
        _refuse_setting(call, name, value, _shown(expected), why)


def _refuse_setting(call: Call, name: str, value: Any, expected: str, why: str) -> NoReturn:
    call.refuse(ValueError, name, _shown(value), f"{expected}: {why}")


def _shown(value: Any) -> str:
    """A setting's value as a message shows it."""
    return repr(value) if isinstance(value, tuple | list | Mapping) else describe(value)
