"""The mLSTM over shards of sequences: `mlstm_sharded`, `mlstm_sharded_backward`, and summaries.

`reference` alone has these functions; `tests/both/test_shards.py` asks the same of calls over devices.
"""

from functools import reduce

import numpy as np

from conformance.laws import SMALL
from conformance.laws.checker import Checker, LawError
from reference import MLSTMState
from tests.calls.registry import law
from tests.calls.shard_cases import NAMES, ShardCase, Whole, difference, options, shard_cases, values, whole

_SUMMARIES = ("mlstm_summary", "combine_mlstm_summaries")


@law(
    "mlstm_sharded",
    "definition",
    cases=shard_cases,
    strata=SMALL,
    dtypes=("float64",),
    needs=("mlstm_sharded", "mlstm_sharded_backward"),
)
def as_the_whole(checker: Checker, case: ShardCase) -> None:
    """However sequences or a packing are cut, into uneven and empty shards too, values, the final state and all
    gradients are those of the whole; a gradient across a hard reset is exactly 0.

    concat_s h_s = h,  concat_s dx_s = dx
    """
    x, functions = values(case), checker.implementation.functions
    shards = [case.shards(part) for part in x.tokens]
    h, state = functions["mlstm_sharded"](*shards, **options(case, x), return_state=True)
    found = functions["mlstm_sharded_backward"](*shards, **options(case, x), dh=case.shards(x.dh), dstate=x.dstate)
    gradients = {name: case.joined(found[name]) for name in NAMES} | {"initial_state": found.get("initial_state")}
    got = Whole(case.joined(h), MLSTMState(*state), gradients)
    if problem := difference(case, got, whole(case, x)):
        raise LawError("", problem)


@law("mlstm_sharded", "definition", cases=shard_cases, strata=SMALL, dtypes=("float64",), needs=_SUMMARIES)
def summaries(checker: Checker, case: ShardCase) -> None:
    """The summary of some steps is the combination of the summaries of their parts, in any order of combining, and no
    steps are the identity.

    s₁₂ = s₁ ∘ s₂,  (s₁ ∘ s₂) ∘ s₃ = s₁ ∘ (s₂ ∘ s₃),  s ∘ 1 = s = 1 ∘ s
    """
    summary, combine = (checker.implementation.functions[name] for name in _SUMMARIES)
    tokens = [x if case.bounds is None else x[None] for x in values(case).tokens[1:]]
    parts = [summary(*(x[:, a:b] for x in tokens)) for a, b in zip(case.borders, case.borders[1:], strict=False)]
    none, expected = summary(*(x[:, :0] for x in tokens)), summary(*tokens)
    from_the_right = reduce(lambda later, earlier: combine(earlier, later), reversed(parts))
    ways = {
        "from the left": reduce(combine, parts),
        "from the right": from_the_right,
        "with no steps before": combine(none, expected),
        "with no steps after": combine(expected, none),
    }
    for way, found in ways.items():
        for name in ("m", "a"):
            one, other = getattr(found, name), getattr(expected, name)
            if not np.allclose(one, other, rtol=1e-12, atol=1e-12):
                raise LawError(name, f"combined {way} is {one.tolist()}, expected {other.tolist()}")
        for name in ("C", "n"):
            if not np.allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10):
                raise LawError(name, f"differs if it is combined {way}")
