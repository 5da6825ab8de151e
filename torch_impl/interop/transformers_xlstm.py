"""`mlstm` and `mlstm_step` in the mLSTM layers of transformers' xLSTM, for `torch_impl.interop.transformers`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_impl._backends import KernelBackend
from torch_impl.interop.head_first import HeadFirstState, check_inputs, run_sequences, run_step

_MODES = ("inference", "train", "train_with_padding")


def changes(
    model: nn.Module, kernel_backend: KernelBackend | None, apply_attention_mask: bool
) -> dict[nn.Module, Callable[[], Callable[[], object]]]:
    """How to serve each mLSTM layer of a model: functions that change a module and return what undoes it.

    Raises:
        ValueError: the configuration asks for something that `mlstm` does not compute.
    """
    found = [(module, getattr(module, "mlstm_backend", None)) for module in model.modules()]
    layers = [(layer, kernels) for layer, kernels in found if isinstance(kernels, nn.Module)]
    stacks = [module for module in model.modules() if hasattr(module, "blocks") and hasattr(module, "embeddings")]
    if not stacks:
        return {}
    mask = _Mask()
    made: dict[nn.Module, Callable[[], Callable[[], object]]] = {}
    for layer, kernels in layers:
        by_letter = "q" in inspect.signature(kernels.forward).parameters
        settings = _Settings.read(kernels.config)
        ours = (MLSTMBackend if by_letter else _SpelledOut)(kernels.config, settings, kernel_backend, mask)
        made[layer] = functools.partial(_replace_kernels, layer, ours.train(layer.training))
    if layers and apply_attention_mask:
        made |= {stack: functools.partial(_read_masks, stack, mask) for stack in stacks}
    return made


def _replace_kernels(layer: nn.Module, ours: nn.Module) -> Callable[[], object]:
    undo = functools.partial(setattr, layer, "mlstm_backend", layer.mlstm_backend)
    layer.mlstm_backend = ours
    return undo


def _read_masks(stack: nn.Module, mask: "_Mask") -> Callable[[], object]:
    return stack.register_forward_pre_hook(mask.read, with_kwargs=True).remove


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The fields of a configuration that concern the kernels, under its own names.

    Attributes:
        mode: "inference" always returns states; the others are for training.
        chunk_size: steps per chunk, which does not change the value.
        eps: added to the normaliser.
        return_last_states: whether states are returned in training.
        autocast_kernel_dtype: the dtype of q, k and v under autocast.
        inference_state_dtype: the dtype in which a single step returns its state.
    """

    mode: str
    chunk_size: int
    eps: float
    return_last_states: bool
    autocast_kernel_dtype: torch.dtype
    inference_state_dtype: torch.dtype

    @staticmethod
    def read(config: Any) -> "_Settings":
        kernel = getattr(config, "chunkwise_kernel", None)
        if not isinstance(kernel, str) or not kernel.startswith("chunkwise--") or "siging" in kernel:
            raise ValueError(
                f"install: `config.chunkwise_kernel` is {kernel!r}; expected a chunkwise kernel of the mLSTM with "
                "exponential input gate"
            )
        for field in dataclasses.fields(_Settings):
            if not hasattr(config, field.name):
                raise ValueError(f"install: `config.{field.name}` is missing; expected a configuration of an xLSTM")
        if config.mode not in _MODES:
            raise ValueError(f"install: `config.mode` is {config.mode!r}; expected one of {', '.join(_MODES)}")
        if config.mode != "inference" and not config.return_last_states:
            raise ValueError(
                f"install: `config.return_last_states` is False with `config.mode` {config.mode!r}; expected True: the "
                "layers of the model unpack a state"
            )
        return _Settings(
            mode=config.mode,
            chunk_size=config.chunk_size,
            eps=config.eps,
            return_last_states=config.return_last_states,
            autocast_kernel_dtype=_dtype("autocast_kernel_dtype", config.autocast_kernel_dtype),
            inference_state_dtype=_dtype("inference_state_dtype", config.inference_state_dtype),
        )


def _dtype(field: str, name: object) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"install: `config.{field}` is {name!r}; expected the name of a floating-point dtype")
    return found


class _Mask:
    """The mask of the current call of a model, shared by its layers."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None

    def read(self, stack: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the part of the mask that belongs to this call's tokens; earlier ones are in the cache."""
        named = inspect.signature(type(stack).forward).parameters
        given = dict(zip([name for name in named if name != "self"], args, strict=False)) | kwargs
        tokens = given["input_ids"] if given.get("input_ids") is not None else given.get("inputs_embeds")
        mask = given.get("attention_mask")
        if mask is None or tokens is None:
            self.kept = None
            return
        B, S = tokens.shape[:2]
        if mask.ndim != 2 or mask.shape[0] != B or mask.shape[1] < S:
            shape = list(mask.shape)
            raise ValueError(f"xLSTM: `attention_mask` is {shape}; expected [B={B}, S], S at least {S}")
        self.kept = mask[:, mask.shape[1] - S :].bool()


