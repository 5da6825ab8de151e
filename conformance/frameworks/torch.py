"""PyTorch functions as an implementation; gradients come from ``torch.autograd.grad`` of the public function."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.exceptions import UsageError
from conformance.base.result_form import ArrayKind
from conformance.frameworks import _surrounded, process_state
from conformance.frameworks import _torch_parts as parts
from conformance.frameworks import _torch_transforms as transforms
from conformance.frameworks._far import FarBuffer, axis_of, bytes_needed, reserved, why_no_memory
from conformance.frameworks._framework_errors import TORCH_ERRORS
from conformance.frameworks._shards import lacks_keyword
from conformance.frameworks.implementation import OVER_STEPS, Function, Implementation, Named, Results
from conformance.frameworks.process_state import Setting, kept

_SMALLEST = 5e-324
"""A number below the smallest normal one."""


@contextmanager
def settings_kept() -> Iterator[None]:
    """`conformance.frameworks.process_state.settings_kept`, and PyTorch's settings."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    # This context, unlike any function, ends an inference mode that was entered and not left.
    with process_state.settings_kept(), torch.inference_mode(inference), kept(_SETTINGS):
        torch.set_grad_enabled(gradients)
        yield


def _flushes() -> bool:
    """Whether numbers below the smallest normal one are taken for zero; NumPy's are then, too."""
    return _SMALLEST * 1.0 == 0.0


def _device() -> torch.device | None:
    """The default device; None for the CPU, which is the default of a process that sets none."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _attribute(module: Any, name: str) -> Setting:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


def _precision() -> str | None:
    """The precision of products of float32 matrices; None if a newer setting has replaced this one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _precisions() -> Iterator[Setting]:
    """The newer settings of that precision, which PyTorch has for each library, from version 2.9 on."""
    backends: Any = torch.backends
    for library in (backends.cuda.matmul, getattr(backends.mkldnn, "matmul", None)):
        if hasattr(library, "fp32_precision"):
            yield _attribute(library, "fp32_precision")


_DETERMINISTIC: Setting = (
    _deterministic,
    lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
)
_FILLS = _attribute(torch.utils.deterministic, "fill_uninitialized_memory")
_SETTINGS: tuple[Setting, ...] = (
    (_device, torch.set_default_device),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    _DETERMINISTIC,
    (_anomalies, lambda both: torch.autograd.set_detect_anomaly(*both)),
    (_flushes, torch.set_flush_denormal),
    _FILLS,
    # The first of these sets the others too.
    (_precision, lambda precision: precision is None or torch.set_float32_matmul_precision(precision)),
    *_precisions(),
)


SPARE = 3
"""Number of times that the buffer for far-apart arrays must fit into a GPU's free memory, because other processes of
the suite allocate memory there too.
"""
_WIDEST = 4
"""Bytes of the widest elements that are laid out far apart; the laws about them go up to float32."""


def adapter(name: str, functions: Mapping[str, Any], device: str) -> Implementation:
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device cuda: PyTorch sees no CUDA device here; run {name} with --device cpu")
    # The laws' arrays are small: a thread pool costs several times what it saves, and more on a busy machine.
    torch.set_num_threads(1)
    return TorchImplementation(name, functions, device)


