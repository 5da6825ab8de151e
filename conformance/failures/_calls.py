"""How a call of each operation is written down in Python: what a script holds that makes it again.

The bindings of `conformance.operations` make a call; the wordings here say the same call in words. A test holds the two
together: it runs what is written here.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.operations import GRU_ARRAYS

Given = Mapping[str, Any]
Words = Mapping[str, str]


@dataclass(frozen=True)
class Wording:
    """The words for one operation.

    Attributes:
        call: ``(given array names, options in words) → the call``.
        unpacked: ``options → the left side that its result is assigned to``.
        backward: ``(given, options in words, the backward function or None) → the call of the target's own backward``.
        gradient: ``name of an array → its gradient, out of ``gradients``, the backward's result``.
    """

    call: Callable[[Given, Words], str]
    unpacked: Callable[[Given], str]
    backward: Callable[[Given, Words, Callable | None], str]
    gradient: Callable[[str], str]


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)


def _keywords(options: Words, *names: str) -> str:
    return _joined(*(f"{name}={options[name]}" for name in names if name in options))


def _accepted(options: Words, function: Callable | None, *droppable: str) -> Words:
    taken = inspect.signature(function).parameters if function is not None else {}
    return {name: value for name, value in options.items() if name in taken or name not in droppable}


def _state(given: Given, options: Words) -> str:
    if "initial_state" in options:
        return options["initial_state"]
    parts = [name if given.get(name) is not None else "None" for name in _STATES]
    return "None" if parts == ["None"] * 3 else f"MLSTMState({_joined(*parts)})"


def _packing(given: Given) -> str:
    return "cu_seqlens=cu_seqlens" if given.get("cu_seqlens") is not None else ""


_QKVIF = "q, k, v, i, f"
_STATES = ("C0", "n0", "m0")
_MLSTM_OPTIONS = ("chunk_size", "eps", "max_seqlen", "kernel_backend")


def _mlstm(given: Given, options: Words) -> str:
    state = _state(given, options)
    start = "" if state == "None" else f"initial_state={state}"
    rest = _joined(start, "return_state=True", _packing(given), _keywords(options, *_MLSTM_OPTIONS))
    return f"mlstm({_QKVIF}, {rest})"


def _mlstm_backward(given: Given, options: Words, function: Callable | None) -> str:
    options = _accepted(options, function, "chunk_size", "kernel_backend")
    keywords = _joined(_packing(given), _keywords(options, *_MLSTM_OPTIONS))
    words = _joined(f"initial_state={_state(given, {})}", "dh=d_h", "dstate=MLSTMState(d_C, d_n, d_m)", keywords)
    return f"mlstm_backward({_QKVIF}, {words})"


def _mlstm_step(given: Given, options: Words) -> str:
    return f"mlstm_step({_joined(_QKVIF, _state(given, options), _keywords(options, 'eps', 'kernel_backend'))})"


def _mlstm_step_backward(given: Given, options: Words, function: Callable | None) -> str:
    words = _joined(_state(given, {}), "dh=d_h", "dstate=MLSTMState(d_C, d_n, d_m)", _keywords(options, "eps"))
    return f"mlstm_step_backward({_QKVIF}, {words})"


def _of_state(key: str) -> Callable[[str], str]:
    return lambda name: f'gradients["{key}"][{_STATES.index(name)}]' if name in _STATES else _by_name(name)


def _by_name(name: str) -> str:
    return f'gradients["{name}"]'


def _fwbw_arrays(given: Given) -> str:
    return _joined(_QKVIF, "C0, n0, m0" if given.get("C0") is not None else "")


def _fwbw(given: Given, options: Words) -> str:
    return f"mlstm_fwbw_custom_grad({options['config']})({_fwbw_arrays(given)})"


def _fwbw_backward(given: Given, options: Words, function: Callable | None) -> str:
    last = _joined(*(f"d{name.lower()}_last=d_{name}" for name in "Cnm" if given.get(f"d_{name}") is not None))
    return f"mlstm_fwbw_custom_grad({options['config']}).backward({_joined(_fwbw_arrays(given), 'dh=d_h', last)})"


def _gru_keywords(given: Given, options: Words) -> str:
    state = "input_state=input_state" if given.get("input_state") is not None else ""
    return _joined(state, _packing(given), _keywords(options, "gradient_clipping", "max_seqlen", "kernel_backend"))


def _gru(given: Given, options: Words) -> str:
    return f"gru({_joined(*GRU_ARRAYS, _gru_keywords(given, options))})"


def _gru_backward(given: Given, options: Words, function: Callable | None) -> str:
    keywords = _gru_keywords(given, _accepted(options, function, "kernel_backend"))
    return f"gru_backward({_joined(*GRU_ARRAYS, keywords, 'dy=d_y, dstate=d_state')})"


def _plain(operation: str, arrays: str, cotangent: str) -> Wording:
    return Wording(
        lambda given, options: f"{operation}({arrays})",
        lambda options: "y",
        lambda given, options, function: f"{operation}_backward({arrays}, {cotangent}=d_y)",
        _by_name,
    )


def _whole(options: Given) -> str:
    return "h, (C, n, m)"


WORDINGS = {
    "rev_cumsum": _plain("rev_cumsum", "x", "dy"),
    "rev_cumsum_off": _plain("rev_cumsum_off", "x", "dy"),
    "causal_forget_matrix": _plain("causal_forget_matrix", "forget_gates", "dF"),
    "dtilde_matrix": _plain("dtilde_matrix", "igate, fgate", "dD"),
    "mlstm": Wording(_mlstm, _whole, _mlstm_backward, _of_state("initial_state")),
    "mlstm_step": Wording(_mlstm_step, _whole, _mlstm_step_backward, _of_state("state")),
    "mlstm_fwbw_custom_grad": Wording(
        _fwbw,
        lambda options: "h, (C, n, m)" if options["config"].get("return_state") else "h",
        _fwbw_backward,
        lambda name: f"gradients[{('q', 'k', 'v', 'i', 'f', *_STATES).index(name)}]",
    ),
    "gru": Wording(_gru, lambda options: "y, state", _gru_backward, _by_name),
}


def output_names(unpacked: str) -> list[str]:
    """The names in ``h, (C, n, m)``."""
    return unpacked.replace("(", "").replace(")", "").split(", ")
