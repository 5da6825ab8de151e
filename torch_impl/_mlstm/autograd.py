"""The mLSTM as registered, differentiable operators, ``gatespec::mlstm_*``.

Whole sequences run through `SEQUENCES`, for both the plain and the fwbw interface. Single steps run through `STEP`,
whose gradient is that of a sequence of one step. `SUMMARY` is what a shard of a sequence tells the shards after it.
"""

from collections.abc import Sequence

from torch import Tensor

from torch_impl._backends import implementations
from torch_impl._differentiable import NoResiduals, Operation
from torch_impl._mlstm.arguments import (
    Arguments,
    Cotangents,
    Result,
    StepArguments,
    StepCotangents,
    StepResult,
    dtypes,
    result_sizes,
    sizes,
    step_sizes,
)
from torch_impl._mlstm.summaries import IMPLEMENTATIONS as SUMMARIES
from torch_impl._mlstm.summaries import Summary, SummaryArguments, SummaryCotangents
from torch_impl._mlstm.summaries import sizes as summary_sizes

SEQUENCES = Operation(
    name="mlstm",
    arguments=Arguments,
    results=Result,
    cotangents=Cotangents,
    implementations=implementations("mlstm"),
    sizes=sizes,
    result_sizes=result_sizes,
    dtypes=dtypes,
)


def _step_gradients(x: StepArguments, cotangents: StepCotangents, residuals: NoResiduals) -> Sequence[Tensor]:
    q, k, v, i, f = (part.unsqueeze(1) for part in x[:5])
    whole = Arguments(q=q, k=k, v=v, i=i, f=f, C=x.C, n=x.n, m=x.m, eps=x.eps, backend=x.backend)
    dh, dC, dn, dm = cotangents
    dh = None if dh is None else dh.unsqueeze(1)
    gradients = SEQUENCES.gradients(whole, Cotangents(dh=dh, dC=dC, dn=dn, dm=dm), ())
    return *(dx.squeeze(1) for dx in gradients[:5]), *gradients[5:8]


STEP = Operation(
    name="mlstm_step",
    arguments=StepArguments,
    results=StepResult,
    cotangents=StepCotangents,
    implementations=implementations("mlstm_step"),
    sizes=step_sizes,
    dtypes=dtypes,
    gradients=_step_gradients,
)

SUMMARY = Operation(
    name="mlstm_summary",
    arguments=SummaryArguments,
    results=Summary,
    cotangents=SummaryCotangents,
    implementations=SUMMARIES,
    sizes=summary_sizes,
    dtypes=dtypes,
)
