"""``flax.linen.GRUCell`` under ``nn.RNN``, mapped over heads."""

from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, imported


def _load(case: Case, _: Any) -> Function:
    jax, linen = imported("jax"), imported("flax.linen", "flax")
    jnp = jax.numpy
    layer = linen.RNN(linen.GRUCell(case.K))

    def one_head(parameters: Any, x: Any) -> Any:
        return layer.apply({"params": {"cell": parameters}}, x)

    def gru(
        x: Any,
        input_projection: Any,
        forget_projection: Any,
        reset_projection: Any,
        weight: Any,
        forget_weight: Any,
        reset_weight: Any,
    ) -> tuple[Any]:
        zeros = jnp.zeros((case.N, case.K), x.dtype)
        parameters = {
            "in": {"kernel": input_projection, "bias": zeros},
            "iz": {"kernel": forget_projection, "bias": zeros},
            "ir": {"kernel": reset_projection, "bias": zeros},
            "hn": {"kernel": weight, "bias": zeros},
            "hz": {"kernel": forget_weight},
            "hr": {"kernel": reset_weight},
        }
        return (jax.vmap(one_head, in_axes=(0, 2), out_axes=2)(parameters, x),)

    return gru


CONTENDERS = [Contender("flax.linen.GRUCell", "gru", "jax", _load, reset_after=True)]
