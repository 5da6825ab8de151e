"""Differentiable operators made from records: ``gatespec::NAME_forward``, ``NAME_backward`` and what autograd needs.

An operation is described by the records of its arguments and results and, for each backend, by its residuals and two
functions of records. Their fields determine both schemas, the tensors that are saved, the gradients that are None, and
the axes into which vmap is folded. A residual is therefore one field of one record.

Records are flattened only here, where PyTorch requires it, in the order ``arguments, keep`` in the forward pass and
``arguments, cotangents of the results, residuals`` in the backward pass. ``keep`` names the residuals to return.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_impl._arrays import PLAIN
from torch_impl._distributed import distributed_call, is_distributed
from torch_impl._operators import (
    below_autograd,
    fold,
    map_by_loop,
    map_over_none,
    mapped_by_autograd,
    needs_transform,
    no_forward_mode,
    no_second_derivative,
    operator,
    recordable,
    recording,
    transformable,
    unfold,
    unobserved,
    untransformed,
)
from torch_impl._records import (
    Field,
    empty_like_fields,
    fields,
    head_axes,
    names_by_option,
    schema,
)


@dataclass(frozen=True)
class Implementation:
    """The code by which a backend computes an operation.

    Attributes:
        residuals: the record of everything that its backward pass can use; every field is a tensor or None. A residual
            with the name of a result is that result.
        forward: ``(arguments, keep) → (results, residuals)``; the residuals named in ``keep`` are tensors.
        backward: ``(arguments, cotangents, residuals) → gradients`` of the arguments with axes, in their order, without
            the last ones if the backend never has them; None for an operation whose gradient is that of another
            operation.
        sizes: ``(arguments) →`` the sizes of the letters that only its residuals have.
        worth_keeping: ``(arguments) →`` the names of the residuals that a differentiated call saves by default.
        dtypes: ``(arguments) →`` the dtypes of the roles that only its residuals have.
    """

    residuals: type
    forward: Callable[[Any, Sequence[str]], tuple[Any, Any]]
    backward: Callable[[Any, Any, Any], Sequence[Tensor]] | None = None
    sizes: Callable[[Any], Mapping[str, int]] = lambda arguments: {}
    worth_keeping: Callable[[Any], tuple[str, ...]] = lambda arguments: ()
    dtypes: Callable[[Any], Mapping[str, torch.dtype]] = lambda arguments: {}


class NoResiduals(NamedTuple):
    """The residuals of a backend whose backward pass needs only the arguments."""


class Operation:
    """A forward and a backward operator, each with an ``autograd.Function``.

    Args:
        name: ``"mlstm"``.
        arguments: the record of the arguments, with a field ``backend`` and, if sequences may be packed, a field
            ``cu_seqlens``.
        results: the record of the results.
        cotangents: the record of the cotangents of the results, each of which may be None.
        implementations: the implementations by backend.
        sizes: ``(arguments) →`` the sizes of the letters of arguments and results.
        dtypes: ``(arguments) →`` the dtypes of the roles.
        result_sizes: the sizes of the letters of results, if they differ.
        gradients: ``(arguments, cotangents, residuals) → gradients``, used instead of a backward operator.

    Attributes:
        operator: ``(*arguments, keep) →`` the results, then the residuals in ``keep`` that are not results.
        differentiable: the same, for calls that need a gradient or are transformed.
        recorded: ``(*arguments) →`` the results, for programs that are recorded. It keeps residuals only when it is run
            with a gradient, so that a recorded program has none and its shapes are free.
        kept_by: by backend and option of the fwbw configuration, the names of the residuals that the option keeps.
        residual_heads: by backend, the head axis of every residual of dense sequences; None for one without heads.
    """

    def __init__(
        self,
        name: str,
        arguments: type,
        results: type,
        cotangents: type,
        implementations: Mapping[str, Implementation],
        sizes: Callable[[Any], Mapping[str, Any]],
        dtypes: Callable[[Any], Mapping[str, torch.dtype]],
        result_sizes: Callable[[Any], Mapping[str, Any]] | None = None,
        gradients: Callable[[Any, Any, Any], Sequence[Tensor]] | None = None,
    ):
        self.name, self.arguments, self.results, self.cotangents = name, arguments, results, cotangents
        self.implementations, self.sizes, self.dtypes = implementations, sizes, dtypes
        self.result_sizes = result_sizes or sizes
        # Plain data, because a compiler that traces a caller cannot look into cached functions.
        self.kept_by = {backend: names_by_option(each.residuals) for backend, each in implementations.items()}
        self.residual_heads = {backend: head_axes(each.residuals, False) for backend, each in implementations.items()}
        self._tensors = _Saves(fields(arguments)).tensors
        self._most = max(len(fields(each.residuals)) for each in implementations.values())
        self.operator = operator(
            f"{name}_forward({schema(arguments)}, str[] keep) -> Tensor[]", self._run_forward, self._forward_shapes
        )
        if gradients is None:
            self._backward = operator(
                f"{name}_backward({schema(arguments)}, {schema(cotangents)}, Tensor?[] residuals) -> Tensor[]",
                self._run_backward,
                self._backward_shapes,
            )
            function = _backward_function(self)
            self._transformable_backward = transformable(function)
            mapped_by_autograd(f"{name}_backward", function.vmap, self._flat_backward)
        self.differentiable = transformable(_forward_function(self, gradients or self.gradients))
        results_schema = ", ".join(f"{field.schema} {field.name}" for field in fields(results))
        self.recorded = recordable(
            f"{name}({schema(arguments)}) -> ({results_schema})",
            lambda *flat: tuple(self._run_forward(*flat, ())),
            lambda *flat: tuple(self._forward_shapes(*flat, ())),
            self._differentiate_recorded,
        )

    def __call__(self, arguments: Any, *tensors: Tensor | None) -> Sequence[Tensor]:
        """The results of a call, without the residuals after them. ``tensors`` are those that may need a gradient."""
        if type(tensors[0]) not in PLAIN and is_distributed(tensors[0]):
            return self.distributed(self.name, arguments)
        if recording():
            return self.recorded(*arguments)
        if not needs_transform(*tensors):
            if not unobserved(*arguments[: self._tensors]):
                return self.operator(*arguments, ())
            with below_autograd():
                return self._run_forward(*arguments, ())
        keeps = torch.is_grad_enabled()
        keep = self.implementations[arguments.backend].worth_keeping(arguments) if keeps else ()
        return self.differentiable(*arguments, keep)

    def distributed(self, function: str, arguments: Any) -> Sequence[Tensor]:
        """The results of a call with DTensors; ``function`` is the name that errors mention."""

        def compute(values: Sequence[Any]) -> Sequence[Tensor]:
            tensors = (x for x in values if isinstance(x, Tensor) and x.is_floating_point())
            return self(self.arguments(*values), *tensors)[: len(self.results._fields)]

        return distributed_call(
            function, _with_axes(arguments), _letters(self.results, _packed(arguments)), _packed(arguments), compute
        )

    def distributed_gradients(self, function: str, arguments: Any, cotangents: Any) -> Sequence[Tensor]:
        """`gradients` with DTensors, without residuals."""

        def compute(values: Sequence[Any]) -> Sequence[Tensor]:
            given, upstream, _ = self._split(values)
            return self.gradients(given, upstream, self.implementations[given.backend].residuals())

        packed = _packed(arguments)
        given = [*_with_axes(arguments), *_with_axes(cotangents, packed)]
        return distributed_call(function, given, _letters(self.arguments, packed), packed, compute)

    def residuals_of(self, arguments: Any, keep: tuple[str, ...], outputs: Sequence[Tensor]) -> Any:
        """The record of residuals, made from the tensors that a call returned."""
        implementation = self.implementations[arguments.backend]
        places = _places(self.results, implementation.residuals, keep)
        return implementation.residuals(**{name: outputs[place] for name, place in zip(keep, places, strict=True)})

    def gradients(self, arguments: Any, cotangents: Any, residuals: Any) -> Sequence[Tensor]:
        """Call the backward operator, in its differentiable and mappable form if a transform is active."""
        if untransformed():
            return self._backward(*arguments, *cotangents, residuals)
        return self._transformable_backward(*self._flat_backward(*arguments, *cotangents, residuals))

    def _flat_backward(self, *flat: Any) -> tuple[Any, ...]:
        """The arguments of the backward operator with a slot for each residual that any backend has."""
        *rest, residuals = flat
        return (*rest, *residuals, *(None,) * (self._most - len(residuals)))

    def _differentiate_recorded(self, *flat: Any) -> tuple[Tensor, ...]:
        arguments = self.arguments(*flat)
        keep = self.implementations[arguments.backend].worth_keeping(arguments)
        return tuple(self.differentiable(*arguments, keep)[: len(self.results._fields)])

    def _run_forward(self, *flat: Any) -> list[Tensor]:
        # This is what the constructor of the record does, at half the cost.
        arguments, keep = tuple.__new__(self.arguments, flat[:-1]), flat[-1]
        results, residuals = self.implementations[arguments.backend].forward(arguments, keep)
        return [*results, *(part for part in residuals if part is not None)] if keep else [*results]

    def _forward_shapes(self, *flat: Any) -> list[Tensor]:
        *values, keep = flat
        arguments = self.arguments(*values)
        implementation = self.implementations[arguments.backend]
        packed, sizes, dtypes = _packed(arguments), self.sizes(arguments), self.dtypes(arguments)
        of_results = self.result_sizes(arguments)
        outputs = empty_like_fields(self.results, self.results._fields, packed, values[0], of_results, dtypes)
        kept = [name for name in keep if name not in self.results._fields]
        if not kept:
            return outputs
        sizes, dtypes = {**sizes, **implementation.sizes(arguments)}, {**dtypes, **implementation.dtypes(arguments)}
        return outputs + empty_like_fields(implementation.residuals, kept, packed, values[0], sizes, dtypes)

    def _split(self, flat: Sequence[Any]) -> tuple[Any, Any, Sequence[Tensor | None]]:
        """Arguments, cotangents, and the tensors after them."""
        first = len(self.arguments._fields)
        last = first + len(self.cotangents._fields)
        return self.arguments(*flat[:first]), self.cotangents(*flat[first:last]), flat[last:]

    def _run_backward(self, *flat: Any) -> list[Tensor]:
        arguments, cotangents, (residuals,) = self._split(flat)
        implementation = self.implementations[arguments.backend]
        assert implementation.backward is not None and residuals is not None
        gradients = implementation.backward(arguments, cotangents, implementation.residuals(*residuals))
        with_axes = [(field, x) for field, x in zip(fields(self.arguments), arguments, strict=True) if field.axes]
        # A backend has no gradient of the last arguments if its row refuses them, or if they are not given.
        return [
            self._absent(field, arguments).zero_() if x is None and (dx is None or _packed(arguments)) else dx
            for (field, x), dx in zip_longest(with_axes, gradients)
        ]

    def _backward_shapes(self, *flat: Any) -> list[Tensor]:
        arguments, _, _ = self._split(flat)
        return [
            self._absent(field, arguments) if x is None else x.new_empty(x.shape)
            for field, x in zip(fields(self.arguments), arguments, strict=True)
            if field.axes is not None
        ]

    def _absent(self, field: Field, arguments: Any) -> Tensor:
        """An empty array for the gradient of an argument that is not given; without elements if there is a packing, for
        which no number of sequences is known."""
        packed, sizes = _packed(arguments), self.sizes(arguments)
        assert field.axes is not None
        axes = field.axes.when(packed)
        if packed:
            sizes = {**sizes, axes.letters.split()[0]: 0}
        return axes.empty(arguments[0], sizes, self.dtypes(arguments))


class _Saves:
    """The positions of an operation's flat arguments that are saved as tensors, and of those that have gradients."""

    def __init__(self, arguments: Sequence[Field]):
        self.tensors = sum(field.schema.startswith("Tensor") for field in arguments)
        self.differentiable = [number for number, field in enumerate(arguments) if field.axes is not None]
        self.count = len(arguments)

    def aligned(self, tensors: Sequence[Tensor | None], gradients: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """The gradients at the positions of their arguments, and None everywhere else, including `keep`."""
        found: list[Tensor | None] = [None] * (self.count + 1)
        for number, gradient in zip(self.differentiable, gradients, strict=True):
            if tensors[number] is not None:
                found[number] = gradient
        return tuple(found)


def _places(results: type, residuals: type, keep: tuple[str, ...]) -> tuple[int, ...]:
    """The positions of the residuals named in ``keep`` among the outputs of a forward operator."""
    names = [*results._fields, *(name for name in residuals._fields if name in keep and name not in results._fields)]
    return tuple(names.index(name) for name in keep)


def _packed(arguments: Any) -> bool:
    return getattr(arguments, "cu_seqlens", None) is not None


def _with_axes(record: Any, packed: bool | None = None) -> list[tuple[str, Any, str | None]]:
    """Name, value and axes of every field of a record."""
    packed = _packed(record) if packed is None else packed
    return [
        (field.name, x, None if field.axes is None else field.axes.when(packed).letters)
        for field, x in zip(fields(type(record)), record, strict=True)
    ]


def _letters(record: type, packed: bool) -> list[str]:
    """The axes of the fields that have any."""
    return [field.axes.when(packed).letters for field in fields(record) if field.axes is not None]


def _packings_differ(arguments: type, in_dims: Sequence[int | None]) -> bool:
    """Whether vmap maps over packings: such calls cannot be folded into one."""
    return "cu_seqlens" in arguments._fields and in_dims[arguments._fields.index("cu_seqlens")] is not None


def _forward_function(op: Operation, gradients: Callable[[Any, Any, Any], Sequence[Tensor]]) -> Any:
    results, saves, backend = (
        len(op.results._fields),
        _Saves(fields(op.arguments)),
        op.arguments._fields.index("backend"),
    )

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(*flat):
            return tuple(op.operator(*flat))

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.options, ctx.keep = inputs[saves.tensors : -1], inputs[-1]
            kept = ()
            if ctx.keep:
                residuals = op.implementations[inputs[backend]].residuals
                kept = [output[place] for place in _places(op.results, residuals, ctx.keep)]
            ctx.save_for_backward(*inputs[: saves.tensors], *kept)
            ctx.mark_non_differentiable(*output[results:])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, *cotangents):
            cotangents = op.cotangents(*cotangents[:results])
            if all(each is None for each in cotangents):
                return (None,) * (saves.count + 1)
            saved = ctx.saved_tensors
            tensors = saved[: saves.tensors]
            arguments = op.arguments(*tensors, *ctx.options)
            residuals = op.implementations[arguments.backend].residuals
            kept = residuals(**dict(zip(ctx.keep, saved[saves.tensors :], strict=True)))
            return saves.aligned(tensors, gradients(arguments, cotangents, kept))

        @staticmethod
        def jvp(ctx, *_):
            no_forward_mode(op.name)

        @staticmethod
        def vmap(info, in_dims, *flat):
            differ = _packings_differ(op.arguments, in_dims)
            if info.batch_size == 0:
                packing = op.arguments._fields.index("cu_seqlens") if differ else None
                return map_over_none(Forward.vmap, in_dims, flat, packing)
            if differ:
                return map_by_loop(Forward.apply, info.batch_size, in_dims, flat)
            arguments = op.arguments(*flat[:-1])
            packed = _packed(arguments)
            folded = Forward.apply(*fold(info.batch_size, in_dims, flat, (*head_axes(op.arguments, packed), None)))
            residuals = op.implementations[arguments.backend].residuals
            axes = dict(zip(residuals._fields, head_axes(residuals, packed), strict=True))
            kept = [axes[name] for name in residuals._fields if name in flat[-1] and name not in op.results._fields]
            return unfold(info.batch_size, folded, (*head_axes(op.results, packed), *kept))

    Forward.__name__ = Forward.__qualname__ = f"{op.name}_forward"
    return Forward