def _kept(part: Tensor | None) -> Tensor | None:
    """A part of an initial state for the backward pass: transformers overwrites those in its cache."""
    return part.clone() if isinstance(part, Tensor) and torch.is_grad_enabled() else part


class MLSTMBackend(nn.Module):
    """The kernels of one mLSTM layer, with the interface of mlstm_kernels' `mLSTMBackend`. It has no parameters.

    Attributes:
        config: the configuration of the layer's own kernels.
    """

    def __init__(self, config: Any, settings: _Settings, kernel_backend: KernelBackend | None, mask: _Mask) -> None:
        super().__init__()
        self.config = config
        self._settings, self._kernel_backend, self._mask = settings, kernel_backend, mask
        # Position in the prompt, which transformers hands to its layers in parts if it is long.
        self._read = 0

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool | None = None,
        mode: str | None = None,
    ) -> Tensor | tuple[Tensor, HeadFirstState]:
        """Run the mLSTM.

        Args:
            q: ``(B, N, S, K)``.
            k: same shape as `q`.
            v: ``(B, N, S, V)``.
            i: ``(B, N, S)``.
            f: same shape as `i`.
            c_initial, n_initial, m_initial: ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N, 1)``; None means an empty memory.
            return_last_states: also return the state, in training; None means the configuration's.
            mode: "inference", "train" or "train_with_padding"; None means the configuration's.

        Returns:
            h ``(B, N, S, V)``, or ``(h, (c, n, m))``, as always in inference.

        Raises:
            TypeError, ValueError: as in `mlstm`; the mode is unknown, or the cache has other head dims than the layer.
        """
        settings = self._settings
        mode = settings.mode if mode is None else mode
        if mode not in _MODES:
            raise ValueError(f"mlstm_backend: `mode` is {mode!r}; expected one of {', '.join(_MODES)}")
        check_inputs("mlstm_backend", q, k, v, i, f)
        wanted = settings.return_last_states if return_last_states is None else return_last_states
        i, f = self._masked(i, f)
        self._check_cache(c_initial, q, v)
        state = (_kept(c_initial), _kept(n_initial), _kept(m_initial))
        if mode == "inference" and q.shape[2] == 1:
            empty = all(part is None for part in state)
            h, last = run_step(
                "mlstm_backend",
                q.squeeze(2),
                k.squeeze(2),
                v.squeeze(2),
                i,
                f,
                self._start(q, v) if empty else state,
                eps=settings.eps,
                dtype_state=settings.inference_state_dtype,
                kernel_backend=self._kernel_backend,
            )
            return h.unsqueeze(2), last
        h, last = run_sequences(
            "mlstm_backend",
            q,
            k,
            v,
            i,
            f,
            state,
            eps=settings.eps,
            chunk_size=settings.chunk_size,
            autocast_kernel_dtype=settings.autocast_kernel_dtype,
            kernel_backend=self._kernel_backend,
        )
        return (h, last) if mode == "inference" or wanted else h

    def _check_cache(self, c: Tensor | None, q: Tensor, v: Tensor) -> None:
        """Refuse a cache of transformers, which rounds the dims of q and v up to multiples of 64, if they are none."""
        dims = q.shape[3], v.shape[3]
        if isinstance(c, Tensor) and c.ndim == 4 and tuple(c.shape[2:]) != dims:
            raise ValueError(
                f"mlstm_backend: `c_initial` has the head dims {tuple(c.shape[2:])}; expected {dims}, those of the "
                "layer: transformers' cache needs a `config.hidden_size` that times `qk_dim_factor` and times "
                "`v_dim_factor` is a multiple of 64, or `use_cache=False`"
            )

    def _masked(self, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """The gates, with those of masked tokens such that they write nothing and keep everything."""
        kept = self._mask.kept
        if kept is None:
            return i, f
        S, length = i.shape[2], kept.shape[1]
        start = self._read if S < length else 0
        self._read = (start + S) % length
        kept = kept[:, None, start : start + S]
        return i.masked_fill(~kept, -torch.inf), f.masked_fill(~kept, torch.inf)

    def _start(self, q: Tensor, v: Tensor) -> HeadFirstState:
        """An empty memory with ``m = 0``."""
        B, N, _, K = q.shape
        dtype = torch.float64 if v.dtype is torch.float64 else torch.float32
        shapes = ((B, N, K, v.shape[3]), (B, N, K), (B, N, 1))
        c, n, m = (q.new_zeros(shape, dtype=dtype) for shape in shapes)
        return c, n, m

    def extra_repr(self) -> str:
        """The settings that are in effect."""
        return f"{self._settings}, kernel_backend={self._kernel_backend}"


class _SpelledOut(MLSTMBackend):
    """The same with the argument names of transformers' own kernels, which are used where xlstm is not installed."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        igate: Tensor,
        fgate: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool | None = None,
        mode: str | None = None,
    ) -> Tensor | tuple[Tensor, HeadFirstState]:
        return super().forward(
            query, key, value, igate, fgate, c_initial, n_initial, m_initial, return_last_states, mode
        )
