"""The layer `sLSTM`, as a plain callable on top of `slstm`."""

from typing import Any

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend
from reference._gates import log_sigmoid
from reference._modules import float64_state, project
from reference._slstm import slstm
from reference.arguments import Call, SLSTMState, check_slstm_sizes


class sLSTM:
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
        rng: seed of the initial parameters.

    Attributes:
        params: every parameter by name, float64; a projection ``y = x·kernel + bias`` is a dict of its own.

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
        rng: int = 0,
    ):
        check_slstm_sizes(
            *(input_size, state_head_dim, output_size, num_heads, add_bias, gradient_clipping, forget_gate, depth)
        )
        self.gradient_clipping, self.forget_gate = gradient_clipping, forget_gate
        N, H = num_heads, state_head_dim
        generator, bound = np.random.default_rng(rng), (N * H) ** -0.5
        into = {"kernel": generator.normal(size=(input_size, 4 * N * H)) * (2 / (5 * input_size)) ** 0.5}
        out = {"kernel": generator.uniform(-bound, bound, (N * H, output_size))}
        if add_bias:
            forget = 5 - 12 * (np.arange(H) / max(H - 1, 1)) ** (0.3 + 1.3 * depth)
            bias = np.zeros((4, N, H))
            bias[2] = forget if forget_gate == "sigmoid" else log_sigmoid(forget)
            into["bias"], out["bias"] = bias.ravel(), generator.uniform(-bound, bound, output_size)
        self.params: dict[str, Any] = {
            "input_projection": into,
            **{f"weight_{name}": np.zeros((N, H, H)) for name in "zifo"},
            "output_projection": out,
        }

    def __call__(
        self,
        input: np.ndarray,
        initial_state: SLSTMState | None = None,
        cu_seqlens: np.ndarray | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[np.ndarray, SLSTMState]:
        """Run the layer.

        Args:
            input: ``(B, S, input_size)``, or ``(T, input_size)`` with `cu_seqlens`.
            initial_state, cu_seqlens, max_seqlen, kernel_backend: as in `slstm`.

        Returns:
            ``(output, state)``: ``(B, S, output_size)`` or ``(T, output_size)``, and an `SLSTMState`.

        Raises:
            TypeError, ValueError: as in `slstm`.
        """
        call = Call("sLSTM", NUMPY)
        call.floating(input=input)
        size = self.params["input_projection"]["kernel"].shape[0]
        call.shape("input", input, f"{'B S' if cu_seqlens is None else 'T'} {size}")
        N, H = self.params["weight_z"].shape[:2]
        heads = project(float64(input), self.params["input_projection"])
        heads = heads.reshape(*heads.shape[:-1], 4, N, H)
        h, state = slstm(
            *np.moveaxis(heads, -3, 0),
            *(self.params[f"weight_{name}"] for name in "zifo"),
            initial_state=float64_state(initial_state),
            return_state=True,
            forget_gate=self.forget_gate,
            gradient_clipping=self.gradient_clipping,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            kernel_backend=kernel_backend,
        )
        return project(h.reshape(*h.shape[:-2], N * H), self.params["output_projection"]), state
