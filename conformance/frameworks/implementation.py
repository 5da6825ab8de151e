"""The interface of an implementation.

An implementation maps named arrays to named arrays (`conformance.base.dtypes.Array`: values of a declared dtype),
returns gradients for given cotangents, and gives the reason if it cannot. `conformance.frameworks` has one adapter per
framework; an adapter is imported when a target needs it.
"""

import copy
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self, TypeVar

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.result_form import ArrayKind, expect_shapes
from conformance.frameworks.process_state import settings_kept
from conformance.operations import OPERATIONS

Named = Mapping[str, Array]
Results = dict[str, Array]
Function = Callable[[dict[str, Any]], dict[str, Any]]
"""A function of the framework's own arrays by name."""


OVER_STEPS = "sharding over steps"
"""The kind of `Implementation.transformed` that cuts sequences into shards."""


class RefusedError(Exception):
    """The target itself reports that it does not support a call (a kernel backend that does not run here)."""


class BrokenGraphError(Exception):
    """The framework's compiler cannot compile a call as one graph; its own error is the cause."""


class NotTransformedError(Exception):
    """The framework has no rule by which a function is transformed; its own error is the cause."""


class NotShardedError(Exception):
    """A call with sharded arrays raised an exception in another process; the text is its type and message."""


class Implementation:
    """A target, seen through its framework's adapter, which says how arrays are made and calls are differentiated.

    Attributes:
        name: the name under which the target was given.
        framework: ``numpy``, ``torch`` or ``jax``.
        device: the device of its arrays.
        kind: the framework's arrays, which its functions must return.
        functions: its functions by public name.
        eager: whether a call with new shapes costs no compilation.
        layouts: the memory layouts that the framework supports, except ``broadcast``, which needs equal rows.
        upcasts: whether it computes and answers in float64 for every input dtype, as the reference does.
        tf32: whether the framework's own switch, as the target set it, lets float32 products use TF32 operands.
        keeps_contract: whether the target declares itself gatespec's own, or a run holds it to gatespec's contract. It
            must then follow the decisions of that contract where others may decide differently (laws of the kind
            ``contract``).
        kernel_backend: the backend that a run asks for in every operation that takes one.
        lacking: the reason why a law does not apply, by the feature that it needs.
        untracked: the context of calls without a gradient.
        settings_kept: the context that puts back, at its end, the settings of the process and of the framework.
        compiling: called with True before a compiler takes over that may be slower than any call, and with False
            afterwards.
    """

    framework: str
    kind: ArrayKind
    layouts: tuple[str, ...]
    eager = True
    upcasts: Any = False
    tf32: Any = False
    keeps_contract = False
    kernel_backend: str | None = None
    lacking: Mapping[str, str] = {}
    untracked: Any = nullcontext
    settings_kept: Callable[[], AbstractContextManager[None]] = staticmethod(settings_kept)
    compiling: Callable[[bool], None] = staticmethod(lambda begins: None)

    def __init__(self, name: str, functions: Mapping[str, Any], device: str = "cpu"):
        self.name = name
        self.functions = functions
        self.device = device

    def versions(self) -> dict[str, str]:
        """The versions of the packages that compute."""
        raise NotImplementedError

    def in_run(self, *, kernel_backend: str | None = None, contract: bool = False) -> Self:
        """The target as a run calls and judges it: with a kernel backend, or held to gatespec's contract."""
        contract = contract or self.keeps_contract
        if (kernel_backend, contract) == (self.kernel_backend, self.keeps_contract):
            return self
        other = copy.copy(self)
        other.kernel_backend, other.keeps_contract = kernel_backend, contract
        return other

    def with_functions(self, functions: Mapping[str, Any]) -> Self:
        """The same adapter with other functions: a law's own functions, built on the target's."""
        return type(self)(self.name, functions, self.device)

    def cannot(self, dtype: str) -> str | None:
        """The reason why arrays of ``dtype`` cannot be made; None if they can."""
        return None

    def no_gradient(self, operation: str) -> str | None:
        """The reason why ``operation`` has no gradient here; None if it has one."""
        return None

    def lacks(self, feature: str) -> str | None:
        """The reason why a law that needs ``feature`` does not apply; None if it does.

        Args:
            feature: ``layouts`` (arrays with strides that can be written to), ``far memory``, ``large grids``,
                ``poisoned``, ``second derivative``, ``frozen arguments``, or a kind of `transformed`.
        """
        return self.lacking.get(feature)

    def call(self, call: Call) -> Results:
        """The outputs of a call without gradients."""
        with self.untracked():
            return self._neutrals(self._results(call, self._natives(call.arrays)))

    def outputs(self, call: Call) -> Results:
        """The outputs of a call, computed in whichever way is cheapest."""
        return self.call(call)

    def vjp(self, call: Call) -> tuple[Results, Results]:
        """Outputs, and the gradient with respect to every floating-point array."""
        natives, dnatives = self._natives(call.arrays), self._natives(call.cotangents)
        outputs, gradients = self._differentiated(call, natives, dnatives)
        return self._neutrals(outputs), self._neutrals(gradients)

    def vjp_of(self, names: tuple[str, ...], call: Call) -> tuple[Results, Results]:
        """Outputs, and the gradient with respect to the named arrays alone: the others are frozen."""
        raise NotImplementedError(self.lacks("frozen arguments"))

    def overwritten(self, earlier: Call, call: Call) -> tuple[Results, Results]:
        """Outputs and gradients of a call whose arrays held the values of an earlier call, of the same shapes.

        The arrays are made for the earlier call, which is made first; then they are written to.

        Args:
            call: without cotangents, neither call is differentiated.
        """
        given = self._natives(earlier.arrays), self._natives(earlier.cotangents)
        self._differentiated_or_not(earlier, *given)
        for natives, arrays in zip(given, (call.arrays, call.cotangents), strict=True):
            for name, x in natives.items():
                self._write(x, self.native(arrays[name]))
        outputs, gradients = self._differentiated_or_not(call, *given)
        return self._neutrals(outputs), self._neutrals(gradients)

    def _differentiated_or_not(
        self, call: Call, natives: dict[str, Any], dnatives: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if call.cotangents:
            return self._differentiated(call, natives, dnatives)
        with self.untracked():
            return self._results(call, natives), {}

    def written_to(self, call: Call) -> list[str]:
        """The names of the arrays, cotangents among them, that a call and its gradient wrote to."""
        natives, dnatives = self._natives(call.arrays), self._natives(call.cotangents)
        given = {**natives, **{f"cotangent of {name}": x for name, x in dnatives.items()}}
        before = {name: self._copied(x) for name, x in given.items()}
        with self.untracked():
            self._results(call, natives)
        if self.no_gradient(call.operation) is None:
            self._differentiated(call, natives, dnatives)
        return [name for name, x in given.items() if not self._equal(x, before[name])]

    def transformed(self, kind: str, call: Call) -> tuple[Results, Results]:
        """Outputs and gradients, in the form of `vjp`, of the call under a transformation of the framework.

        Args:
            kind: ``compile`` (compiled if `vjp` is not, and vice versa), ``compile gradient`` (the gradient compiled
                together with the call), ``functional`` (the gradient by another method of the framework),
                ``checkpoint`` (nothing saved for the backward pass), ``two backward passes`` (one for each element of
                a new leading axis of every cotangent and gradient, of one forward pass), ``one array for several`` (an
                `Array` under several names is one array of the framework, and its gradient stands under all of them),
                ``vmap`` (over a new leading axis of every floating-point array, cotangent and result), ``sharding``
                (arrays sharded over batch and heads), ``sharding by explicit axes`` (likewise, with axes that are part
                of the types of JAX's arrays) or ``sharding over steps`` (a shard of each sequence on every device).
            call: without cotangents, a sharded call is not differentiated.
        """
        raise NotImplementedError(self.lacks(kind))

    def second_derivative(self, call: Call, along: Named) -> Results:
        """The gradient of ``Σ ⟨gradient of x, along x⟩`` with respect to every floating-point array and cotangent.

        Args:
            along: a direction for each floating-point array.

        Returns:
            Gradients by name; that of a cotangent is named ``cotangent of h``. Exceptions of the target are passed on.
        """
        raise NotImplementedError(self.lacks("second derivative"))

    def far_memory(self) -> AbstractContextManager[None]:
        """Inside this context, arrays may have the layout ``far 0``: more than 2³¹ elements lie between the first and
        the last along axis 0 (or another axis that is named in this way)."""
        raise NotImplementedError(self.lacks("far memory"))

    def poisoned(self) -> AbstractContextManager[None]:
        """Inside this context, memory that the framework allocates without writing to it holds NaN."""
        raise NotImplementedError(self.lacks("poisoned"))

    def run(self, key: Hashable, function: Function, arrays: Named) -> Results:
        """Run a function; if the framework compiles, it is compiled once per ``key``."""
        with self.untracked():
            return self._neutrals(function(self._natives(arrays)))

    def native(self, array: Array) -> Any:
        """The framework's own array."""
        raise NotImplementedError

    def neutral(self, array: Any) -> Array:
        """A framework's array as an `Array`."""
        raise NotImplementedError

    def _natives(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.native(x) if isinstance(x, Array) else x for name, x in arrays.items()}

    def _neutrals(self, arrays: Mapping[str, Any]) -> Results:
        return {name: self.neutral(array) for name, array in arrays.items() if array is not None}

    def _results(self, call: Call, natives: dict[str, Any]) -> dict[str, Any]:
        """The outputs of a call, from and in the framework's own arrays."""
        operation = OPERATIONS[call.operation]
        return operation.call(self.functions[call.operation], natives, call.options, self.kind)

    def _differentiated(
        self, call: Call, natives: dict[str, Any], dnatives: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs and gradients of a call."""
        return self._pulled(
            lambda given: expect_shapes(call.operation, self._results(call, given), dnatives), natives, dnatives
        )

    def _pulled(
        self, function: Function, natives: dict[str, Any], dnatives: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs and gradients of a function."""
        raise NotImplementedError

    def _natives_in_common(self, arrays: Named) -> dict[str, Any]:
        """The framework's own arrays, one for each `Array`, whatever the number of its names."""
        made = {id(x): self.native(x) for x in arrays.values()}
        return {name: made[id(x)] for name, x in arrays.items()}

    def _write(self, x: Any, source: Any) -> None:
        """Write the elements of one array into another one of the same shape."""
        raise NotImplementedError(self.lacks("layouts"))

    def _copied(self, x: Any) -> Any:
        """A copy of an array's values, to be compared by `_equal` later."""
        raise NotImplementedError

    def _equal(self, x: Any, before: Any) -> bool:
        raise NotImplementedError


Target = TypeVar("Target", bound=Implementation)


def without_gradients(implementation: Target, reason: str) -> Target:
    """Return the same target, of which every operation is said to have no gradient.

    Args:
        reason: why, in words.
    """
    other = copy.copy(implementation)
    # Its own methods ask these, too.
    other.no_gradient = lambda operation: reason
    other.lacks = partial(_lacks, implementation, reason)
    return other


def _lacks(implementation: Implementation, reason: str, feature: str) -> str | None:
    return reason if "gradient" in feature or "derivative" in feature else implementation.lacks(feature)
