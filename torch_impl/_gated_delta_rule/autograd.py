"""The gated delta rule as registered, differentiable operators, ``gatespec::gated_delta_rule_*``.

Single steps run through `STEP`, whose gradient is that of a sequence of one step.
"""

from collections.abc import Sequence

from torch import Tensor

from torch_impl._backends import implementations
from torch_impl._differentiable import NoResiduals, Operation
from torch_impl._gated_delta_rule.arguments import (
    Arguments,
    Cotangents,
    Result,
    StepArguments,
    StepCotangents,
    StepResult,
    dtypes,
    sizes,
    step_sizes,
)

SEQUENCES = Operation(
    name="gated_delta_rule",
    arguments=Arguments,
    results=Result,
    cotangents=Cotangents,
    implementations=implementations("gated_delta_rule"),
    sizes=sizes,
    dtypes=dtypes,
)


def _step_gradients(x: StepArguments, cotangents: StepCotangents, residuals: NoResiduals) -> Sequence[Tensor]:
    q, k, v, g = (part.unsqueeze(1) for part in (x.q, x.k, x.v, x.g))
    beta = None if x.beta is None else x.beta.unsqueeze(1)
    whole = Arguments(q, k, v, g, beta, S=x.S, scale=x.scale, qk_norm_eps=x.qk_norm_eps, backend=x.backend)
    do, dS = cotangents
    *gradients, dS = SEQUENCES.gradients(whole, Cotangents(None if do is None else do.unsqueeze(1), dS), ())
    return *(dx.squeeze(1) for dx in gradients), dS


STEP = Operation(
    name="gated_delta_step",
    arguments=StepArguments,
    results=StepResult,
    cotangents=StepCotangents,
    implementations=implementations("gated_delta_step"),
    sizes=step_sizes,
    dtypes=dtypes,
    gradients=_step_gradients,
)
