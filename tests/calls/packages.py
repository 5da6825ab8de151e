"""gatespec's packages, seen through the suite's adapters, with what only their own laws ask of them.

That is layers, devices of a mesh, random states, shared memory and launched kernels.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.frameworks.implementation import Function, Implementation, Named, Results
from conformance.frameworks.numpy import NumPyImplementation
from tests.calls.layer import Layer, NumPyLayer
from tests.calls.mesh import place

PACKAGES = {
    name: framework
    for name, framework in (("reference", "numpy"), ("torch_impl", "torch"), ("jax_impl", "jax"))
    if find_spec(framework)
}
"""The packages whose frameworks are installed."""


@dataclass(frozen=True)
class Launches:
    """The kernels that one call and its backward pass launched, by name.

    Attributes:
        forward: the kernels that the call launched.
        backward: the kernels that the backward pass launched in addition.
    """

    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


class Package(Implementation):
    """An implementation as the laws of this folder see it.

    Attributes:
        backends: the kernel backends whose launches can be observed, each with whether it launches any.
    """

    backends: Mapping[str, bool]

    def attempt(self, call: Call) -> Results:
        """The outputs of a call that should be refused, made without compiling it; its exception is passed on."""
        return self._neutrals(self._results(call, self._natives(call.arrays)))

    def gradient_of(self, function: Function, arrays: Named, cotangents: Named) -> tuple[Results, Results]:
        """Outputs of a function, and its gradient with respect to every floating-point array."""
        outputs, gradients = self._pulled(function, self._natives(arrays), self._natives(cotangents))
        return self._neutrals(outputs), self._neutrals(gradients)

    def shared(self, call: Call) -> list[str]:
        """The results that share memory with an argument or with another result, in words."""
        natives, dnatives = self._natives(call.arrays), self._natives(call.cotangents)
        given = {**natives, **{f"cotangent of {name}": x for name, x in dnatives.items()}}
        with self.untracked():
            results = dict(self._results(call, natives))
        if self.no_gradient(call.operation) is None:
            _, gradients = self._differentiated(call, natives, dnatives)
            results |= {f"gradient of {name}": g for name, g in gradients.items() if g is not None}
        names = list(results)
        found = [f"{a} shares memory with {b}" for a in names for b in given if self.overlap(results[a], given[b])]
        pairs = ((a, b) for at, a in enumerate(names) for b in names[:at])
        return found + [f"{a} shares memory with {b}" for a, b in pairs if self.overlap(results[a], results[b])]

    def overlap(self, x: Any, y: Any) -> bool:
        """Whether two of the framework's own arrays share memory."""
        return False

    def launched(self, call: Call) -> Launches:
        """The kernels that a call and its backward pass launch."""
        raise NotImplementedError

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        """A layer of the package.

        Args:
            name: ``GRU`` or ``mLSTMBackendFwbw``.
            settings: the keywords of its constructor.
            seed: the seed of its parameters.
        """
        raise NotImplementedError

    def rng(self, seed: int) -> Any:
        """A random state in the form that the framework's functions take."""
        return seed

    def drawn(self, rng: Any) -> Any:
        """An array of the framework that distinguishes one random state from another."""
        raise NotImplementedError

    def on_mesh(
        self,
        axes: Mapping[str, int],
        function: Callable[[dict[str, Any], Any], dict[str, Any]],
        arrays: list[Array],
    ) -> list[Results]:
        """The results of ``function(place, array)`` on each device of a mesh.

        Args:
            axes: the mesh's axes and the number of devices on each; the first axis varies slowest.
            function: takes the keywords that tell a sharding function where it runs, and the device's own array.
            arrays: one array per device.
        """
        places = (self._place(axes, number) for number in range(len(arrays)))
        return [self._neutrals(function(at, self.native(x))) for at, x in zip(places, arrays, strict=True)]

    def _place(self, axes: Mapping[str, int], number: int) -> dict[str, Any]:
        """The keywords that say to a sharding function on which device of a mesh it runs."""
        raise NotImplementedError


def load(package: str) -> Package:
    """One of gatespec's packages, with all its public functions and layers."""
    module = importlib.import_module(package)
    return adapted(PACKAGES[package], package, {name: getattr(module, name) for name in module.__all__})


def adapted(framework: str, name: str, functions: Mapping[str, Any]) -> Package:
    """Functions of a framework as a package that is held to gatespec's contract."""
    if framework == "numpy":
        made: Package = NumPyPackage(name, functions)
    else:
        made = importlib.import_module(f"tests.calls.{framework}_package").adapter(name, functions)
    made.keeps_contract = True
    return made


class NumPyPackage(Package, NumPyImplementation):
    """See `Package`."""

    backends: Mapping[str, bool] = {"numpy": False}

    def launched(self, call: Call) -> Launches:
        self.call(call)
        return Launches()

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        seeded = {} if "config" in settings else {"rng": seed}
        return NumPyLayer(self.functions[name](**settings, **seeded), self)

    def overlap(self, x: Any, y: Any) -> bool:
        x, y = np.asarray(x), np.asarray(y)
        return bool(x.size and y.size and np.may_share_memory(x, y))

    def drawn(self, rng: int) -> np.ndarray:
        return np.asarray(rng % 2**31)

    def _place(self, axes: Mapping[str, int], number: int) -> dict[str, Any]:
        return {"axis_index": place(axes, number), "axis_size": dict(axes)}
