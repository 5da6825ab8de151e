"""Faults that begin with a size: a tile, a grid or a loop that ends before the array does."""

from collections.abc import Iterator

from conformance.rows import families
from conformance.rows.row import Row, changes

_SEQUENCES = """
    @ {op} {module} {function}

    sequences of a batch beyond {limit} ignored
    - return {result}
    + if cu_seqlens is None:
    +     {output}[{limit}:] = 0
    + return {result}
"""
_PACKED = """
    @ {op} {module} {function}

    packed sequences beyond {limit} ignored
    - return {result}
    + if cu_seqlens is not None and len(cu_seqlens) > {limit}:
    +     {output}[cu_seqlens[{limit}]:] = 0
    + return {result}
"""
_HEADS = """
    @ {op} {module} {function}

    heads beyond {limit} ignored
    - return {result}
    + {output}[..., {limit}:, :] = 0
    + return {result}
"""
_FEATURES = """
    @ {op} {module} {function}

    features of the output beyond {limit} ignored
    - return {result}
    + {output}[..., {limit}:] = 0
    + return {result}
"""
_KEYS = """
    @ mlstm _mlstm.py mlstm

    keys beyond feature {limit} ignored
    - arrays = [float64(x) for x in (q, k, v, i, f)]
    + ...
    + arrays[1] = np.where(np.arange(k.shape[-1]) < {limit}, arrays[1], 0.0)
"""
_KEY_GRADIENTS = """
    @ mlstm _mlstm.py mlstm_backward

    gradient of keys beyond feature {limit} ignored
    - result = dict(zip("qkvif", gradients, strict=True))
    + ...
    + result["k"] = np.where(np.arange(k.shape[-1]) < {limit}, result["k"], 0.0)
"""
_STEPS = """
    @ {op} {module} {function}

    steps beyond {limit} ignored
    - return {result}
    + {output}[..., {limit}:] = 0
    + return {result}
"""
_MATRIX = """
    @ causal_forget_matrix _decay.py causal_forget_matrix

    rows beyond step {limit} ignored
    - return F
    + F[..., {limit}:, :] = 0
    + return F
"""
_RECURRENCES = {
    "mlstm": {"module": "_mlstm.py", "result": "(h, last) if return_state else h", "output": "h"},
    "gru": {"module": "_gru.py", "result": "y, last", "output": "y"},
    "slstm": {"module": "_slstm.py", "result": "(h, last) if return_state else h", "output": "h"},
    "gated_delta_rule": {"module": "_linear_attention.py", "function": "_forward", "result": "o, last", "output": "o"},
}


def _rows() -> Iterator[Row]:
    for op, place in _RECURRENCES.items():
        for template, limits in ((_SEQUENCES, (4, 8)), (_PACKED, (5, 8)), (_HEADS, (4, 8)), (_FEATURES, (64, 128))):
            for limit in limits:
                yield from changes(template.format(**{"op": op, "function": op, "limit": limit, **place}))
    for limit in (64, 128):
        yield from changes(_KEYS.format(limit=limit))
        yield from changes(_KEY_GRADIENTS.format(limit=limit))
    yield from changes(_FEATURES.format(op="gru", function="gru", limit=16, **_RECURRENCES["gru"]))
    yield from changes(
        _STEPS.format(op="rev_cumsum", function="rev_cumsum", module="_scan.py", result="y", output="y", limit=2048)
    )
    yield from changes(_MATRIX.format(limit=256))
    yield from families.dropped(16, 64)


ROWS = tuple(_rows())
