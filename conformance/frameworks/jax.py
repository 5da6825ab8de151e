"""JAX functions as an implementation; gradients come from ``jax.vjp``, and calls are compiled once per shape.

Creating the adapter switches JAX to 64 bits for the whole process, because the float64 laws need it.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.exceptions import UsageError
from conformance.base.result_form import ArrayKind, expect_shapes
from conformance.frameworks._framework_errors import JAX_ERRORS
from conformance.frameworks._jax_compiled import Compiled, config_kept, settings_kept
from conformance.frameworks._shards import lacks_keyword, step_axis
from conformance.frameworks.implementation import OVER_STEPS, Function, Implementation, Named, Results
from conformance.operations import OPERATIONS


def adapter(name: str, functions: Mapping[str, Any], device: str) -> Implementation:
    jax.config.update("jax_enable_x64", True)
    platform = "gpu" if device == "cuda" else device
    try:
        devices = jax.devices(platform)
    except RuntimeError as error:
        raise UsageError(f"--device {device}: JAX sees no such device here; run {name} with --device cpu") from error
    return JaxImplementation(name, functions, device, devices[0])


def _is_array(x: Any) -> bool:
    """Whether ``x`` is an array of real numbers; `jax.jit` makes one of NumPy's own."""
    if not isinstance(x, jax.Array | np.ndarray | np.generic):
        return False
    return jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)


def _cotangent(y: Any, given: Any) -> Any:
    """The cotangent of an output in the dtype that JAX requires; zero if none is given or the output has none."""
    if not jnp.issubdtype(y.dtype, jnp.floating):
        return np.zeros(y.shape, jax.dtypes.float0)
    return jnp.zeros_like(y) if given is None else given.astype(y.dtype)


