"""The copy, serving plain calls alone: at least one step, dense, from the zero state, without clipping."""

from typing import Any

import numpy as np

import reference as specification


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise NotImplementedError(f"{what} is not supported")


def _plain(name: str) -> Any:
    """The function ``name`` where every axis has an element."""

    def function(*arrays: np.ndarray, **cotangents: Any) -> Any:
        _refuse(any(x.size == 0 for x in arrays), "an empty array")
        return getattr(specification, name)(*arrays, **cotangents)

    return function


rev_cumsum, rev_cumsum_backward = _plain("rev_cumsum"), _plain("rev_cumsum_backward")
rev_cumsum_off, rev_cumsum_off_backward = _plain("rev_cumsum_off"), _plain("rev_cumsum_off_backward")
causal_forget_matrix = _plain("causal_forget_matrix")
causal_forget_matrix_backward = _plain("causal_forget_matrix_backward")
dtilde_matrix, dtilde_matrix_backward = _plain("dtilde_matrix"), _plain("dtilde_matrix_backward")


def _refuse_all_but_plain(values: np.ndarray, state: Any, options: dict[str, Any]) -> None:
    _refuse(values.size == 0, "an empty array")
    _refuse(state is not None, "an initial state")
    for name in ("cu_seqlens", "max_seqlen", "gradient_clipping"):
        _refuse(options.get(name) is not None, f"`{name}`")


def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, *, initial_state: Any = None, **options: Any) -> Any:
    _refuse_all_but_plain(v, initial_state, options)
    return specification.mlstm(q, k, v, i, f, **options)


def mlstm_backward(q: Any, k: Any, v: Any, i: Any, f: Any, *, initial_state: Any = None, **options: Any) -> Any:
    _refuse_all_but_plain(v, initial_state, options)
    return specification.mlstm_backward(q, k, v, i, f, **options)


def mlstm_step(q: Any, k: Any, v: Any, i: Any, f: Any, state: Any, *, eps: float = 0.0) -> Any:
    _refuse(v.size == 0, "an empty array")
    return specification.mlstm_step(q, k, v, i, f, state, eps=eps)


def mlstm_step_backward(q: Any, k: Any, v: Any, i: Any, f: Any, state: Any, **options: Any) -> Any:
    _refuse(v.size == 0, "an empty array")
    return specification.mlstm_step_backward(q, k, v, i, f, state, **options)


def gru(input: Any, *arrays: Any, input_state: Any = None, **options: Any) -> Any:
    _refuse_all_but_plain(input, input_state, options)
    return specification.gru(input, *arrays, **options)


def gru_backward(input: Any, *arrays: Any, input_state: Any = None, **options: Any) -> Any:
    _refuse_all_but_plain(input, input_state, options)
    return specification.gru_backward(input, *arrays, **options)
