"""The layer `mLSTM`, as a ``torch.nn.Module`` on top of `mlstm`."""

from typing import Any

import torch
from torch import Tensor, nn

from reference.arguments import MLSTMState, check_mlstm_sizes
from torch_impl._backends import KernelBackend
from torch_impl._mlstm.api import mlstm, mlstm_step
from torch_impl._modules import Projection, check_input


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

    Args:
        input_size: D, the features of the input and of the output.
        num_heads: N.
        add_bias: whether q, k, v, o, ĥ and the output have a bias. The gates i and f always do.
        qk_dim_factor, v_dim_factor: width of queries and keys (``N·K``), and of values (``N·V``), relative to D.
        gate_soft_cap: c; None means that preactivations are not capped.
        norm_eps: added to the variance of a head.
        eps: as in `mlstm`.
        num_blocks: number of blocks of the model, on which the initial output projection depends.
        device, dtype: of the parameters.

    Attributes:
        q, k, v, ogate_preact, igate_preact, fgate_preact, out_proj: linear.
        multihead_norm: ``weight``, ``(N·V,)``, and ``bias``, or None.

    Raises:
        TypeError, ValueError: an argument is out of range, or the heads do not divide a width.

    Source:
        Beck et al., arXiv:2503.13427; the ``xlstm`` package, ``xlstm_large.model.mLSTMLayer``, whose names these are.
    """

    def __init__(
        self,
        input_size: int,
        num_heads: int,
        add_bias: bool = False,
        *,
        qk_dim_factor: float = 0.5,
        v_dim_factor: float = 1.0,
        gate_soft_cap: float | None = 15.0,
        norm_eps: float = 1e-6,
        eps: float = 1e-6,
        num_blocks: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        call = check_mlstm_sizes(
            *(input_size, num_heads, add_bias, qk_dim_factor, v_dim_factor, gate_soft_cap, norm_eps, eps, num_blocks)
        )
        self.input_size, self.num_heads, self.num_blocks = input_size, num_heads, num_blocks
        self.qk_head_dim, self.v_head_dim = call["K"], call["V"]
        self.gate_soft_cap, self.eps = gate_soft_cap, eps
        D, N, K, V = input_size, num_heads, call["K"], call["V"]
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q = Projection(D, N * K, add_bias, **factory)
        self.k = Projection(D, N * K, add_bias, **factory)
        self.v = Projection(D, N * V, add_bias, **factory)
        self.ogate_preact = Projection(D, N * V, add_bias, **factory)
        self.igate_preact = Projection(D, N, **factory)
        self.fgate_preact = Projection(D, N, **factory)
        self.multihead_norm = _HeadNorm(N * V, norm_eps, add_bias, **factory)
        self.out_proj = Projection(N * V, D, add_bias, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter again."""
        small = (2 / (5 * self.input_size)) ** 0.5
        last = 2 / (self.num_blocks * self.input_size**0.5)
        deviations = {self.q: small, self.k: small, self.v: small, self.ogate_preact: small, self.out_proj: last}
        for projection, deviation in deviations.items():
            nn.init.normal_(projection.weight, std=deviation)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        for gate in (self.igate_preact, self.fgate_preact):
            nn.init.zeros_(gate.weight)
        nn.init.constant_(self.igate_preact.bias, -10.0)
        with torch.no_grad():
            self.fgate_preact.bias.copy_(torch.linspace(3.0, 6.0, self.num_heads))
        self.multihead_norm.reset_parameters()

    def initial_state(self, batch_size: int) -> MLSTMState:
        """The empty memory of `batch_size` sequences, on the parameters' device and in their accumulation dtype."""
        B, N, K, V = batch_size, self.num_heads, self.qk_head_dim, self.v_head_dim
        like = self.q.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        shapes = ((B, N, K, V), (B, N, K), (B, N))
        return MLSTMState(*(torch.zeros(shape, dtype=dtype, device=like.device) for shape in shapes))

    def forward(
        self,
        input: Tensor,
        initial_state: MLSTMState | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
        sequence_group: Any = None,
    ) -> tuple[Tensor, MLSTMState]:
        """Run the layer.

        Args:
            input: ``(B, S, D)``, or ``(T, D)`` with `cu_seqlens`.
            initial_state, cu_seqlens, max_seqlen, kernel_backend, sequence_group: as in `mlstm`.

        Returns:
            ``(output, state)``: the output in the shape of the input, and an `MLSTMState`.

        Raises:
            TypeError, ValueError: as in `mlstm`.
        """
        check_input("mLSTM", input, "B S" if cu_seqlens is None else "T", self.q.weight)
        h, state = mlstm(
            *self._inputs(input),
            initial_state=initial_state,
            return_state=True,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            eps=self.eps,
            kernel_backend=kernel_backend,
            sequence_group=sequence_group,
        )
        return self._output(input, h), state

    def step(
        self, input: Tensor, state: MLSTMState, *, kernel_backend: KernelBackend | str | None = None
    ) -> tuple[Tensor, MLSTMState]:
        """One step of each sequence, as used to generate text.

        Args:
            input: ``(B, D)``.
            state: the memory before the step; `initial_state` makes an empty one.
            kernel_backend: as in `mlstm_step`.

        Returns:
            ``(output, state)``: ``(B, D)``, and the memory after the step.

        Raises:
            TypeError, ValueError: as in `mlstm_step`.
        """
        check_input("mLSTM", input, "B", self.q.weight)
        h, after = mlstm_step(*self._inputs(input), state, eps=self.eps, kernel_backend=kernel_backend)
        return self._output(input, h), after

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        N, c = self.num_heads, self.gate_soft_cap
        q, k = (projection(x).unflatten(-1, (N, self.qk_head_dim)) for projection in (self.q, self.k))
        v = self.v(x).unflatten(-1, (N, self.v_head_dim))
        i, f = (_at_least_float32(gate(x)) for gate in (self.igate_preact, self.fgate_preact))
        if c is not None:
            i, f = (c * torch.tanh(gate / c) for gate in (i, f))
        return q, k, v, i, f

    def _output(self, x: Tensor, h: Tensor) -> Tensor:
        return self.out_proj(torch.sigmoid(self.ogate_preact(x)) * self.multihead_norm(h))

    def extra_repr(self) -> str:
        """The layer's settings, without its projections."""
        return (
            f"input_size={self.input_size}, num_heads={self.num_heads}, qk_head_dim={self.qk_head_dim}, "
            f"v_head_dim={self.v_head_dim}, gate_soft_cap={self.gate_soft_cap}, eps={self.eps}"
        )


class _HeadNorm(nn.Module):
    """``(..., N, V)`` → ``(..., N·V)``: a layer norm of each head, in float32 at least, then a weight."""

    def __init__(self, width: int, eps: float, bias: bool, **factory: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, **factory))
        self.bias = nn.Parameter(torch.empty(width, **factory)) if bias else None

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, h: Tensor) -> Tensor:
        y = _at_least_float32(h)
        y = y - y.mean(-1, keepdim=True)
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(h.dtype).flatten(-2) * self.weight
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