class JaxImplementation(Implementation):
    """See `conformance.frameworks.implementation.Implementation`."""

    framework = "jax"
    kind = ArrayKind("jax.Array", jax.Array, _is_array)
    eager = False
    layouts = ("contiguous",)
    settings_kept = staticmethod(settings_kept)
    lacking: Mapping[str, str] = {
        "far memory": "JAX arrays have no strides",
        "busy stream": "JAX has no streams: it orders its computations itself",
        "graph": "JAX has no function that captures a graph",
        "layouts": "JAX arrays cannot be written to and have no strides",
        "poisoned": "no function can read uninitialised memory in JAX",
        "functional": "JAX has only one way to take a gradient",
        "compile gradient": "in JAX, the gradient of a compiled call is compiled anyway",
    }

    def __init__(self, name: str, functions: Mapping[str, Any], device: str, place: Any):
        super().__init__(name, functions, device)
        self._device = place
        self._compiled: dict[Hashable, Compiled] = {}
        self._shapes: dict[Hashable, Any] = {}

    @property
    def tf32(self) -> bool:
        config: Any = jax.config
        return self.device == "cuda" and config.jax_default_matmul_precision in ("tensorfloat32", "TF32_TF32_F32")

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "numpy": np.__version__}

    def with_functions(self, functions: Mapping[str, Any]) -> Implementation:
        other = JaxImplementation(self.name, functions, self.device, self._device)
        other.compiling = self.compiling
        return other

    def lacks(self, feature: str) -> str | None:
        if feature == "large grids" and self.device == "cpu":
            return "the CPU has no launch grids; use --device cuda"
        if feature == OVER_STEPS and (missing := lacks_keyword(self.functions, "mlstm", KEYWORD)):
            return missing
        if feature.startswith("sharding") and len(self._devices()) < 2:
            several = (
                "; XLA_FLAGS=--xla_force_host_platform_device_count=4 shows several" if self.device == "cpu" else ""
            )
            return f"JAX sees one device{several}"
        return super().lacks(feature)

    def _devices(self) -> list[Any]:
        """At most four devices of one kind."""
        return jax.devices(self._device.platform)[:4]

    def native(self, array: Array) -> Any:
        # NumPy converts the array, because JAX would compile a conversion for every shape.
        return jax.device_put(array.values.astype(jnp.dtype(array.dtype)), self._device)

    def neutral(self, array: Any) -> Array:
        name = str(array.dtype)
        values = np.asarray(array)
        return Array(values.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else values, name)

    def _results(self, call: Call, natives: dict[str, Any]) -> dict[str, Any]:
        # What a target changes while it is traced must not change the rest of the trace.
        with config_kept():
            return super()._results(call, natives)

    def _jitted(self, kind: str, operation: str, options: Mapping[str, Any], make: Callable[[], Callable]) -> Callable:
        key = (kind, operation, repr(sorted(options.items())))
        if key not in self._compiled:
            self._compiled[key] = self._jit(make())
        return self._compiled[key]

    def _jit(self, function: Callable) -> Compiled:
        return Compiled(function, self.compiling)

    def call(self, call: Call) -> Results:
        compiled = self._jitted("call", call.operation, call.options, lambda: partial(self._results, call))
        return self._neutrals(compiled(self._natives(call.arrays)))

    def outputs(self, call: Call) -> Results:
        """The outputs of the compiled gradient, with zero cotangents: most laws have compiled it for these shapes."""
        shapes = tuple((name, x.shape, x.dtype) for name, x in call.arrays.items())
        key = (call.operation, repr(sorted(call.options.items())), shapes)
        if key not in self._shapes:
            self._shapes[key] = jax.eval_shape(partial(self._results, call), self._natives(call.arrays))
        zeros = {name: Array(np.zeros(y.shape), str(y.dtype)) for name, y in self._shapes[key].items()}
        return self.vjp(replace(call, cotangents=zeros))[0]

    def _both(self, call: Call) -> Callable:
        return self._with_gradient(partial(self._results, call), call.operation)

    def _alone(self, call: Call) -> Callable:
        """`_both` without gradients."""
        return lambda floating, whole, cotangents: (self._results(call, {**floating, **whole}), {})

    @staticmethod
    def _with_gradient(function: Function, operation: str | None = None) -> Callable:
        """``(floating arrays, other arrays, cotangents) → (outputs, gradients)``.

        Args:
            operation: the operation that the function calls, whose outputs have the shapes of the cotangents.
        """

        def both(floating: Any, whole: Any, cotangents: Any, wrap: Callable = lambda f: f) -> Any:
            outputs, pull = jax.vjp(wrap(lambda x: function({**x, **whole})), floating)
            if operation is not None:
                expect_shapes(operation, outputs, cotangents)
            given = {name: _cotangent(y, cotangents.get(name)) for name, y in outputs.items()}
            return outputs, pull(given)[0]

        return both

    def _pulled(
        self, function: Function, natives: dict[str, Any], dnatives: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._jit(self._with_gradient(function))(*self._split(natives), dnatives)

    def _parts(self, arrays: Named) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._split(self._natives(arrays))

    @staticmethod
    def _split(natives: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Floating-point arrays, and the others."""
        floating = {name: x for name, x in natives.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        return floating, {name: x for name, x in natives.items() if name not in floating}

    def vjp(self, call: Call) -> tuple[Results, Results]:
        compiled = self._jitted("vjp", call.operation, call.options, lambda: self._both(call))
        with JAX_ERRORS.wrong_forms_named(call.operation):
            outputs, gradients = compiled(*self._parts(call.arrays), self._natives(call.cotangents))
        return self._neutrals(outputs), self._neutrals(gradients)

    def vjp_of(self, names: tuple[str, ...], call: Call) -> tuple[Results, Results]:
        compiled = self._jitted("vjp", call.operation, call.options, lambda: self._both(call))
        natives = self._natives(call.arrays)
        differentiated = {name: x for name, x in natives.items() if name in names}
        others = {name: x for name, x in natives.items() if name not in names}
        with JAX_ERRORS.wrong_forms_named(call.operation):
            outputs, gradients = compiled(differentiated, others, self._natives(call.cotangents))
        return self._neutrals(outputs), self._neutrals(gradients)

    def _two_backward_passes(self, call: Call) -> Callable:
        """`_both` with two cotangents along a new leading axis, and a gradient for each of them."""

        def both(floating: Any, whole: Any, cotangents: Any) -> Any:
            first, second = ({name: d[b] for name, d in cotangents.items()} for b in (0, 1))
            outputs, pull = jax.vjp(lambda x: self._results(call, {**x, **whole}), floating)
            expect_shapes(call.operation, outputs, first)
            parts = [
                pull({name: _cotangent(y, d.get(name)) for name, y in outputs.items()})[0] for d in (first, second)
            ]
            return outputs, jax.tree.map(lambda *each: jnp.stack(each), *parts)

        return both

    def _in_common(self, call: Call) -> Callable:
        """`_both` in which arguments that are one `Array` are one array of JAX; its first name stands for all."""
        names = {id(x): name for name, x in reversed([*call.arrays.items()])}
        first = {name: names[id(x)] for name, x in call.arrays.items()}

        def both(floating: Any, whole: Any, cotangents: Any) -> Any:
            def spread(x: dict[str, Any]) -> dict[str, Any]:
                return self._results(call, {**{name: x[first[name]] for name in floating}, **whole})

            own = {name: x for name, x in floating.items() if first[name] == name}
            outputs, gradients = self._with_gradient(spread, call.operation)(own, {}, cotangents)
            return outputs, {name: gradients[first[name]] for name in floating}

        return both

    def transformed(self, kind: str, call: Call) -> tuple[Results, Results]:
        if kind == OVER_STEPS:
            return self._over_steps(call)
        both = self._both(call) if call.cotangents else self._alone(call)
        made = {
            "compile": lambda: both,
            "vmap": lambda: self._jit(jax.vmap(both, in_axes=(0, None, 0))),
            "checkpoint": lambda: self._jit(lambda x, whole, d: both(x, whole, d, jax.checkpoint)),
            "two backward passes": lambda: self._jit(self._two_backward_passes(call)),
            "one array for several": lambda: self._jit(self._in_common(call)),
            "sharding": lambda: self._jit(both),
            "sharding by explicit axes": lambda: self._jit(both),
        }
        given = (*self._parts(call.arrays), self._natives(call.cotangents))
        if kind.startswith("sharding"):
            given = sharded(call.operation, given, self._devices(), explicit=kind != "sharding")
        with JAX_ERRORS.wrong_forms_named(call.operation):
            outputs, gradients = made[kind]()(*given)
        return self._neutrals(outputs), self._neutrals(gradients)

    def _over_steps(self, call: Call) -> tuple[Results, Results]:
        steps = call.arrays[OPERATIONS[call.operation].sequences[0]].shape[step_axis(call.arrays.get("cu_seqlens"))]
        devices = jax.devices(self._device.platform)[:_SHARDS]
        count = max(n for n in range(1, len(devices) + 1) if steps % n == 0)
        mesh = jax.make_mesh((count,), (STEPS,), axis_types=(AxisType.Auto,), devices=devices[:count])
        given = (*self._parts(call.arrays), self._natives(call.cotangents))
        given = jax.device_put(given, NamedSharding(mesh, PartitionSpec()))
        over = self.with_functions({call.operation: sharded_over_steps(self.functions[call.operation], mesh)})
        assert isinstance(over, JaxImplementation)
        compiled = self._jitted(f"{OVER_STEPS} on {count}", call.operation, call.options, lambda: over._both(call))
        with JAX_ERRORS.wrong_forms_named(call.operation):
            outputs, gradients = compiled(*given)
        return self._neutrals(outputs), self._neutrals(gradients)

    def second_derivative(self, call: Call, along: Named) -> Results:
        floating, whole = self._parts(call.arrays)
        both, directions = self._both(call), self._natives(along)

        def total(x: Any, d: Any) -> Any:
            gradients = both(x, whole, d)[1]
            return sum((gradients[name] * directions[name]).sum() for name in gradients)

        with JAX_ERRORS.wrong_forms_named(call.operation), JAX_ERRORS.refusals_named():
            second = self._jit(jax.grad(total, (0, 1)))(floating, self._natives(call.cotangents))
        named = {**second[0], **{f"cotangent of {name}": x for name, x in second[1].items()}}
        return self._neutrals(named)

    def written_to(self, call: Call) -> list[str]:
        return []

    def run(self, key: Hashable, function: Callable, arrays: Named) -> Results:
        if key not in self._compiled:
            self._compiled[key] = self._jit(function)
        return self._neutrals(self._compiled[key](self._natives(arrays)))


STEPS, KEYWORD = "steps", "sequence_axis"
"""The axis of the mesh, and the keyword of a function that takes a device's steps of every sequence."""

_SHARDS = 8
"""The largest number of devices that share the steps."""


def sharded_over_steps(function: Callable, mesh: jax.sharding.Mesh) -> Callable:
    """The function of whole sequences that calls one of a device's steps inside ``shard_map``."""

    def whole(*sequences: Any, initial_state: Any = None, cu_seqlens: Any = None, **options: Any) -> Any:
        steps = PartitionSpec(*[None] * step_axis(cu_seqlens), STEPS)

        def local(sequences: Any, initial_state: Any, cu_seqlens: Any) -> Any:
            given = {"initial_state": initial_state, "cu_seqlens": cu_seqlens, KEYWORD: STEPS}
            return function(*sequences, **given, **options)

        replicated = PartitionSpec()
        return jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(steps, replicated, replicated),
            out_specs=(steps, replicated) if options.get("return_state") else steps,
        )(sequences, initial_state, cu_seqlens)

    return whole


BATCH, HEADS = "batch", "heads"


def sharded(operation: str, arrays: tuple[dict[str, Any], ...], devices: list[Any], explicit: bool) -> tuple[Any, ...]:
    """Named arrays on a mesh of two or four devices; an axis that they do not divide is replicated.

    Args:
        operation: the operation whose arguments and outputs the arrays are named after.
        arrays: arguments and cotangents.
        devices: at least two devices.
        explicit: whether the mesh's axes are part of the types of arrays (`AxisType.Explicit`).
    """
    sizes = {BATCH: 2, HEADS: len(devices) // 2}
    kind = AxisType.Explicit if explicit else AxisType.Auto
    used = devices[: 2 * sizes[HEADS]]
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * 2, devices=used)
    packed = any("cu_seqlens" in part for part in arrays)
    batches, axis_of_heads = (OPERATIONS[operation].axes(letter, packed) for letter in "BN")
    heads = [x.shape[axis_of_heads[name]] for name, x in arrays[0].items() if name in axis_of_heads]

    def place(name: str, x: Any) -> Any:
        spec: list[str | None] = [None] * x.ndim
        batch, head = batches.get(name), axis_of_heads.get(name)
        if batch is not None and x.shape[batch] % sizes[BATCH] == 0:
            spec[batch] = BATCH
        # Heads that share an input or a weight with others are on every device.
        if head is not None and x.shape[head] == max(heads) and max(heads) % sizes[HEADS] == 0:
            spec[head] = HEADS
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    return tuple({name: place(name, x) for name, x in part.items()} for part in arrays)
