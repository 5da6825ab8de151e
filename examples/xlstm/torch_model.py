"""The xLSTM language model in PyTorch, on the layer `torch_impl.mLSTM`.

    model = XLSTM(config)
    logits = model(tokens)                                       # tokens (B, S) → (B, S, vocab_size)
    logits, state = model(tokens, state, return_state=True)      # state=None starts empty
    logits = model(tokens, cu_seqlens=cu_seqlens)                # packed tokens (T,) → (T, vocab_size)
    logits, state = model.step(token, state)                     # token (B,) → (B, vocab_size)

Every parameter can be trained by autograd, for any sizes that `XLSTMConfig` accepts. Under ``torch.autocast`` products
are in its dtype, while the residual stream, norms, gates, memories and logits stay in float32. Parameters have the
published names; `examples.xlstm.parameters` turns them into NumPy arrays and back. ``model.features(...)`` takes the
arguments of ``model(...)`` and stops before the map to logits, which is ``model.logits(features)``.

Equations (Beck et al., arXiv:2503.13427), for the residual stream x of a block::

    u = RMSNorm(x)
    h = mLSTM(Wq u, Wk u, Wv u, cap(Wi u + bi), cap(Wf u + bf))       cap(z) = c·tanh(z/c)
    x = x + Wout (σ(Wo u) ⊙ MultiHeadLayerNorm(h))
    u = RMSNorm(x)
    x = x + Wdown (silu(Wgate u) ⊙ Wup u)
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.xlstm.config import XLSTMConfig
from torch_impl import MLSTMState, mLSTM

State = tuple[MLSTMState, ...]
"""The memories of all blocks, in the accumulation dtype."""


class XLSTM(nn.Module):
    """The language model: embeddings, blocks, a norm and a linear map to soft-capped logits.

    Args:
        config: sizes and constants. Parameters are made in PyTorch's default dtype, whatever `config.dtype` says.
        blocks: the blocks, if not all are those of the mLSTM; called as `Block` is, with a memory of their own. Such a
            model has no `initial_state` and no `step`.

    Raises:
        TypeError, ValueError: when called with tokens of another kind or shape, or with a state that does not fit.
    """

    def __init__(self, config: XLSTMConfig, blocks: Iterable[nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.backbone = _Backbone(
            config, (Block(config) for _ in range(config.num_blocks)) if blocks is None else blocks
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise every parameter again: layers as our packages do, other linear maps normally distributed."""
        D, blocks = self.config.hidden_size, self.config.num_blocks
        small = math.sqrt(2 / (5 * D))
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif parameter.ndim == 1:
                parameter.fill_(1)
            elif name.endswith("proj_down.weight"):
                parameter.normal_(std=2 / (blocks * math.sqrt(D)))
            else:
                parameter.normal_(std=small)
        for block in self.backbone.blocks:
            block.reset_layer()  # pyright: ignore[reportCallIssue]  # a ModuleList forgets its type

    def initial_state(self, batch_size: int) -> State:
        """Empty memories, on the device of the parameters."""
        return tuple(
            block.mlstm_layer.initial_state(batch_size)  # pyright: ignore  # a ModuleList forgets its type
            for block in self.backbone.blocks
        )

    @overload
    def forward(
        self,
        tokens: Tensor,
        state: State | None = ...,
        *,
        cu_seqlens: Tensor | None = ...,
        max_seqlen: int | None = ...,
        sequence_group: Any = ...,
        return_state: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        tokens: Tensor,
        state: State | None = ...,
        *,
        cu_seqlens: Tensor | None = ...,
        max_seqlen: int | None = ...,
        sequence_group: Any = ...,
        return_state: Literal[True],
    ) -> tuple[Tensor, State]: ...
    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        sequence_group: Any = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """Logits of the next token after every token.

        Args:
            tokens: integers, ``(B, S)``, or packed ``(T,)`` with `cu_seqlens`.
            state: the memories before the first token; None means empty.
            cu_seqlens, max_seqlen, sequence_group: as in `torch_impl.mlstm`; a model with other blocks has no
                `sequence_group`.
            return_state: also return the memories after the last token.

        Returns:
            Logits ``(B, S, vocab_size)`` or ``(T, vocab_size)`` in float32 (float64 for a float64 model); with
            `return_state`, a pair of these and the state.
        """
        how: dict[str, Any] = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, "sequence_group": sequence_group}
        features, after = self.features(tokens, state, **how)
        logits = self.logits(features)
        return (logits, after) if return_state else logits

    def features(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        sequence_group: Any = None,
    ) -> tuple[Tensor, State]:
        """The features that `logits` maps to logits, ``(B, S, D)`` or ``(T, D)``, and the final state."""
        _check_tokens(tokens, "(T,) with `cu_seqlens`" if cu_seqlens is not None else "(B, S)", cu_seqlens is None)
        sharded = {} if sequence_group is None else {"sequence_group": sequence_group}
        return self.backbone(tokens, state, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen, **sharded)

    def logits(self, features: Tensor) -> Tensor:
        """``(..., D)`` → ``(..., vocab_size)``, at least float32."""
        return _soft_cap(_at_least_float32(self.lm_head(features)), self.config.output_logit_soft_cap)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """One token of each sequence: ``(B,)`` → logits ``(B, vocab_size)``, and the state after it."""
        _check_tokens(token, "(B,)", False)
        features, after = self.backbone.step(token, state)
        return self.logits(features), after


