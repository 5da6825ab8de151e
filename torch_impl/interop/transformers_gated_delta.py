"""`gated_delta_rule` and `gated_delta_step` in Gated DeltaNet layers, for `torch_impl.interop.transformers`.

The ``forward`` of such a layer calls two functions of its module by name, one for prompts and training and one for
single tokens. A copy of it in which these names have other values takes its place. The module itself does not change,
so that other models with layers of the same class keep their own functions.
"""

import functools
import inspect
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from reference.arguments import describe
from torch_impl._backends import KernelBackend
from torch_impl._gated_delta_rule.api import gated_delta_rule, gated_delta_step

_NAMES = frozenset({"torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"})


def changes(
    model: nn.Module, kernel_backend: KernelBackend | None, apply_attention_mask: bool
) -> dict[nn.Module, Callable[[], Callable[[], object]]]:
    """How to serve each Gated DeltaNet layer of a model: functions that change a layer and return what undoes it.

    Raises:
        ValueError: `apply_attention_mask` is True, or something has replaced the ``forward`` of a layer.
    """
    layers = [module for module in model.modules() if _NAMES <= _names(type(module).forward)]
    if layers and apply_attention_mask:
        raise ValueError(
            "install: `apply_attention_mask` is True; expected False for a model with Gated DeltaNet layers, which "
            "apply the mask themselves"
        )
    for layer in layers:
        if "forward" in vars(layer):
            raise ValueError(
                f"install: the `forward` of a {type(layer).__name__} has been replaced; expected the layer's own: call "
                "`install` before hooks of accelerate or kernels of the hub are added"
            )
    ours = dict.fromkeys(_NAMES, functools.partial(run, kernel_backend=kernel_backend))
    forwards = {kind: _calling(kind.forward, ours) for kind in {type(layer) for layer in layers}}
    return {layer: functools.partial(_replace_forward, layer, forwards[type(layer)]) for layer in layers}


def _names(function: Callable) -> set[str]:
    """The global names that a function uses, under its decorators."""
    return set(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()))


def _calling(function: Any, values: dict[str, Callable]) -> FunctionType:
    """A copy of a function that finds other values under some global names, with copies of its decorators."""
    wrapped = getattr(function, "__wrapped__", None)
    names, closure = function.__globals__, function.__closure__
    if wrapped is None:
        # Without a name of its module, torch.compile reads globals where they are, and not in that module.
        names = {name: value for name, value in names.items() if name != "__name__"} | values
    elif not any(cell.cell_contents is wrapped for cell in closure or ()):
        raise ValueError(
            f"install: a decorator of {function.__qualname__} does not hold in a variable what it decorates; expected "
            "decorators as those of transformers 5.23"
        )
    else:
        inner = CellType(_calling(wrapped, values))
        closure = tuple(inner if cell.cell_contents is wrapped else cell for cell in closure)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _replace_forward(layer: nn.Module, ours: FunctionType) -> Callable[[], object]:
    # A method would be pickled as the layer's own `forward`, and be that when it is loaded; this is refused by pickle.
    layer.forward = functools.partial(ours, layer)
    return functools.partial(delattr, layer, "forward")


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    kernel_backend: KernelBackend | None = None,
    **of_the_model: Any,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated delta rule, with the interface of the functions that transformers' layers call.

    Args:
        query: ``(B, S, Nk, K)``.
        key: same shape as `query`.
        value: ``(B, S, N, V)``.
        g: log decays, ``(B, S, N)``.
        beta: same shape as `g`.
        initial_state: ``(B, N, K, V)``; None means an empty memory.
        output_final_state: also return the state.
        use_qk_l2norm_in_kernel: divide q and k by ``√(Σ x² + 1e-6)``.
        cu_seqlens: ``(sequences + 1,)``, the start and end of each packed sequence; B is 1 then.
        kernel_backend: as in `gated_delta_rule`.
        of_the_model: what the model passes to all of its layers. Of these, only `seq_idx` is read: with `cu_seqlens` it
            must be there, because it keeps the sequences apart in the layer's convolution.

    Returns:
        ``(o, state)``: o ``(B, S, N, V)`` in the dtype of `query`; the state in float32, or float64 for float64
        values; None if it is not asked for.

    Raises:
        TypeError, ValueError: as in `gated_delta_rule`; packed sequences have a batch, or no `seq_idx`.
    """
    options: dict[str, Any] = {
        "qk_norm_eps": 1e-6 if use_qk_l2norm_in_kernel else None,
        "kernel_backend": kernel_backend,
    }
    arrays = (query, key, value, g, beta)
    if initial_state is not None and torch.is_grad_enabled():
        # transformers overwrites the state in its cache before the backward pass reads it.
        initial_state = initial_state.clone()
    if cu_seqlens is not None:
        if query.shape[0] != 1 or of_the_model.get("seq_idx") is None:
            raise ValueError(
                f"gated_delta_rule: `cu_seqlens` is given with B={query.shape[0]}, and `seq_idx` is "
                f"{describe(of_the_model.get('seq_idx'))}; expected B=1 and both"
            )
        packed = (x.squeeze(0) for x in arrays)
        o, state = gated_delta_rule(*packed, initial_state=initial_state, cu_seqlens=cu_seqlens, **options)
        o = o.unsqueeze(0)
    elif initial_state is not None and query.shape[1] == 1:
        o, state = gated_delta_step(*(x.squeeze(1) for x in arrays), state=initial_state, **options)
        o = o.unsqueeze(1)
    else:
        o, state = gated_delta_rule(*arrays, initial_state=initial_state, **options)
    return o.to(query.dtype), state if output_final_state else None
