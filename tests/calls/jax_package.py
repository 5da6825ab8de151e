"""JAX functions and layers as the laws of this folder see them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.frameworks.implementation import Results
from conformance.frameworks.jax import JaxImplementation
from tests.calls.jax_launches import kernels
from tests.calls.layer import Layer
from tests.calls.packages import Launches, Package
from tests.calls.trees import flattened, leaves, nested


def adapter(name: str, functions: Mapping[str, Any]) -> Package:
    jax.config.update("jax_enable_x64", True)
    return JaxPackage(name, functions, "cpu", jax.devices("cpu")[0])


class JaxPackage(Package, JaxImplementation):
    """See `Package`."""

    backends: Mapping[str, bool] = {"xla": False, "pallas": True}

    def launched(self, call: Call) -> Launches:
        floating, whole = self._parts(call.arrays)
        forward = jax.make_jaxpr(lambda x: self._results(call, {**x, **whole}))(floating)
        both = jax.make_jaxpr(self._both(call))(floating, whole, self._natives(call.cotangents))
        of_call = kernels(forward)
        # The second trace contains the call too, with the kernels that a differentiated call launches.
        return Launches(of_call, kernels(both)[len(of_call) :])

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        module = self.functions[name](**settings)
        example = {"input": jnp.zeros((1, 1, settings["input_size"]))} if "input_size" in settings else {}
        init = self._jitted("init", name, settings, lambda: module.init)
        return JaxLayer(module, lambda: init(self.rng(seed), **example), self)

    def rng(self, seed: int) -> Any:
        return jax.random.key(seed)

    def drawn(self, rng: Any) -> Any:
        return jax.random.bits(rng, (2,))

    def on_mesh(self, axes: Mapping[str, int], function: Callable, arrays: list[Array]) -> list[Results]:
        stacked = jnp.stack([self.native(x) for x in arrays])

        def mapped(x: Any) -> dict[str, Any]:
            return function({}, x)

        for name in reversed(tuple(axes)):
            mapped = jax.vmap(mapped, axis_name=name)
        results = mapped(stacked.reshape(*axes.values(), *stacked.shape[1:]))
        flat = {name: y.reshape(len(arrays), *y.shape[len(axes) :]) for name, y in results.items()}
        return [{name: self.neutral(y[number]) for name, y in flat.items()} for number in range(len(arrays))]


class JaxLayer(Layer):
    """See `tests.calls.layer.Layer`.

    A flax module has parameters only once it knows its input, so ``init`` creates them from an example, and only when
    they are needed.
    """

    def __init__(self, made: Any, init: Callable[[], Any], implementation: Package):
        super().__init__(made, implementation)
        self._init = init

    @property
    def parameters(self) -> Results:
        created = flattened(self._init().get("params", {}))
        return {name: self._implementation.neutral(x) for name, x in created.items()}

    def _apply(self, parameters: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        variables = {"params": nested(parameters)} if parameters else {}
        return leaves(self.made.apply(variables, **arrays, **options))