def _is_tensor(x: Any) -> bool:
    """Whether ``x`` is a dense tensor of real numbers."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_complex() or x.dtype is torch.bool:
        return False
    return not (x.is_meta or x.is_nested or x.is_quantized)


class TorchImplementation(Implementation):
    """See `conformance.frameworks.implementation.Implementation`."""

    framework = "torch"
    kind = ArrayKind("torch.Tensor", torch.Tensor, _is_tensor)
    layouts = ("contiguous", "strided", "transposed")
    untracked = staticmethod(torch.no_grad)
    settings_kept = staticmethod(settings_kept)
    _far: tuple[FarBuffer, torch.Tensor] | None = None
    _parts: parts.Parts | None = None

    @property
    def tf32(self) -> bool:
        matmul: Any = torch.backends.cuda.matmul
        # Older versions of PyTorch have only `allow_tf32`; newer ones refuse to return it if both have been set.
        precision = getattr(matmul, "fp32_precision", None)
        return self.device == "cuda" and (matmul.allow_tf32 if precision is None else precision == "tf32")

    def versions(self) -> dict[str, str]:
        # As a plain string: unpickling PyTorch's own type would import PyTorch in the process that reads this.
        return {"torch": str(torch.__version__), "numpy": np.__version__}

    def lacks(self, feature: str) -> str | None:
        if feature in transforms.GPU_KINDS and self.device == "cpu":
            return "the CPU has no streams and no graphs; use --device cuda"
        if feature == "large grids" and self.device == "cpu":
            return "the CPU has no launch grids; use --device cuda"
        if feature == OVER_STEPS:
            return lacks_keyword(self.functions, "mlstm", parts.KEYWORD) or parts.why_none(self.device)
        if feature == "sharding":
            return parts.why_none(self.device)
        if feature == "sharding by explicit axes":
            return "PyTorch's meshes have no explicit axes"
        return self._lacks_far_memory() if feature == "far memory" else None

    def _lacks_far_memory(self) -> str | None:
        size = bytes_needed(_WIDEST)
        if self.device == "cpu":
            return why_no_memory(size)
        free, _ = torch.cuda.mem_get_info(self.device)
        if free < SPARE * size:
            return f"it needs a buffer of {size / 2**30:.0f} GiB, and {free / 2**30:.0f} GiB are free on {self.device}"
        return None

    def native(self, array: Array) -> torch.Tensor:
        x = torch.tensor(array.values.copy(order="C"), device=self.device).to(getattr(torch, array.dtype))
        if array.layout == "strided" and x.ndim:
            wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), 77)
            wide[..., ::2] = x
            return wide[..., ::2]
        if array.layout == "transposed" and x.ndim > 1:
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        if array.layout == "broadcast" and x.ndim and x.shape[0]:
            return x[:1].clone().expand(x.shape)
        if array.layout in _surrounded.LAYOUTS:
            filling = torch.nan if x.dtype.is_floating_point else _surrounded.FILLING
            return _surrounded.place(array.layout, x.shape, lambda shape: x.new_full(shape, filling)).copy_(x)
        axis = axis_of(array.layout)
        return x if axis is None else self._far_apart(x, axis)

    def _far_apart(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        assert self._far is not None, "an array with elements far apart needs `far_memory`"
        buffer, memory = self._far
        place = buffer.place(tuple(x.shape), axis, x.element_size())
        if place is None:
            return x
        return memory.view(x.dtype).as_strided(x.shape, place.strides, place.offset).copy_(x)

    def neutral(self, array: Any) -> Array:
        name = str(array.dtype).removeprefix("torch.")
        array = array.detach().cpu()
        return Array((array.double() if array.dtype.is_floating_point else array).numpy(), name)

    def _pulled(
        self,
        function: Function,
        natives: dict[str, Any],
        dnatives: dict[str, Any],
        of: tuple[str, ...] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        floating = [name for name, x in natives.items() if x.dtype.is_floating_point]
        leaves = {name: natives[name].requires_grad_() for name in (floating if of is None else of)}
        outputs = function(natives)
        reached = [name for name, y in outputs.items() if y.requires_grad and name in dnatives]
        if not reached:
            if not torch.is_grad_enabled():
                raise RuntimeError("there is no gradient: the target has set torch.is_grad_enabled() to False")
            return outputs, {name: torch.zeros_like(x) for name, x in leaves.items()}
        gradients = torch.autograd.grad(
            [outputs[name] for name in reached],
            list(leaves.values()),
            [dnatives[name].to(outputs[name].dtype) for name in reached],
            allow_unused=True,
            materialize_grads=True,
        )
        return outputs, dict(zip(leaves, gradients, strict=True))

    def _differentiated(
        self, call: Call, natives: dict[str, Any], dnatives: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        with TORCH_ERRORS.wrong_forms_named(call.operation):
            return super()._differentiated(call, natives, dnatives)

    def vjp_of(self, names: tuple[str, ...], call: Call) -> tuple[Results, Results]:
        natives, dnatives = self._natives(call.arrays), self._natives(call.cotangents)
        with TORCH_ERRORS.wrong_forms_named(call.operation):
            outputs, gradients = self._pulled(partial(self._results, call), natives, dnatives, names)
        return self._neutrals(outputs), self._neutrals(gradients)

    def _write(self, x: torch.Tensor, source: torch.Tensor) -> None:
        # An optimiser writes to weights in this way.
        with torch.no_grad():
            x.copy_(source)

    def _copied(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone()

    def _equal(self, x: torch.Tensor, before: torch.Tensor) -> bool:
        x = x.detach()
        if x.dtype.is_floating_point:
            return torch.equal(torch.nan_to_num(x), torch.nan_to_num(before))
        return torch.equal(x, before)

    def _flat(self, call: Call) -> transforms.Flat:
        function = partial(self._results, call)
        return transforms.flat(call.operation, function, self._natives(call.arrays), self._natives(call.cotangents))

    def transformed(self, kind: str, call: Call) -> tuple[Results, Results]:
        if kind in ("sharding", OVER_STEPS):
            return self._sharded(kind, call)
        if kind == "one array for several":
            natives, dnatives = self._natives_in_common(call.arrays), self._natives(call.cotangents)
            outputs, gradients = self._differentiated(call, natives, dnatives)
            return self._neutrals(outputs), self._neutrals(gradients)
        of = self._flat(call)
        if kind in transforms.COMPILED:
            # Not a part of the call: the first one would take its time away.
            self.compiling(True)
            try:
                transforms.load_compiler()
            finally:
                self.compiling(False)
        outputs, gradients = (
            transforms.on_gpu(kind, of) if kind in transforms.GPU_KINDS else transforms.transformed(kind, of)
        )
        return self._neutrals(outputs), self._neutrals(gradients)

    def _sharded(self, kind: str, call: Call) -> tuple[Results, Results]:
        if self._parts is not None and self._parts.alive:
            return self._parts.results(kind, call)
        # The first answer includes an import of the target.
        self.compiling(True)
        try:
            self._parts = parts.Parts((self.name, self.framework, self.device))
            return self._parts.results(kind, call)
        finally:
            self.compiling(False)

    def second_derivative(self, call: Call, along: Named) -> Results:
        return self._neutrals(transforms.second_derivative(self._flat(call), self._natives(along)))

    @contextmanager
    def far_memory(self) -> Iterator[None]:
        size = bytes_needed(_WIDEST)
        if self.device == "cpu":
            memory = torch.frombuffer(reserved(size), dtype=torch.uint8)
        else:
            memory = torch.full((size,), 0xFF, dtype=torch.uint8, device=self.device)  # NaN in every floating dtype.
        self._far = FarBuffer(_WIDEST), memory
        try:
            yield
        finally:
            self._far = None
            if self.device != "cpu":
                del memory
                torch.cuda.empty_cache()

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        # PyTorch fills new memory if algorithms are to be deterministic; whether they are does not matter here.
        with kept((_DETERMINISTIC, _FILLS)):
            torch.use_deterministic_algorithms(True, warn_only=True)
            _FILLS[1](True)
            yield
