"""The layers `GRU` and `mLSTMBackendFwbw`, as ``torch.nn.Module``, and what all layers share."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reference.arguments import Call, check_gru_sizes, describe, dtype_name, mLSTMBackendFwbwConfig, normalise_config
from torch_impl._arrays import TORCH, autocast_dtype
from torch_impl._backends import KernelBackend
from torch_impl._gru.api import gru
from torch_impl._mlstm.fwbw import custom_grad
from torch_impl._products import linear


class Projection(nn.Linear):
    """A linear layer, computed by the faster of PyTorch's two CPU libraries."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)

    def _get_name(self) -> str:
        return "Linear"


def check_input(layer: str, input: Tensor, tokens: str, weight: Tensor) -> None:
    """Raise unless the input of a layer has axes `tokens` and the features and dtype of its first linear map."""
    call = Call(layer, TORCH)
    call.floating(input=input)
    call.shape("input", input, f"{tokens} {weight.shape[1]}")
    if autocast_dtype(input) is None and input.dtype is not weight.dtype:
        call.refuse(TypeError, "input", describe(input), f"{dtype_name(weight)}, the parameters' dtype")


class GRU(nn.Module):
    """A GRU layer: project the input, run `gru`, project its output.

    ``x, x_f, x_r = split(input_projection(input))``, ``y, state = gru(x, W, x_f, W_f, x_r, W_r)``,
    ``output = output_projection(y)``. With `reset_after` the reset gate is applied after the recurrent product, whose
    bias is ``recurrent_bias``, as in ``torch.nn.GRU``.

    Args:
        input_size: features of the input.
        state_head_dim: H.
        output_size: features of the output.
        num_input_heads: Nx.
        num_forget_input_heads, num_reset_input_heads: Nxf, Nxr; None means Nx.
        num_weight_heads, num_forget_weight_heads, num_reset_weight_heads: Nw, Nwf, Nwr; None means Nx.
        add_bias: whether both projections and, with `reset_after`, the recurrent product add a bias.
        gradient_clipping, reset_after: as in `gru`.
        device, dtype: of the parameters.

    Attributes:
        input_projection: linear, from ``input_size`` to ``(Nx + Nxf + Nxr)·H``, in that order.
        state_weight, forget_weight, reset_weight: ``(Nw, H, H)``, ``(Nwf, H, H)``, ``(Nwr, H, H)``, initialised
            uniformly within ``±H^−½``.
        recurrent_bias: ``(Nw, H)``, initialised likewise, or None.
        output_projection: linear, from ``N·H`` to ``output_size``.

    Raises:
        TypeError, ValueError: a size is not an integer of at least 1, or a head count does not divide the largest one.
    """

    def __init__(
        self,
        input_size: int,
        state_head_dim: int,
        output_size: int,
        num_input_heads: int,
        num_forget_input_heads: int | None = None,
        num_reset_input_heads: int | None = None,
        num_weight_heads: int | None = None,
        num_forget_weight_heads: int | None = None,
        num_reset_weight_heads: int | None = None,
        add_bias: bool = True,
        gradient_clipping: float | None = None,
        *,
        reset_after: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        call = check_gru_sizes(
            input_size,
            state_head_dim,
            output_size,
            num_input_heads,
            num_forget_input_heads,
            num_reset_input_heads,
            num_weight_heads,
            num_forget_weight_heads,
            num_reset_weight_heads,
            add_bias,
            gradient_clipping,
            reset_after,
        )
        self.input_size, self.state_head_dim, self.output_size = input_size, state_head_dim, output_size
        self.num_input_heads = num_input_heads
        self.num_forget_input_heads = call["Nxf"]
        self.num_reset_input_heads = call["Nxr"]
        self.num_weight_heads = call["Nw"]
        self.num_forget_weight_heads = call["Nwf"]
        self.num_reset_weight_heads = call["Nwr"]
        self.num_heads = call["N"]
        self.gradient_clipping, self.reset_after = gradient_clipping, reset_after
        self._input_heads = [call["Nx"], call["Nxf"], call["Nxr"]]

        H = state_head_dim
        factory: dict[str, Any] = {"device": device, "dtype": dtype}

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, **factory))

        self.input_projection = Projection(input_size, sum(self._input_heads) * H, add_bias, **factory)
        self.state_weight = weight(call["Nw"], H, H)
        self.forget_weight = weight(call["Nwf"], H, H)
        self.reset_weight = weight(call["Nwr"], H, H)
        self.recurrent_bias = weight(call["Nw"], H) if add_bias and reset_after else None
        self.output_projection = Projection(self.num_heads * H, output_size, add_bias, **factory)
        self._reset_weights()

    def reset_parameters(self) -> None:
        """Initialise every parameter again."""
        self.input_projection.reset_parameters()
        self.output_projection.reset_parameters()
        self._reset_weights()

    def _reset_weights(self) -> None:
        bound = self.state_head_dim**-0.5
        for weight in (self.state_weight, self.forget_weight, self.reset_weight, self.recurrent_bias):
            if weight is not None:
                nn.init.uniform_(weight, -bound, bound)

    def forward(
        self,
        input: Tensor,
        input_state: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer.

        Args:
            input: ``(B, S, input_size)``, or ``(T, input_size)`` with `cu_seqlens`.
            input_state: ``(B, N, H)`` in the accumulation dtype; None means zeros.
            cu_seqlens, max_seqlen, kernel_backend: as in `gru`.

        Returns:
            ``(output, state)``: ``(B, S, output_size)`` or ``(T, output_size)``, and ``(B, N, H)``.

        Raises:
            TypeError, ValueError: as in `gru`.
        """
        check_input("GRU", input, "B S" if cu_seqlens is None else "T", self.input_projection.weight)
        heads = self.input_projection(input).unflatten(-1, (sum(self._input_heads), self.state_head_dim))
        x, xf, xr = heads.split(self._input_heads, dim=-2)
        output, state = gru(
            x,
            self.state_weight,
            xf,
            self.forget_weight,
            xr,
            self.reset_weight,
            input_state,
            self.gradient_clipping,
            cu_seqlens,
            max_seqlen,
            reset_after=self.reset_after,
            recurrent_bias=self.recurrent_bias,
            kernel_backend=kernel_backend,
        )
        return self.output_projection(output.flatten(-2)), state

    def extra_repr(self) -> str:
        """The layer's settings, without its projections."""
        return (
            f"input_size={self.input_size}, state_head_dim={self.state_head_dim}, output_size={self.output_size}, "
            f"num_input_heads={self.num_input_heads}, num_forget_input_heads={self.num_forget_input_heads}, "
            f"num_reset_input_heads={self.num_reset_input_heads}, num_weight_heads={self.num_weight_heads}, "
            f"num_forget_weight_heads={self.num_forget_weight_heads}, "
            f"num_reset_weight_heads={self.num_reset_weight_heads}, gradient_clipping={self.gradient_clipping}, "
            f"reset_after={self.reset_after}"
        )


class mLSTMBackendFwbw(nn.Module):
    """The fwbw interface as a layer without parameters.

    Args:
        config: the configuration or its dict.

    Raises:
        TypeError, ValueError: `config` is not a valid configuration.
    """

    config_class: ClassVar[type] = mLSTMBackendFwbwConfig

    def __init__(self, config: mLSTMBackendFwbwConfig | dict) -> None:
        super().__init__()
        self.config = normalise_config(config, "mLSTMBackendFwbw")

    @property
    def can_vmap_over_heads(self) -> bool:
        """Whether the caller may map over heads: always True, since nothing here depends on heads."""
        return True

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
        return_last_states: bool = False,
        *,
        sequence_group: Any = None,
    ) -> Any:
        """Run the mLSTM; the shapes, and `sequence_group`, are those of `fwbw_forward`.

        Returns:
            h, or ``(h, (C, n, m))`` with ``return_last_states`` or the configuration's ``return_state``.

        Raises:
            TypeError, ValueError: as in `fwbw_forward`.
        """
        fields = {**vars(self.config), "return_state": self.config.return_state or return_last_states}
        config = normalise_config(fields, "mLSTMBackendFwbw")
        return custom_grad(config, ("c_initial", "n_initial", "m_initial"), sequence_group)(
            q, k, v, i, f, c_initial, n_initial, m_initial
        )

    def extra_repr(self) -> str:
        """The configuration."""
        return ", ".join(f"{name}={value}" for name, value in vars(self.config).items())