def _check_tokens(tokens: Tensor, expected: str, dense: bool) -> None:
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype is torch.bool:
        raise TypeError(f"XLSTM: `tokens` is {tokens.dtype}; expected integers")
    if tokens.ndim != 1 + dense:
        raise ValueError(f"XLSTM: `tokens` has shape {list(tokens.shape)}; expected {expected}")


class _Backbone(nn.Module):
    def __init__(self, config: XLSTMConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(blocks)
        self.out_norm = RMSNorm(config.hidden_size, config.norm_eps, bias=False, in_float32=True)

    def forward(self, tokens: Tensor, state: State | None, **how: Any) -> tuple[Tensor, State]:
        x, after = self.embeddings(tokens), []
        for block, memory in zip(self.blocks, self._memories(state), strict=True):
            x, memory = block(x, memory, **how)
            after.append(memory)
        return self.out_norm(x), tuple(after)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        x, after = self.embeddings(token), []
        for block, memory in zip(self.blocks, self._memories(state), strict=True):
            x, memory = block.step(x, memory)  # pyright: ignore[reportCallIssue]  # a ModuleList forgets its type
            after.append(memory)
        return self.out_norm(x), tuple(after)

    def _memories(self, state: State | None) -> tuple[MLSTMState | None, ...]:
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(f"XLSTM: `state` has {len(state)} memories; expected {len(self.blocks)}, one per block")
        return (None,) * len(self.blocks) if state is None else state


class Block(nn.Module):
    """``x + mLSTM(norm(x))``, then ``x + ffn(norm(x))``; the equations are above."""

    def __init__(self, config: XLSTMConfig) -> None:
        super().__init__()
        D, bias, in_float32 = config.hidden_size, config.use_bias, config.norm_reduction_force_float32
        self.norm_mlstm = RMSNorm(D, config.norm_eps, bias, in_float32)
        self.mlstm_layer = mLSTM(
            D,
            config.num_heads,
            bias,
            qk_dim_factor=config.qk_dim_factor,
            v_dim_factor=config.v_dim_factor,
            gate_soft_cap=config.gate_soft_cap,
            norm_eps=config.norm_eps,
            eps=config.eps,
            num_blocks=config.num_blocks,
        )
        self.norm_ffn = RMSNorm(D, config.norm_eps, bias, in_float32)
        self.ffn = FeedForward(config)

    def reset_layer(self) -> None:
        """Initialise the layer as our packages do."""
        self.mlstm_layer.reset_parameters()

    def forward(self, x: Tensor, memory: MLSTMState | None, **how: Any) -> tuple[Tensor, MLSTMState]:
        """``(B, S, D)`` or ``(T, D)`` → the same, and the memory after it; options as in `torch_impl.mlstm`."""
        y, after = self.mlstm_layer(self.norm_mlstm(x), memory, **how)
        x = x + y
        return x + self.ffn(self.norm_ffn(x)), after

    def step(self, x: Tensor, memory: MLSTMState) -> tuple[Tensor, MLSTMState]:
        y, memory = self.mlstm_layer.step(self.norm_mlstm(x), memory)
        x = x + y
        return x + self.ffn(self.norm_ffn(x)), memory


class FeedForward(nn.Module):
    """``Wdown (a(Wgate u) ⊙ Wup u)`` with the activation a, silu in the blocks of the mLSTM."""

    def __init__(self, config: XLSTMConfig, activation: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.activation = activation
        D, inner, bias = config.hidden_size, config.ffn_dim, config.use_bias
        self.proj_up_gate = nn.Linear(D, inner, bias)
        self.proj_up = nn.Linear(D, inner, bias)
        self.proj_down = nn.Linear(inner, D, bias)

    def forward(self, u: Tensor) -> Tensor:
        return self.proj_down(self.activation(self.proj_up_gate(u)) * self.proj_up(u))


class RMSNorm(nn.Module):
    """``(..., D)``: x / √(mean x² + eps), in float32 at least if asked, then a weight and perhaps a bias."""

    def __init__(self, width: int, eps: float, bias: bool, in_float32: bool) -> None:
        super().__init__()
        self.eps, self.in_float32 = eps, in_float32
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = _at_least_float32(x) if self.in_float32 else x
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight
        return y if self.bias is None else y + self.bias


def _soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
