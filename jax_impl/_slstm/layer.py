"""The layer `sLSTM`, as a flax.linen module on top of `slstm`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, matmul_precision
from jax_impl._backends import KernelBackend
from jax_impl._modules import uniform
from jax_impl._slstm.api import slstm
from reference.arguments import Call, SLSTMState, check_slstm_sizes


class sLSTM(nn.Module):
    """An sLSTM layer: project the input, run `slstm`, project its output.

    ``z, i, f, o = split(input_projection(input))``, ``h, state = slstm(z, i, f, o, W_z, W_i, W_f, W_o)``,
    ``output = output_projection(h)``.

    Initial values are those of the ``xlstm`` package: recurrent weights are 0, so that the layer begins as one without
    recurrent connections; the input projection is normal with a standard deviation of ``(2 / (5·input_size))^½``
    (Nguyen and Salazar, arXiv:1910.05895); its biases are 0 but for those of the forget gate, ``b_j = 5 − 12 x_j`` with
    ``x_j = (j/(H−1))^(0.3 + 1.3·depth)`` for the elements j of each head. An exponential forget gate has ``log σ(b_j)``
    instead, so that both forms begin with the same memory. The output projection is uniform within ``±(N·H)^−½``.

    Attributes:
        input_size: features of the input.
        state_head_dim: H.
        output_size: features of the output.
        num_heads: N.
        add_bias: whether both projections add a bias.
        gradient_clipping, forget_gate: as in `slstm`.
        depth: the layer's place among the layers of a model, from 0, the first, to 1, the last.
        dtype: the dtype of the computation; None promotes the dtypes of input and parameters.
        param_dtype: the dtype of the parameters.

    Parameters: ``input_projection`` and ``output_projection`` (Dense), and ``weight_z``, ``weight_i``, ``weight_f`` and
    ``weight_o``, each ``(N, H, H)``.

    Raises:
        TypeError, ValueError: a size is not an integer of at least 1, `depth` is no number from 0 to 1, or an option is
            none of `slstm`.

    Source:
        Beck et al., arXiv:2405.04517; the ``xlstm`` package, ``sLSTMLayer``.
    """

    input_size: int
    state_head_dim: int
    output_size: int
    num_heads: int
    add_bias: bool = True
    gradient_clipping: float | None = None
    forget_gate: str = "sigmoid"
    depth: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_slstm_sizes(
            self.input_size,
            self.state_head_dim,
            self.output_size,
            self.num_heads,
            self.add_bias,
            self.gradient_clipping,
            self.forget_gate,
            self.depth,
        )
        super().__post_init__()

    def setup(self) -> None:
        N, H = self.num_heads, self.state_head_dim
        small, bound = nn.initializers.normal((2 / (5 * self.input_size)) ** 0.5), uniform((N * H) ** -0.5)
        self.input_projection = self._dense(4 * N * H, small, self._input_bias)
        self.output_projection = self._dense(self.output_size, bound, bound)
        for name in "zifo":
            weight = self.param(f"weight_{name}", nn.initializers.zeros_init(), (N, H, H), self.param_dtype)
            setattr(self, f"weight_{name}", weight)

    @nn.nowrap
    def _input_bias(self, key: jax.Array, shape: Any, dtype: Any = jnp.float32, *_: Any, **__: Any) -> jax.Array:
        N, H = self.num_heads, self.state_head_dim
        forget = 5 - 12 * (jnp.arange(H, dtype=dtype) / max(H - 1, 1)) ** (0.3 + 1.3 * self.depth)
        forget = jax.nn.log_sigmoid(forget) if self.forget_gate == "exp" else forget
        return jnp.zeros((4, N, H), dtype).at[2].set(forget).reshape(shape)

    @nn.nowrap
    def _dense(self, features: int, kernel_init: Any, bias_init: Any) -> nn.Dense:
        return nn.Dense(
            features,
            use_bias=self.add_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=matmul_precision(),
            kernel_init=kernel_init,
            bias_init=bias_init,
        )

    def __call__(
        self,
        input: jax.Array,
        initial_state: SLSTMState | None = None,
        cu_seqlens: jax.Array | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[jax.Array, SLSTMState]:
        """Run the layer.

        Args:
            input: ``(B, S, input_size)``, or ``(T, input_size)`` with `cu_seqlens`.
            initial_state, cu_seqlens, max_seqlen, kernel_backend: as in `slstm`.

        Returns:
            ``(output, state)``: ``(B, S, output_size)`` or ``(T, output_size)``, and an `SLSTMState`.

        Raises:
            TypeError, ValueError: as in `slstm`.
        """
        call = Call("sLSTM", JAX)
        call.floating(input=input)
        call.shape("input", input, f"{'B S' if cu_seqlens is None else 'T'} {self.input_size}")
        heads = self.input_projection(input)
        heads = heads.reshape(*heads.shape[:-1], 4, self.num_heads, self.state_head_dim)
        weights = (self.weight_z, self.weight_i, self.weight_f, self.weight_o)
        h, state = slstm(
            *(heads[..., gate, :, :] for gate in range(4)),
            *(weight.astype(heads.dtype) for weight in weights),
            initial_state=initial_state,
            return_state=True,
            forget_gate=self.forget_gate,
            gradient_clipping=self.gradient_clipping,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            kernel_backend=kernel_backend,
        )
        return self.output_projection(h.reshape(*h.shape[:-2], h.shape[-2] * h.shape[-1])), state
