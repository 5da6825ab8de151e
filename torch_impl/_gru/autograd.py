"""The GRU as registered, differentiable operators, ``gatespec::gru_forward`` and ``gru_backward``."""

from torch_impl._backends import implementations
from torch_impl._differentiable import Operation
from torch_impl._gru.arguments import Arguments, Cotangents, Result, dtypes, sizes

GRU = Operation(
    name="gru",
    arguments=Arguments,
    results=Result,
    cotangents=Cotangents,
    implementations=implementations("gru"),
    sizes=sizes,
    dtypes=dtypes,
)
