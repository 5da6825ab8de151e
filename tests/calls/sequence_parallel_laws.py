"""The mLSTM over shards of sequences, for faults that are planted in `reference`: the suite's law, and summaries.

`reference` alone offers summaries.
"""

from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.cases import MLSTMCase, sharded_mlstm
from conformance.laws import SMALL, law_of
from conformance.laws.checker import Checker, LawError
from tests.calls.registry import LAWS, law

LAWS.append(replace(law_of("mlstm.sharding_over_steps"), op="mlstm_sharded"))

_SUMMARIES = ("mlstm_summary", "combine_mlstm_summaries")


@law("mlstm_sharded", "definition", cases=sharded_mlstm, strata=SMALL, dtypes=("float64",), needs=_SUMMARIES)
def summaries(checker: Checker, case: MLSTMCase) -> None:
    """The summary of some steps is the combination of the summaries of their parts, in any order of combining, and no
    steps are the identity.

    s₁₂ = s₁ ∘ s₂,  (s₁ ∘ s₂) ∘ s₃ = s₁ ∘ (s₂ ∘ s₃),  s ∘ 1 = s = 1 ∘ s
    """
    summary, combine = (checker.implementation.functions[name] for name in _SUMMARIES)
    arrays = case.arrays("float64")
    tokens = [arrays[name].values if case.lengths is None else arrays[name].values[None] for name in "kvif"]
    S = tokens[0].shape[1]
    parts = [summary(*(x[:, a:b] for x in tokens)) for a, b in pairwise([0, S // 4, S // 2, S])]
    none, expected = summary(*(x[:, :0] for x in tokens)), summary(*tokens)
    from_the_right = reduce(lambda later, earlier: combine(earlier, later), reversed(parts))
    ways: dict[str, Any] = {
        "from the left": reduce(combine, parts),
        "from the right": from_the_right,
        "with no steps before": combine(none, expected),
        "with no steps after": combine(expected, none),
    }
    alike = partial(np.allclose, rtol=1e-10, atol=1e-10)
    for way, found in ways.items():
        for name in ("m", "a", "C", "n"):
            if not alike(getattr(found, name), getattr(expected, name)):
                raise LawError(name, f"differs if it is combined {way}")
