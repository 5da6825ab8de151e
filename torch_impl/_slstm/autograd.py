"""The sLSTM as registered, differentiable operators, ``gatespec::slstm_forward`` and ``slstm_backward``."""

from torch_impl._backends import implementations
from torch_impl._differentiable import Operation
from torch_impl._slstm.arguments import Arguments, Cotangents, Result, dtypes, sizes

SLSTM = Operation(
    name="slstm",
    arguments=Arguments,
    results=Result,
    cotangents=Cotangents,
    implementations=implementations("slstm"),
    sizes=sizes,
    dtypes=dtypes,
)
