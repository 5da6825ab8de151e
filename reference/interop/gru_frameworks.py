"""Weights of the GRU layers of PyTorch and Flax, read into the layout of `GRUWeights`.

Both apply the reset gate after the recurrent product, and their update gate weights the old state (`one_head`).
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference._arrays import NUMPY
from reference._call import Call, describe
from reference.interop.gru_checkpoints import check_mapping
from reference.interop.gru_weights import Gate, GRUWeights, in_columns, one_head

_TORCH_NAME = re.compile(r"(weight|bias)_(ih|hh)_l[0-9]+(_reverse)?")
_FLAX_BIASES = ("ir", "iz", "in", "hn")
_FLAX = (*_FLAX_BIASES, "hr", "hz")
_NNX = ("dense_i", "dense_h")


def gru_weights_from_torch(
    state_dict: Mapping[str, np.ndarray], *, layer: int = 0, reverse: bool = False, prefix: str = ""
) -> GRUWeights:
    """Weights of one layer and direction of ``torch.nn.GRU``.

    PyTorch keeps rows in the order r, z, n. A layer of a stack reads the outputs of both directions of the one before
    it. The reverse direction reads its input backwards in time.

    Args:
        state_dict: parameters by name as NumPy arrays, as ``safetensors.numpy.load_file`` returns them:
            ``weight_ih_l0 (3·H, input_size)``, ``weight_hh_l0 (3·H, H)`` and, if the layer has biases,
            ``bias_ih_l0 (3·H,)`` and ``bias_hh_l0 (3·H,)``.
        layer: which layer of the stack.
        reverse: whether its reverse direction.
        prefix: what stands before these names, such as ``"encoder.gru."``. Names without it are not read.

    Returns:
        Weights of a layer with one head and `reset_after`. It takes the batch as first axis, as PyTorch's does with
        ``batch_first=True``.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: a parameter is missing, has another shape, or is none of ``torch.nn.GRU``.

    Source:
        PyTorch, ``torch.nn.GRU``.
    """
    call = Call("gru_weights_from_torch", NUMPY)
    check_mapping(call, "state_dict", state_dict, "arrays by name")
    number = call.integer("layer", layer, 0)
    suffix = f"_l{number}_reverse" if call.flag("reverse", reverse) else f"_l{number}"
    if not isinstance(prefix, str):
        call.refuse(TypeError, "prefix", describe(prefix), "the beginning of names")
    for name in state_dict:
        if not isinstance(name, str):
            call.refuse(TypeError, "state_dict", f"a mapping with the key {name!r}", "arrays by name")
    arrays = {name.removeprefix(prefix): array for name, array in state_dict.items() if name.startswith(prefix)}
    for name, array in arrays.items():
        if not _TORCH_NAME.fullmatch(name):
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", describe(array), "a parameter of torch.nn.GRU")
    names = [f"{kind}{suffix}" for kind in ("weight_ih", "weight_hh")]
    biases = [f"{kind}{suffix}" for kind in ("bias_ih", "bias_hh")]
    needed = [*names, *(biases if any(name in arrays for name in biases) else ())]
    for name in needed:
        if name not in arrays:
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", "missing", "a parameter of torch.nn.GRU")
    call.floating(**{name: arrays[name] for name in needed})
    recurrent = arrays[names[1]]
    H = recurrent.shape[-1] if recurrent.ndim else 0
    call.shape(f"{prefix}{names[1]}", recurrent, f"{3 * H} {H}")
    call.shape(f"{prefix}{names[0]}", arrays[names[0]], f"{3 * H} I")
    for name in needed[2:]:
        call.shape(f"{prefix}{name}", arrays[name], f"{3 * H}")
    bias, recurrent_bias = (arrays.get(name) for name in biases)
    reset, update, candidate = in_columns(arrays[names[0]].T, recurrent.T, bias, recurrent_bias)
    return one_head(update=update, reset=reset, candidate=candidate, reset_after=True)


def gru_weights_from_flax(params: Mapping[str, Mapping[str, Any]]) -> GRUWeights:
    """Weights of ``flax.linen.GRUCell`` or ``flax.nnx.GRUCell``, with their own ``gate_fn`` and ``activation_fn``.

    Args:
        params: the cell's parameters, as JAX or NumPy arrays. Of Linen ``variables["params"]``: the dense layers
            ``ir``, ``iz`` and ``in`` of the input and ``hr``, ``hz`` and ``hn`` of the state, each with its ``kernel``
            and all but ``hr`` and ``hz`` with a ``bias``. Of NNX ``nnx.to_pure_dict(nnx.state(cell, nnx.Param))``:
            ``dense_i``, with a ``bias``, and ``dense_h``, whose columns are in the order r, z, n.

    Returns:
        Weights of a layer with one head and `reset_after`.

    Raises:
        TypeError: an array is not a floating-point array, or dtypes differ.
        ValueError: a parameter is missing, unknown or has another shape.

    Source:
        Flax, ``flax.linen.GRUCell`` and ``flax.nnx.GRUCell``.
    """
    call = Call("gru_weights_from_flax", NUMPY)
    check_mapping(call, "params", params, "dense layers by name")
    if any(name in params for name in _NNX):
        arrays = _dense_layers(call, params, _NNX, ("dense_i",), "flax.nnx.GRUCell")
        recurrent = arrays["dense_h.kernel"]
        H = recurrent.shape[0] if recurrent.ndim else 0
        call.shape("dense_h.kernel", recurrent, f"{H} {3 * H}")
        call.shape("dense_i.kernel", arrays["dense_i.kernel"], f"I {3 * H}")
        call.shape("dense_i.bias", arrays["dense_i.bias"], f"{3 * H}")
        reset, update, candidate = in_columns(arrays["dense_i.kernel"], recurrent, arrays["dense_i.bias"], None)
        return one_head(update=update, reset=reset, candidate=candidate, reset_after=True)
    arrays = _dense_layers(call, params, _FLAX, _FLAX_BIASES, "flax.linen.GRUCell")
    for name in _FLAX:
        call.shape(f"{name}.kernel", arrays[f"{name}.kernel"], "H H" if name[0] == "h" else "I H")
    for name in _FLAX_BIASES:
        call.shape(f"{name}.bias", arrays[f"{name}.bias"], "H")

    def gate(letter: str) -> Gate:
        kernel, recurrent = arrays[f"i{letter}.kernel"], arrays[f"h{letter}.kernel"]
        return Gate(kernel, recurrent, arrays[f"i{letter}.bias"], arrays.get(f"h{letter}.bias"))

    return one_head(update=gate("z"), reset=gate("r"), candidate=gate("n"), reset_after=True)


def _dense_layers(
    call: Call, params: Mapping[str, Any], names: tuple[str, ...], with_bias: tuple[str, ...], cell: str
) -> dict[str, np.ndarray]:
    """The arrays ``NAME.kernel`` and ``NAME.bias`` of a cell's dense layers, all of them and no others."""
    for name in (*names, *params):
        if name not in params:
            call.refuse(ValueError, f"params[{name!r}]", "missing", f"a dense layer of {cell}")
        if name not in names:
            call.refuse(ValueError, f"params[{name!r}]", describe(params[name]), f"one of {', '.join(names)}")
        check_mapping(call, f"params[{name!r}]", params[name], "`kernel` and `bias`")
        expected = {"kernel", "bias"} if name in with_bias else {"kernel"}
        if set(params[name]) != expected:
            found = ", ".join(map(repr, params[name]))
            call.refuse(ValueError, f"params[{name!r}]", f"a mapping of {found}", " and ".join(sorted(expected)))
    arrays = {f"{name}.{part}": _in_numpy(array) for name in names for part, array in params[name].items()}
    call.floating(**arrays)
    return arrays


def _in_numpy(array: Any) -> Any:
    """An array of JAX as one of NumPy; anything else as it is, to be refused by name."""
    return np.asarray(array) if type(array).__module__.startswith("jax") else array
