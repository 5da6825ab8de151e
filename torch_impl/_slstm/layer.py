"""The layer `sLSTM`, as a ``torch.nn.Module`` on top of `slstm`."""

from typing import Any

import torch
from torch import Tensor, nn

from reference.arguments import SLSTMState, check_slstm_sizes
from torch_impl._backends import KernelBackend
from torch_impl._modules import Projection, check_input
from torch_impl._slstm.api import slstm


class sLSTM(nn.Module):
    """An sLSTM layer: project the input, run `slstm`, project its output.

    ``z, i, f, o = split(input_projection(input))``, ``h, state = slstm(z, i, f, o, W_z, W_i, W_f, W_o)``,
    ``output = output_projection(h)``.

    Initial values are those of the ``xlstm`` package: recurrent weights are 0, so that the layer begins as one without
    recurrent connections; the input projection is normal with a standard deviation of ``(2 / (5·input_size))^½``
    (Nguyen and Salazar, arXiv:1910.05895); its biases are 0 but for those of the forget gate, ``b_j = 5 − 12 x_j`` with
    ``x_j = (j/(H−1))^(0.3 + 1.3·depth)`` for the elements j of each head. An exponential forget gate has ``log σ(b_j)``
    instead, so that both forms begin with the same memory. The output projection is uniform within ``±(N·H)^−½``.

    Args:
        input_size: features of the input.
        state_head_dim: H.
        output_size: features of the output.
        num_heads: N.
        add_bias: whether both projections add a bias.
        gradient_clipping, forget_gate: as in `slstm`.
        depth: the layer's place among the layers of a model, from 0, the first, to 1, the last.
        device, dtype: of the parameters.

    Attributes:
        input_projection: linear, from ``input_size`` to ``4·N·H``, in the order z, i, f, o.
        weight_z, weight_i, weight_f, weight_o: ``(N, H, H)``.
        output_projection: linear, from ``N·H`` to ``output_size``.

    Raises:
        TypeError, ValueError: a size is not an integer of at least 1, `depth` is no number from 0 to 1, or an option is
            none of `slstm`.

    Source:
        Beck et al., arXiv:2405.04517; the ``xlstm`` package, ``sLSTMLayer``.
    """

    def __init__(
        self,
        input_size: int,
        state_head_dim: int,
        output_size: int,
        num_heads: int,
        add_bias: bool = True,
        gradient_clipping: float | None = None,
        *,
        forget_gate: str = "sigmoid",
        depth: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_slstm_sizes(
            *(input_size, state_head_dim, output_size, num_heads, add_bias, gradient_clipping, forget_gate, depth)
        )
        self.input_size, self.state_head_dim, self.output_size = input_size, state_head_dim, output_size
        self.num_heads, self.gradient_clipping = num_heads, gradient_clipping
        self.forget_gate, self.depth = forget_gate, depth
        N, H = num_heads, state_head_dim
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.input_projection = Projection(input_size, 4 * N * H, add_bias, **factory)
        self.weight_z, self.weight_i, self.weight_f, self.weight_o = (
            nn.Parameter(torch.empty(N, H, H, **factory)) for _ in range(4)
        )
        self.output_projection = Projection(N * H, output_size, add_bias, **factory)
        self._reset_weights()

    def reset_parameters(self) -> None:
        """Initialise every parameter again."""
        self.output_projection.reset_parameters()
        self._reset_weights()

    def _reset_weights(self) -> None:
        for weight in (self.weight_z, self.weight_i, self.weight_f, self.weight_o):
            nn.init.zeros_(weight)
        nn.init.normal_(self.input_projection.weight, std=(2 / (5 * self.input_size)) ** 0.5)
        if self.input_projection.bias is None:
            return
        H, like = self.state_head_dim, self.input_projection.bias
        place = torch.arange(H, dtype=like.dtype, device=like.device) / max(H - 1, 1)
        forget = 5 - 12 * place ** (0.3 + 1.3 * self.depth)
        if self.forget_gate == "exp":
            forget = nn.functional.logsigmoid(forget)
        with torch.no_grad():
            like.zero_().view(4, self.num_heads, H)[2] = forget

    def forward(
        self,
        input: Tensor,
        initial_state: SLSTMState | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[Tensor, SLSTMState]:
        """Run the layer.

        Args:
            input: ``(B, S, input_size)``, or ``(T, input_size)`` with `cu_seqlens`.
            initial_state, cu_seqlens, max_seqlen, kernel_backend: as in `slstm`.

        Returns:
            ``(output, state)``: ``(B, S, output_size)`` or ``(T, output_size)``, and an `SLSTMState`.

        Raises:
            TypeError, ValueError: as in `slstm`.
        """
        check_input("sLSTM", input, "B S" if cu_seqlens is None else "T", self.input_projection.weight)
        heads = self.input_projection(input).unflatten(-1, (4, self.num_heads, self.state_head_dim))
        z, i, f, o = heads.unbind(-3)
        h, state = slstm(
            z,
            i,
            f,
            o,
            self.weight_z,
            self.weight_i,
            self.weight_f,
            self.weight_o,
            initial_state=initial_state,
            return_state=True,
            forget_gate=self.forget_gate,
            gradient_clipping=self.gradient_clipping,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            kernel_backend=kernel_backend,
        )
        return self.output_projection(h.flatten(-2)), state

    def extra_repr(self) -> str:
        """The layer's settings, without its projections."""
        return (
            f"input_size={self.input_size}, state_head_dim={self.state_head_dim}, output_size={self.output_size}, "
            f"num_heads={self.num_heads}, gradient_clipping={self.gradient_clipping}, forget_gate={self.forget_gate!r}"
        )
