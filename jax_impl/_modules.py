"""The two layers that hold parameters or a configuration, as flax.linen modules."""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, matmul_precision
from jax_impl._backends import KernelBackend
from jax_impl._gru.api import gru
from jax_impl._mlstm.fwbw import mlstm_fwbw_custom_grad
from reference.arguments import Call, check_gru_sizes, mLSTMBackendFwbwConfig, normalise_config


def uniform(bound: float) -> nn.initializers.Initializer:
    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32, *_: Any, **__: Any) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class GRU(nn.Module):
    """A GRU layer: project the input, run `gru`, project its output.

    ``x, x_f, x_r = split(input_projection(input))``, ``y, state = gru(x, W, x_f, W_f, x_r, W_r)``,
    ``output = output_projection(y)``. With `reset_after` the reset gate is applied after the recurrent product, whose
    bias is ``recurrent_bias``, as in ``torch.nn.GRU``.

    Attributes:
        input_size: features of the input.
        state_head_dim: H.
        output_size: features of the output.
        num_input_heads: Nx.
        num_forget_input_heads, num_reset_input_heads: Nxf, Nxr; None means Nx.
        num_weight_heads, num_forget_weight_heads, num_reset_weight_heads: Nw, Nwf, Nwr; None means Nx.
        add_bias: whether both projections and, with `reset_after`, the recurrent product add a bias.
        gradient_clipping: as in `gru`.
        dtype: the dtype of the computation; None promotes the dtypes of input and parameters.
        param_dtype: the dtype of the parameters.
        reset_after: as in `gru`.

    Parameters: ``input_projection`` and ``output_projection`` (Dense, uniform within ``±fan_in^−½``), ``state_weight``
    ``(Nw, H, H)``, ``forget_weight`` ``(Nwf, H, H)``, ``reset_weight`` ``(Nwr, H, H)`` and, with
    `add_bias` and `reset_after`, ``recurrent_bias`` ``(Nw, H)`` (uniform within ``±H^−½``).

    Raises:
        TypeError, ValueError: a size is not an integer of at least 1, or a head count does not divide the largest one.
    """

    input_size: int
    state_head_dim: int
    output_size: int
    num_input_heads: int
    num_forget_input_heads: int | None = None
    num_reset_input_heads: int | None = None
    num_weight_heads: int | None = None
    num_forget_weight_heads: int | None = None
    num_reset_weight_heads: int | None = None
    add_bias: bool = True
    gradient_clipping: float | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    reset_after: bool = False

    def __post_init__(self) -> None:
        sizes = self._sizes()
        self.num_forget_input_heads, self.num_reset_input_heads = sizes["Nxf"], sizes["Nxr"]
        self.num_weight_heads = sizes["Nw"]
        self.num_forget_weight_heads, self.num_reset_weight_heads = sizes["Nwf"], sizes["Nwr"]
        super().__post_init__()

    @nn.nowrap
    def _sizes(self) -> Call:
        return check_gru_sizes(
            self.input_size,
            self.state_head_dim,
            self.output_size,
            self.num_input_heads,
            self.num_forget_input_heads,
            self.num_reset_input_heads,
            self.num_weight_heads,
            self.num_forget_weight_heads,
            self.num_reset_weight_heads,
            self.add_bias,
            self.gradient_clipping,
            self.reset_after,
        )

    def setup(self) -> None:
        sizes, H = self._sizes(), self.state_head_dim
        self.input_projection = self._dense(self.input_size, (sizes["Nx"] + sizes["Nxf"] + sizes["Nxr"]) * H)
        self.output_projection = self._dense(sizes["N"] * H, self.output_size)
        weight = uniform(H**-0.5)
        self.state_weight = self.param("state_weight", weight, (sizes["Nw"], H, H), self.param_dtype)
        self.forget_weight = self.param("forget_weight", weight, (sizes["Nwf"], H, H), self.param_dtype)
        self.reset_weight = self.param("reset_weight", weight, (sizes["Nwr"], H, H), self.param_dtype)
        self.recurrent_bias = (
            self.param("recurrent_bias", weight, (sizes["Nw"], H), self.param_dtype)
            if self.add_bias and self.reset_after
            else None
        )

    @nn.nowrap
    def _dense(self, fan_in: int, features: int) -> nn.Dense:
        init = uniform(fan_in**-0.5)
        return nn.Dense(
            features,
            use_bias=self.add_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=matmul_precision(),
            kernel_init=init,
            bias_init=init,
        )

    def __call__(
        self,
        input: jax.Array,
        input_state: jax.Array | None = None,
        cu_seqlens: jax.Array | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Run the layer.

        Args:
            input: ``(B, S, input_size)``, or ``(T, input_size)`` with `cu_seqlens`.
            input_state: ``(B, N, H)`` in the accumulation dtype; None means zeros.
            cu_seqlens, max_seqlen, kernel_backend: as in `gru`.

        Returns:
            ``(output, state)``: ``(B, S, output_size)`` or ``(T, output_size)``, and ``(B, N, H)`` in the accumulation
            dtype.

        Raises:
            TypeError, ValueError: as in `gru`.
        """
        call = Call("GRU", JAX)
        call.floating(input=input)
        call.shape("input", input, f"{'B S' if cu_seqlens is None else 'T'} {self.input_size}")
        heads = self.input_projection(input)
        sizes = self._sizes()
        x, xf, xr = _split_heads(heads, (sizes["Nx"], sizes["Nxf"], sizes["Nxr"]), self.state_head_dim)
        W, Wf, Wr = (w.astype(heads.dtype) for w in (self.state_weight, self.forget_weight, self.reset_weight))
        y, state = gru(
            *(x, W, xf, Wf, xr, Wr, input_state, self.gradient_clipping, cu_seqlens, max_seqlen),
            reset_after=self.reset_after,
            recurrent_bias=None if self.recurrent_bias is None else self.recurrent_bias.astype(heads.dtype),
            kernel_backend=kernel_backend,
        )
        return self.output_projection(y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])), state


def _split_heads(heads: jax.Array, counts: tuple[int, int, int], H: int) -> list[jax.Array]:
    heads = heads.reshape(*heads.shape[:-1], sum(counts), H)
    return jnp.split(heads, (counts[0], counts[0] + counts[1]), axis=-2)


class mLSTMBackendFwbw(nn.Module):
    """The fwbw interface as a layer without parameters.

    Attributes:
        config: the configuration or its dict.
    """

    config: mLSTMBackendFwbwConfig | Mapping

    config_class: ClassVar[type] = mLSTMBackendFwbwConfig

    def __post_init__(self) -> None:
        self.config = normalise_config(self.config, "mLSTMBackendFwbw")
        super().__post_init__()

    @property
    def can_vmap_over_heads(self) -> bool:
        """Whether the caller may map over heads: always True, since nothing here depends on heads."""
        return True

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        i: jax.Array,
        f: jax.Array,
        c_initial: jax.Array | None = None,
        n_initial: jax.Array | None = None,
        m_initial: jax.Array | None = None,
        return_last_states: bool = False,
        *,
        sequence_axis: str | tuple[str, ...] | None = None,
    ) -> Any:
        """Run the mLSTM; the shapes, and `sequence_axis`, are those of `fwbw_forward`.

        Returns:
            h, or ``(h, (C, n, m))`` with ``return_last_states`` or the configuration's ``return_state``.

        Raises:
            TypeError, ValueError: as in `fwbw_forward`.
        """
        config = normalise_config(self.config, "mLSTMBackendFwbw")
        settings = {**vars(config), "return_state": config.return_state or return_last_states}
        function = mlstm_fwbw_custom_grad(settings, sequence_axis=sequence_axis)
        return function(q, k, v, i, f, c_initial, n_initial, m_initial)
