"""The xLSTM language model in Flax (linen), on the layer `jax_impl.mLSTM`.

    model = XLSTM(config)
    params = model.init(key, tokens)
    logits = model.apply(params, tokens)                                       # tokens (B, S) → (B, S, vocab_size)
    logits, state = model.apply(params, tokens, state, return_state=True)      # state=None starts empty
    logits = model.apply(params, tokens, cu_seqlens=cu_seqlens)                # packed tokens (T,) → (T, vocab_size)
    logits, state = model.apply(params, token, state, method="step")           # token (B,) → (B, vocab_size)

The equations are in `examples.xlstm.torch_model`. Every parameter can be trained with `jax.grad`, for any sizes that
`XLSTMConfig` accepts. ``XLSTM(config, dtype=jnp.bfloat16)`` computes products in bfloat16, while parameters, the
residual stream, norms, gates, memories and logits stay in float32. The path of a parameter below ``params`` is its
published name, and linear maps are ``(outputs, inputs)`` as published; `examples.xlstm.parameters` turns the tree into
NumPy arrays by name and back. ``method="features"`` takes the arguments of the model without `return_state`, returns
``(features, state)`` and stops before the map to logits, which is ``method="logits"``.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from examples.xlstm.config import XLSTMConfig
from jax_impl import MLSTMState, mLSTM

State = tuple[MLSTMState, ...]
"""The memories of all blocks, in the accumulation dtype."""

_PRECISION = "jax_default_matmul_precision"


def initial_state(config: XLSTMConfig, batch_size: int, dtype: Any = jnp.float32) -> State:
    """Empty memories; `dtype` is float64 for a float64 model."""
    layer = _mlstm_layer(config, param_dtype=dtype)
    return tuple(layer.initial_state(batch_size) for _ in range(config.num_blocks))


def _mlstm_layer(config: XLSTMConfig, **others: Any) -> mLSTM:
    return mLSTM(
        config.hidden_size,
        config.num_heads,
        config.use_bias,
        config.qk_dim_factor,
        config.v_dim_factor,
        config.gate_soft_cap,
        config.norm_eps,
        config.eps,
        config.num_blocks,
        **others,
    )


class XLSTM(nn.Module):
    """The language model: embeddings, blocks, a norm and a linear map to soft-capped logits.

    Attributes:
        config: sizes and constants.
        dtype: of the products and of the mLSTM's values; None means that of the parameters.
        param_dtype: of new parameters, whatever `config.dtype` says.
        blocks: the class of each block, if not all are those of the mLSTM; made and called as `Block` is, with a memory
            of their own. Such a model has no `step`.

    Raises:
        TypeError, ValueError: when called with tokens of another kind or shape, or with a state that does not fit.
    """

    config: XLSTMConfig
    dtype: Any = None
    param_dtype: Any = jnp.float32
    blocks: tuple[Callable[..., nn.Module], ...] | None = None

    def __call__(
        self,
        tokens: jax.Array,
        state: State | None = None,
        *,
        cu_seqlens: jax.Array | None = None,
        max_seqlen: int | None = None,
        sequence_axis: str | None = None,
        return_state: bool = False,
    ) -> Any:
        """Logits of the next token after every token.

        Args:
            tokens: integers, ``(B, S)``, or packed ``(T,)`` with `cu_seqlens`; a token that is not in the vocabulary
                makes its sequence's logits NaN.
            state: the memories before the first token; None means empty.
            cu_seqlens, max_seqlen, sequence_axis: as in `jax_impl.mlstm`; a model with other blocks has no
                `sequence_axis`.
            return_state: also return the memories after the last token.

        Returns:
            Logits ``(B, S, vocab_size)`` or ``(T, vocab_size)`` in float32 (float64 for a float64 model); with
            `return_state`, a pair of these and the state.
        """
        how: dict[str, Any] = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, "sequence_axis": sequence_axis}
        features, after = self.features(tokens, state, **how)
        logits = self.logits(features)
        return (logits, after) if return_state else logits

    def features(
        self,
        tokens: jax.Array,
        state: State | None = None,
        *,
        cu_seqlens: jax.Array | None = None,
        max_seqlen: int | None = None,
        sequence_axis: str | None = None,
    ) -> tuple[jax.Array, State]:
        """The features that `logits` maps to logits, ``(B, S, D)`` or ``(T, D)``, and the final state."""
        packed = cu_seqlens is not None
        _check_tokens(tokens, "(T,) with `cu_seqlens`" if packed else "(B, S)", 1 if packed else 2)
        sharded = {} if sequence_axis is None else {"sequence_axis": sequence_axis}
        return self._run(tokens, state, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen, **sharded)

    def step(self, token: jax.Array, state: State) -> tuple[jax.Array, State]:
        """One token of each sequence: ``(B,)`` → ``(B, vocab_size)``, and the state after it."""
        _check_tokens(token, "(B,)", 1)
        features, after = self._run(token, state, step=True)
        return self.logits(features), after

    def logits(self, features: jax.Array) -> jax.Array:
        """``(..., D)`` → ``(..., vocab_size)``, at least float32."""
        return _soft_cap(_at_least_float32(self.lm_head(features)), self.config.output_logit_soft_cap)

    def setup(self) -> None:
        blocks = (Block,) * self.config.num_blocks if self.blocks is None else self.blocks
        self.backbone = _Backbone(self.config, self.dtype, self.param_dtype, blocks)
        init = _small(self.config)
        self.lm_head = _Linear(self.config.vocab_size, False, self.dtype, self.param_dtype, init)

    @nn.nowrap
    def _run(self, tokens: jax.Array, state: State | None, **how: Any) -> tuple[jax.Array, State]:
        if state is not None and len(state) != self.config.num_blocks:
            expected = f"{self.config.num_blocks}, one per block"
            raise ValueError(f"XLSTM: `state` has {len(state)} memories; expected {expected}")
        return self.backbone(tokens, state, **how)


def _check_tokens(tokens: jax.Array, expected: str, ndim: int) -> None:
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"XLSTM: `tokens` is {tokens.dtype}; expected integers")
    if tokens.ndim != ndim:
        raise ValueError(f"XLSTM: `tokens` has shape {list(tokens.shape)}; expected {expected}")


class _Backbone(nn.Module):
    config: XLSTMConfig
    dtype: Any
    param_dtype: Any
    blocks: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(self, tokens: jax.Array, state: State | None, **how: Any) -> tuple[jax.Array, State]:
        config = self.config
        x = _Embedding(config, self.param_dtype, name="embeddings")(tokens)
        x, after = _Blocks(config, self.dtype, self.param_dtype, self.blocks, name="blocks")(x, state, **how)
        return RMSNorm(config.norm_eps, False, True, self.param_dtype, name="out_norm")(x), after


class _Blocks(nn.Module):
    """The blocks, whose names are their indices."""

    config: XLSTMConfig
    dtype: Any
    param_dtype: Any
    blocks: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(self, x: jax.Array, state: State | None, **how: Any) -> tuple[jax.Array, State]:
        after = []
        for index, make in enumerate(self.blocks):
            block = make(self.config, self.dtype, self.param_dtype, name=str(index))
            x, memory = block(x, None if state is None else state[index], **how)
            after.append(memory)
        return x, tuple(after)


class Block(nn.Module):
    """``x + mLSTM(norm(x))``, then ``x + ffn(norm(x))``; the equations are in `examples.xlstm.torch_model`."""

    config: XLSTMConfig
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, memory: Any, *, step: bool = False, **how: Any) -> tuple[jax.Array, MLSTMState]:
        config = self.config
        norm = (config.norm_eps, config.use_bias, config.norm_reduction_force_float32, self.param_dtype)
        layer = _mlstm_layer(config, dtype=self.dtype, param_dtype=self.param_dtype, name="mlstm_layer")
        y, after = (layer.step if step else layer)(RMSNorm(*norm, name="norm_mlstm")(x), memory, **how)
        x = x + y
        ffn = FeedForward(config, self.dtype, self.param_dtype, name="ffn")
        return x + ffn(RMSNorm(*norm, name="norm_ffn")(x)), after


class FeedForward(nn.Module):
    """``Wdown (a(Wgate u) ⊙ Wup u)`` with the activation a, silu in the blocks of the mLSTM."""

    config: XLSTMConfig
    dtype: Any
    param_dtype: Any
    activation: Callable[[jax.Array], jax.Array] = jax.nn.silu

    @nn.compact
    def __call__(self, u: jax.Array) -> jax.Array:
        config = self.config

        def linear(name: str, outputs: int, init: Any) -> _Linear:
            return _Linear(outputs, config.use_bias, self.dtype, self.param_dtype, init, name=name)

        gate = self.activation(linear("proj_up_gate", config.ffn_dim, _small(config))(u))
        inner = gate * linear("proj_up", config.ffn_dim, _small(config))(u)
        return linear("proj_down", config.hidden_size, _wang(config))(inner)


class _Embedding(nn.Module):
    config: XLSTMConfig
    param_dtype: Any

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        shape = (self.config.vocab_size, self.config.hidden_size)
        weight = self.param("weight", _small(self.config), shape, self.param_dtype)
        return jnp.take(weight, tokens, axis=0, mode="fill", fill_value=jnp.nan)


class _Linear(nn.Module):
    """``x Wᵀ + b`` with W ``(outputs, inputs)``, as PyTorch stores it."""

    outputs: int
    use_bias: bool
    dtype: Any
    param_dtype: Any
    weight_init: Any
    bias_init: Any = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        weight = self.param("weight", self.weight_init, (self.outputs, x.shape[-1]), self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.outputs,), self.param_dtype) if self.use_bias else None
        x, weight, bias = promote_dtype(x, weight, bias, dtype=self.dtype)
        # Products of float32 are IEEE float32, as in the operations, unless JAX's own switch allows less.
        precision = getattr(jax.config, _PRECISION) or "highest"
        y = jnp.einsum("...i,oi->...o", x, weight, precision=precision)
        return y if bias is None else y + bias


class RMSNorm(nn.Module):
    """``(..., D)``: x / √(mean x² + eps), in float32 at least if asked, then a weight and perhaps a bias."""

    eps: float
    use_bias: bool
    in_float32: bool
    param_dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = _at_least_float32(x) if self.in_float32 else x
        y = (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps)).astype(x.dtype)
        y = y * self.param("weight", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        if not self.use_bias:
            return y
        return y + self.param("bias", nn.initializers.zeros, (x.shape[-1],), self.param_dtype)


def _small(config: XLSTMConfig) -> Any:
    return nn.initializers.normal(math.sqrt(2 / (5 * config.hidden_size)))


def _wang(config: XLSTMConfig) -> Any:
    return nn.initializers.normal(2 / (config.num_blocks * math.sqrt(config.hidden_size)))


def _soft_cap(x: jax.Array, cap: float) -> jax.Array:
    return cap * jnp.tanh(x / cap)


def _at_least_float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
