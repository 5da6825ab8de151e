"""How each operation of the contract is called, as data: flat named arrays in, flat named arrays out.

The laws speak of arrays by name (``q``, ``C0``, ``cu_seqlens``). A binding here turns those names into a call of the
public function, in whatever framework the arrays are, and its results back into names. Nothing here knows a framework.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reference.arguments import MLSTMState

Arrays = Mapping[str, Any]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """One public operation.

    Attributes:
        name: its public name.
        arrays: its array arguments by the names used in laws.
        outputs: its outputs by name; the cotangent of ``h`` is named ``h`` too.
        call: ``(function, arrays, options) → outputs``.
        backward: ``(backward function, arrays, options, cotangents) → gradients``, for targets that differentiate
            themselves; None where there is no such convention.
        differentiable: whether the operation has a gradient.
    """

    name: str
    arrays: tuple[str, ...]
    outputs: tuple[str, ...]
    call: Callable[[Callable, Arrays, Options], dict[str, Any]]
    backward: Callable[[Callable, Arrays, Options, Arrays], dict[str, Any]] | None = None
    differentiable: bool = True


def _given(options: Options, *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def _accepted(function: Callable, options: dict[str, Any], *droppable: str) -> dict[str, Any]:
    """The options without those of ``droppable`` that the function does not take: they may not change a value."""
    taken = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in taken or name not in droppable}


def _elementwise(argument: str) -> Callable:
    return lambda function, arrays, options: {"y": function(arrays[argument])}


def _elementwise_backward(argument: str, cotangent: str) -> Callable:
    return lambda function, arrays, options, cotangents: function(arrays[argument], **{cotangent: cotangents["y"]})


def _state(arrays: Arrays, names: tuple[str, str, str] = ("C0", "n0", "m0")) -> MLSTMState | None:
    parts = [arrays.get(name) for name in names]
    return None if all(part is None for part in parts) else MLSTMState(*parts)


def _mlstm(function: Callable, arrays: Arrays, options: Options) -> dict[str, Any]:
    keywords = _given(options, "chunk_size", "eps", "max_seqlen", "kernel_backend")
    if arrays.get("cu_seqlens") is not None:
        keywords["cu_seqlens"] = arrays["cu_seqlens"]
    state = options["initial_state"] if "initial_state" in options else _state(arrays)
    result = function(*(arrays[name] for name in "qkvif"), initial_state=state, return_state=True, **keywords)
    h, last = result
    return {"h": h, "C": last[0], "n": last[1], "m": last[2]}


def _mlstm_backward(function: Callable, arrays: Arrays, options: Options, cotangents: Arrays) -> dict[str, Any]:
    keywords = _given(options, "chunk_size", "eps", "max_seqlen", "kernel_backend")
    if arrays.get("cu_seqlens") is not None:
        keywords["cu_seqlens"] = arrays["cu_seqlens"]
    gradients = function(
        *(arrays[name] for name in "qkvif"),
        initial_state=_state(arrays),
        dh=cotangents["h"],
        dstate=MLSTMState(*(cotangents[name] for name in "Cnm")),
        **_accepted(function, keywords, "chunk_size", "kernel_backend"),
    )
    flat = {name: gradients[name] for name in "qkvif"}
    if "initial_state" in gradients:
        flat.update(zip(("C0", "n0", "m0"), gradients["initial_state"], strict=True))
    return flat


def _mlstm_step(function: Callable, arrays: Arrays, options: Options) -> dict[str, Any]:
    state = options["initial_state"] if "initial_state" in options else _state(arrays)
    h, last = function(*(arrays[name] for name in "qkvif"), state, **_given(options, "eps", "kernel_backend"))
    return {"h": h, "C": last[0], "n": last[1], "m": last[2]}


def _mlstm_step_backward(function: Callable, arrays: Arrays, options: Options, cotangents: Arrays) -> dict[str, Any]:
    gradients = function(
        *(arrays[name] for name in "qkvif"),
        _state(arrays),
        dh=cotangents["h"],
        dstate=MLSTMState(*(cotangents[name] for name in "Cnm")),
        **_given(options, "eps"),
    )
    flat = {name: gradients[name] for name in "qkvif"}
    return {**flat, **dict(zip(("C0", "n0", "m0"), gradients["state"], strict=True))}


def _fwbw(function: Callable, arrays: Arrays, options: Options) -> dict[str, Any]:
    states = [arrays[name] for name in ("C0", "n0", "m0")] if arrays.get("C0") is not None else []
    result = function(options["config"])(*(arrays[name] for name in "qkvif"), *states)
    if not options["config"].get("return_state"):
        return {"h": result}
    h, last = result
    return {"h": h, "C": last[0], "n": last[1], "m": last[2]}


def _fwbw_backward(function: Callable, arrays: Arrays, options: Options, cotangents: Arrays) -> dict[str, Any]:
    states = [arrays[name] for name in ("C0", "n0", "m0")] if arrays.get("C0") is not None else []
    last = {keyword: cotangents[name] for keyword, name in _FWBW_COTANGENTS if name in cotangents}
    gradients = function(options["config"]).backward(
        *(arrays[name] for name in "qkvif"), *states, dh=cotangents["h"], **last
    )
    return dict(zip((*"qkvif", "C0", "n0", "m0"), gradients, strict=True))


_FWBW_COTANGENTS = (("dc_last", "C"), ("dn_last", "n"), ("dm_last", "m"))


def fwbw_by_hand(namespace: Mapping[str, Callable], arrays: Arrays, options: Options, cotangents: Arrays) -> Any:
    """``fwbw_forward`` and then ``fwbw_backward`` with its context: ``(outputs, gradients)``."""
    config = options["config"]
    states = [arrays[name] for name in ("C0", "n0", "m0")] if arrays.get("C0") is not None else []
    result, context = namespace["fwbw_forward"](*(arrays[name] for name in "qkvif"), config, *states)
    outputs = {"h": result}
    if config.get("return_state"):
        outputs = dict(zip("hCnm", (result[0], *result[1]), strict=True))
    last = {keyword: cotangents[name] for keyword, name in _FWBW_COTANGENTS if name in cotangents}
    gradients = namespace["fwbw_backward"](context, cotangents["h"], config, **last)
    names = (*"qkvif", "C0", "n0", "m0")
    return outputs, {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}


GRU_ARRAYS = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight")


def _gru_keywords(arrays: Arrays, options: Options) -> dict[str, Any]:
    keywords = _given(options, "gradient_clipping", "max_seqlen", "kernel_backend")
    for name in ("input_state", "cu_seqlens"):
        if arrays.get(name) is not None:
            keywords[name] = arrays[name]
    return keywords


def _gru(function: Callable, arrays: Arrays, options: Options) -> dict[str, Any]:
    y, state = function(*(arrays[name] for name in GRU_ARRAYS), **_gru_keywords(arrays, options))
    return {"y": y, "state": state}


def _gru_backward(function: Callable, arrays: Arrays, options: Options, cotangents: Arrays) -> dict[str, Any]:
    keywords = _accepted(function, _gru_keywords(arrays, options), "kernel_backend")
    return function(*(arrays[name] for name in GRU_ARRAYS), **keywords, dy=cotangents["y"], dstate=cotangents["state"])


def _dtilde(function: Callable, arrays: Arrays, options: Options) -> dict[str, Any]:
    return {"y": function(arrays["igate"], arrays["fgate"])}


def _dtilde_backward(function: Callable, arrays: Arrays, options: Options, cotangents: Arrays) -> dict[str, Any]:
    return function(arrays["igate"], arrays["fgate"], dD=cotangents["y"])


_MLSTM = ("q", "k", "v", "i", "f", "C0", "n0", "m0")
_STATE = ("h", "C", "n", "m")

OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("rev_cumsum", ("x",), ("y",), _elementwise("x"), _elementwise_backward("x", "dy")),
        Operation("rev_cumsum_off", ("x",), ("y",), _elementwise("x"), _elementwise_backward("x", "dy")),
        Operation(
            "causal_forget_matrix",
            ("forget_gates",),
            ("y",),
            _elementwise("forget_gates"),
            _elementwise_backward("forget_gates", "dF"),
        ),
        Operation("dtilde_matrix", ("igate", "fgate"), ("y",), _dtilde, _dtilde_backward),
        Operation("mlstm", (*_MLSTM, "cu_seqlens"), _STATE, _mlstm, _mlstm_backward),
        Operation("mlstm_step", _MLSTM, _STATE, _mlstm_step, _mlstm_step_backward),
        Operation("mlstm_fwbw_custom_grad", _MLSTM, _STATE, _fwbw, _fwbw_backward),
        Operation("gru", (*GRU_ARRAYS, "input_state", "cu_seqlens"), ("y", "state"), _gru, _gru_backward),
    )
}

OTHERS = (
    "fwbw_forward",
    "fwbw_backward",
    "accumulate_gradients",
    "accumulate_gradients_loop",
    "accumulate_gradients_scan",
    "fold_rng_over_axis",
    "split_array_over_mesh",
    "stack_params",
    "unstack_params",
    "GRU",
    "mLSTMBackendFwbw",
    "explain_backend",
)
"""Public functions and layers that are no map of arrays to arrays; the laws about them say how they are called."""

HELPERS = (
    "Partitioned",
    "KernelBackend",
    "MLSTMState",
    "mLSTMBackendFwbwConfig",
    "mlstm_recurrent",
    "mlstm_parallel",
    "mlstm_chunkwise",
)
"""Public types that the functions above take or return, and forms of one; a target need not have its own."""

PUBLIC = (*OPERATIONS, *OTHERS)
BACKWARDS = tuple(f"{name}_backward" for name in OPERATIONS)
