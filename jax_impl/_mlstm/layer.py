"""The layer `mLSTM`, as a flax.linen module on top of `mlstm`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from jax_impl._arrays import JAX, matmul_precision
from jax_impl._backends import KernelBackend
from jax_impl._mlstm.api import mlstm, mlstm_step
from reference.arguments import Call, MLSTMState, check_mlstm_sizes


class mLSTM(nn.Module):
    """The mLSTM layer of xLSTM-7B: projections, `mlstm`, a norm of each head, an output gate, a projection.

    With D = ``input_size``, K and V the head dims, and ``cap(z) = c·tanh(z/c)`` with c = ``gate_soft_cap``::

        q, k, v, o = W_q x, W_k x, W_v x, W_o x
        i, f       = cap(W_i x + b_i), cap(W_f x + b_f)
        h, state   = mlstm(q, k, v, i, f)
        ĥ          = γ ⊙ (h − mean(h)) / √(var(h) + norm_eps)        mean and variance over the V features of a head
        output     = W_out (σ(o) ⊙ ĥ)

    Initial values are the published ones: the biases of the input gate are −10, those of the forget gate are spread
    evenly from 3 to 6 over the heads, and the weights of both gates are 0, so that gates are constant at first. Other
    projections are normal with a standard deviation of ``(2/(5D))^½``, the last one of ``2/(num_blocks·D^½)``; γ is 1
    and other biases are 0.

    Attributes:
        input_size: D, the features of the input and of the output.
        num_heads: N.
        add_bias: whether q, k, v, o, ĥ and the output have a bias. The gates i and f always do.
        qk_dim_factor, v_dim_factor: width of queries and keys (``N·K``), and of values (``N·V``), relative to D.
        gate_soft_cap: c; None means that preactivations are not capped.
        norm_eps: added to the variance of a head.
        eps: as in `mlstm`.
        num_blocks: number of blocks of the model, on which the initial output projection depends.
        dtype: of the products and of the mLSTM's values; None promotes the dtypes of input and parameters.
        param_dtype: the dtype of the parameters.

    Parameters: ``q``, ``k``, ``v``, ``ogate_preact``, ``igate_preact``, ``fgate_preact`` and ``out_proj`` have a
    ``weight``, ``(outputs, inputs)`` as in PyTorch, and a ``bias``; ``multihead_norm`` has a ``weight``, ``(N·V,)``,
    and a ``bias``. The parts of the published names are the levels of the tree.

    Raises:
        TypeError, ValueError: an argument is out of range, or the heads do not divide a width.

    Source:
        Beck et al., arXiv:2503.13427; the ``xlstm`` package, ``xlstm_large.model.mLSTMLayer``, whose names these are.
    """

    input_size: int
    num_heads: int
    add_bias: bool = False
    qk_dim_factor: float = 0.5
    v_dim_factor: float = 1.0
    gate_soft_cap: float | None = 15.0
    norm_eps: float = 1e-6
    eps: float = 1e-6
    num_blocks: int = 1
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        self._sizes()
        super().__post_init__()

    @nn.nowrap
    def _sizes(self) -> tuple[int, int, int]:
        """N, K and V."""
        call = check_mlstm_sizes(
            self.input_size,
            self.num_heads,
            self.add_bias,
            self.qk_dim_factor,
            self.v_dim_factor,
            self.gate_soft_cap,
            self.norm_eps,
            self.eps,
            self.num_blocks,
        )
        return self.num_heads, call["K"], call["V"]

    def setup(self) -> None:
        D, (N, K, V) = self.input_size, self._sizes()
        small = nn.initializers.normal((2 / (5 * D)) ** 0.5)
        self.q, self.k = self._linear(N * K, small), self._linear(N * K, small)
        self.v, self.ogate_preact = self._linear(N * V, small), self._linear(N * V, small)
        self.igate_preact = self._gate(nn.initializers.constant(-10.0))
        self.fgate_preact = self._gate(_forget_bias)
        self.multihead_norm = _HeadNorm(self.norm_eps, self.add_bias, self.param_dtype)
        self.out_proj = self._linear(D, nn.initializers.normal(2 / (self.num_blocks * D**0.5)))

    @nn.nowrap
    def _linear(self, outputs: int, init: Any) -> "_Linear":
        return _Linear(outputs, self.add_bias, self.dtype, self.param_dtype, init)

    @nn.nowrap
    def _gate(self, bias: Any) -> "_Linear":
        return _Linear(self.num_heads, True, self.dtype, self.param_dtype, nn.initializers.zeros, bias)

    @nn.nowrap
    def initial_state(self, batch_size: int) -> MLSTMState:
        """The empty memory of `batch_size` sequences, in the accumulation dtype of `dtype`, else of `param_dtype`."""
        B, (N, K, V) = batch_size, self._sizes()
        dtype = jnp.promote_types(self.param_dtype if self.dtype is None else self.dtype, jnp.float32)
        return MLSTMState(*(jnp.zeros(shape, dtype) for shape in ((B, N, K, V), (B, N, K), (B, N))))

    def __call__(
        self,
        input: jax.Array,
        initial_state: MLSTMState | None = None,
        cu_seqlens: jax.Array | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
        sequence_axis: str | tuple[str, ...] | None = None,
    ) -> tuple[jax.Array, MLSTMState]:
        """Run the layer.

        Args:
            input: ``(B, S, D)``, or ``(T, D)`` with `cu_seqlens`.
            initial_state, cu_seqlens, max_seqlen, kernel_backend, sequence_axis: as in `mlstm`.

        Returns:
            ``(output, state)``: the output in the shape of the input, and an `MLSTMState`.

        Raises:
            TypeError, ValueError: as in `mlstm`.
        """
        self._check(input, "B S" if cu_seqlens is None else "T")
        h, state = mlstm(
            *self._inputs(input),
            initial_state=initial_state,
            return_state=True,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            eps=self.eps,
            kernel_backend=kernel_backend,
            sequence_axis=sequence_axis,
        )
        return self._output(input, h), state

    def step(
        self, input: jax.Array, state: MLSTMState, *, kernel_backend: KernelBackend | str | None = None
    ) -> tuple[jax.Array, MLSTMState]:
        """One step of each sequence, as used to generate text: ``layer.apply(variables, input, state, method="step")``.

        Args:
            input: ``(B, D)``.
            state: the memory before the step; `initial_state` makes an empty one.
            kernel_backend: as in `mlstm_step`.

        Returns:
            ``(output, state)``: ``(B, D)``, and the memory after the step.

        Raises:
            TypeError, ValueError: as in `mlstm_step`.
        """
        self._check(input, "B")
        h, after = mlstm_step(*self._inputs(input), state, eps=self.eps, kernel_backend=kernel_backend)
        return self._output(input, h), after

    @nn.nowrap
    def _check(self, input: jax.Array, tokens: str) -> None:
        call = Call("mLSTM", JAX)
        call.floating(input=input)
        call.shape("input", input, f"{tokens} {self.input_size}")

    @nn.nowrap
    def _inputs(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
        (N, K, V), c = self._sizes(), self.gate_soft_cap
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (y.reshape(*x.shape[:-1], N, width) for y, width in ((q, K), (k, K), (v, V)))
        i, f = (_at_least_float32(gate(x)) for gate in (self.igate_preact, self.fgate_preact))
        if c is not None:
            i, f = (c * jnp.tanh(gate / c) for gate in (i, f))
        return q, k, v, i, f

    @nn.nowrap
    def _output(self, x: jax.Array, h: jax.Array) -> jax.Array:
        return self.out_proj(jax.nn.sigmoid(self.ogate_preact(x)) * self.multihead_norm(h))


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
        y = jnp.einsum("...i,oi->...o", x, weight, precision=matmul_precision())
        return y if bias is None else y + bias


class _HeadNorm(nn.Module):
    """``(..., N, V)`` → ``(..., N·V)``: a layer norm of each head, in float32 at least, then a weight."""

    eps: float
    use_bias: bool
    param_dtype: Any

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        y = _at_least_float32(h)
        y = y - y.mean(-1, keepdims=True)
        y = (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps)).astype(h.dtype)
        y = y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])
        y = y * self.param("weight", nn.initializers.ones, (y.shape[-1],), self.param_dtype)
        return y + self.param("bias", nn.initializers.zeros, (y.shape[-1],), self.param_dtype) if self.use_bias else y


def _forget_bias(key: jax.Array, shape: tuple[int, ...], dtype: Any, *_: Any, **__: Any) -> jax.Array:
    return jnp.linspace(3.0, 6.0, shape[0], dtype=dtype)


def _at_least_float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