def _backward_function(op: Operation) -> Any:
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(*flat):
            arguments, cotangents, residuals = op._split(flat)
            residuals = residuals[: len(op.implementations[arguments.backend].residuals._fields)]
            return tuple(op._backward(*arguments, *cotangents, residuals))

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, *_):
            no_second_derivative(op.name)

        @staticmethod
        def jvp(ctx, *_):
            no_second_derivative(op.name)

        @staticmethod
        def vmap(info, in_dims, *flat):
            differ = _packings_differ(op.arguments, in_dims)
            if info.batch_size == 0:
                packing = op.arguments._fields.index("cu_seqlens") if differ else None
                return map_over_none(Backward.vmap, in_dims, flat, packing)
            if differ:
                return map_by_loop(Backward.apply, info.batch_size, in_dims, flat)
            arguments, _, rest = op._split(flat)
            packed = _packed(arguments)
            axes = head_axes(op.arguments, packed)
            residuals = head_axes(op.implementations[arguments.backend].residuals, packed)
            slots = (None,) * (len(rest) - len(residuals))
            every = (*axes, *head_axes(op.cotangents, packed), *residuals, *slots)
            folded = Backward.apply(*fold(info.batch_size, in_dims, flat, every))
            return unfold(info.batch_size, folded, [axis for axis in axes if axis is not None])

    Backward.__name__ = Backward.__qualname__ = f"{op.name}_backward"
    return Backward
