"""`reference`, the oracle: slow by design, but fast enough for a suite."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, imported


def _load(case: Case, _: Any) -> Function:
    module = imported("reference")

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, dh: Any = None) -> tuple[Any, ...]:
        if dh is None:
            return (module.mlstm(q, k, v, i, f),)
        found = module.mlstm_backward(q, k, v, i, f, dh=dh)
        return tuple(found[name] for name in ("q", "k", "v", "i", "f"))

    return mlstm


CONTENDERS = [Contender("reference", "mlstm", "numpy", _load, devices=("cpu",), dtypes=("float64",))]
