"""Our operations in loaded models of transformers: ``install(model)`` and ``uninstall(model)``.

Weights, their names, configuration, cache and `generate` stay transformers' own. Two kinds of layers are served, each
with the function of the model's own kernels:

**The mLSTM layers of an xLSTM** compute prompts and training by `mlstm`, and single tokens by `mlstm_step`. Two things
may differ:

- With m > 64, the floor of the normaliser is ``exp(−64)``, not ``exp(−m)``; with an ``eps`` of 1e-11 or more, the
  difference is below float64's rounding.
- transformers' xLSTM ignores an `attention_mask`: padding is read like any token. With ``apply_attention_mask=True``,
  masked tokens leave the memory as it is, so that a sequence gives the same in a batch as alone, wherever its padding
  is.

**The Gated DeltaNet layers of Qwen3-Next, Qwen3.5, Qwen3.5-MoE and OLMo Hybrid** compute prompts and training by
`gated_delta_rule`, and single tokens by `gated_delta_step`. Three things differ from transformers' own code in PyTorch:

- Strong gates lose no digits, and g = −∞ empties the memory. transformers' code subtracts sums of g over 64 steps.
- A float64 model is computed in float64, not in float32.
- Packed sequences (`cu_seq_lens_q` with `seq_idx`) are served; transformers needs flash-linear-attention for them.
"""

from torch import nn

from reference.arguments import describe
from reference.backends import known_backend
from torch_impl._backends import KernelBackend
from torch_impl.interop import transformers_gated_delta, transformers_xlstm
from torch_impl.interop.transformers_xlstm import MLSTMBackend

__all__ = ["MLSTMBackend", "install", "uninstall"]

_SERVED = (
    "an xLSTM of transformers, or a model of transformers with Gated DeltaNet layers, such as Qwen3-Next, Qwen3.5, "
    "Qwen3.5-MoE or OLMo Hybrid"
)
# The attribute of a changed module that holds what undoes the change.
_UNDO = "_gatespec_undo"


def install(
    model: nn.Module, *, kernel_backend: KernelBackend | str | None = None, apply_attention_mask: bool = False
) -> nn.Module:
    """Let the mLSTM layers or the Gated DeltaNet layers of a model of transformers run on our operations.

    Args:
        model: an xLSTM, or a model with Gated DeltaNet layers: Qwen3-Next, Qwen3.5, Qwen3.5-MoE or OLMo Hybrid; with or
            without a head, or a module that contains one. It is changed in place; its parameters and their names stay.
        kernel_backend: as in `mlstm` and `gated_delta_rule`; None chooses by the arrays of each call.
        apply_attention_mask: for an xLSTM, whether tokens whose `attention_mask` is 0 leave the memory as it is.
            Otherwise the mask is ignored, as by transformers. The mask has shape ``(B, S)``, or with a cache
            ``(B, S_past + S)``. With activation checkpointing, each forward pass must be followed by its backward pass,
            which uses its mask. Models with Gated DeltaNet layers apply the mask themselves, and refuse True.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is not a module.
        ValueError: `model` has no layer of these kinds, or gatespec is installed in it already. For an xLSTM: its
            configuration asks for something that `mlstm` does not compute (a sigmoid input gate or a parallel kernel,
            an unknown mode), or for kernels without a state in training, which the model's layers cannot use. For Gated
            DeltaNet: `apply_attention_mask` is True, or something else has replaced a layer's `forward`.
    """
    backend = known_backend("install", kernel_backend, KernelBackend)
    _check_model("install", model)
    if any(_UNDO in vars(module) for module in model.modules()):
        raise ValueError("install: `model` runs on gatespec already; expected one on its own kernels")
    given = (model, backend, apply_attention_mask)
    changes = transformers_xlstm.changes(*given) | transformers_gated_delta.changes(*given)
    if not changes:
        raise ValueError(f"install: `model` is a {type(model).__name__}; expected {_SERVED}")
    for module, change in changes.items():
        setattr(module, _UNDO, change())
    return model


def uninstall(model: nn.Module) -> nn.Module:
    """Put the model's own kernels back.

    Args:
        model: as changed by `install`; it is changed in place.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is not a module.
        ValueError: `install` has not changed `model`.
    """
    _check_model("uninstall", model)
    changed = [module for module in model.modules() if _UNDO in vars(module)]
    if not changed:
        raise ValueError(f"uninstall: `model` is a {type(model).__name__}; expected one that `install` changed")
    for module in changed:
        vars(module).pop(_UNDO)()
    return model


def _check_model(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: `model` is {describe(model)}; expected {_SERVED}")
