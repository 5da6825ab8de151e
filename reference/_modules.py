"""The layers `GRU` and `mLSTMBackendFwbw`, as plain callables on top of the reference operations."""

from typing import Any, ClassVar

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend
from reference._fwbw import mlstm_fwbw_custom_grad
from reference._gru import gru
from reference.arguments import Call, check_gru_sizes, mLSTMBackendFwbwConfig, normalise_config


class GRU:
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
        gradient_clipping: as in `gru_backward`.
        reset_after: as in `gru`.
        rng: seed of the initial parameters, uniform within ``±H^−½`` (projections: ``±fan_in^−½``).

    Attributes:
        params: every parameter by name, float64; a projection ``y = x·kernel + bias`` is a dict of its own.

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
        rng: int = 0,
        *,
        reset_after: bool = False,
    ):
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
        self.gradient_clipping, self.reset_after = gradient_clipping, reset_after
        self.input_heads = (call["Nx"], call["Nxf"], call["Nxr"])
        H, N = state_head_dim, call["N"]
        generator = np.random.default_rng(rng)

        def uniform(fan_in: int, *shape: int) -> np.ndarray:
            return generator.uniform(-(fan_in**-0.5), fan_in**-0.5, shape)

        def projection(size: int, features: int) -> dict[str, np.ndarray]:
            kernel = {"kernel": uniform(size, size, features)}
            return {**kernel, "bias": uniform(size, features)} if add_bias else kernel

        self.params: dict[str, Any] = {
            "input_projection": projection(input_size, sum(self.input_heads) * H),
            "state_weight": uniform(H, call["Nw"], H, H),
            "forget_weight": uniform(H, call["Nwf"], H, H),
            "reset_weight": uniform(H, call["Nwr"], H, H),
            "output_projection": projection(N * H, output_size),
        }
        if add_bias and reset_after:
            self.params["recurrent_bias"] = uniform(H, call["Nw"], H)

    def __call__(
        self,
        input: np.ndarray,
        input_state: np.ndarray | None = None,
        cu_seqlens: np.ndarray | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the layer.

        Args:
            input: ``(B, S, input_size)``, or ``(T, input_size)`` with `cu_seqlens`.
            input_state: ``(B, N, H)``; None means zeros.
            cu_seqlens, max_seqlen, kernel_backend: as in `gru`.

        Returns:
            ``(output, state)``: ``(B, S, output_size)`` or ``(T, output_size)``, and ``(B, N, H)``. Both are float64.

        Raises:
            TypeError, ValueError: as in `gru`.
        """
        call = Call("GRU", NUMPY)
        call.floating(input=input)
        size = self.params["input_projection"]["kernel"].shape[0]
        call.shape("input", input, f"{'B S' if cu_seqlens is None else 'T'} {size}")
        H = self.params["state_weight"].shape[-1]
        heads = project(float64(input), self.params["input_projection"])
        heads = heads.reshape(*heads.shape[:-1], sum(self.input_heads), H)
        x, xf, xr = np.split(heads, np.cumsum(self.input_heads)[:-1], axis=-2)
        weights = (self.params[f"{name}_weight"] for name in ("state", "forget", "reset"))
        W, Wf, Wr = weights
        state = None if input_state is None else float64(input_state)
        y, last = gru(
            *(x, W, xf, Wf, xr, Wr, state, self.gradient_clipping, cu_seqlens, max_seqlen),
            reset_after=self.reset_after,
            recurrent_bias=self.params.get("recurrent_bias"),
            kernel_backend=kernel_backend,
        )
        joined = y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])
        return project(joined, self.params["output_projection"]), last


def project(x: np.ndarray, projection: dict[str, np.ndarray]) -> np.ndarray:
    return x @ projection["kernel"] + projection.get("bias", 0.0)


def float64_state(state: Any) -> Any:
    """A state in float64; what is not a state is left for the operation to refuse."""
    if not isinstance(state, tuple | list):
        return state
    return tuple(x if NUMPY.refuses(x) else float64(x) for x in state)


class mLSTMBackendFwbw:
    """The fwbw interface as a layer without parameters.

    Args:
        config: the configuration or its dict.
    """

    config_class: ClassVar[type] = mLSTMBackendFwbwConfig

    def __init__(self, config: mLSTMBackendFwbwConfig | dict):
        self.config = normalise_config(config, "mLSTMBackendFwbw")

    @property
    def can_vmap_over_heads(self) -> bool:
        """Whether the caller may map over heads: always True, since nothing here depends on heads."""
        return True

    def __call__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        i: np.ndarray,
        f: np.ndarray,
        c_initial: np.ndarray | None = None,
        n_initial: np.ndarray | None = None,
        m_initial: np.ndarray | None = None,
        return_last_states: bool = False,
    ) -> Any:
        """Run the mLSTM; the shapes are those of `fwbw_forward`.

        Returns:
            h, or ``(h, (C, n, m))`` with ``return_last_states`` or the configuration's ``return_state``.

        Raises:
            TypeError, ValueError: as in `fwbw_forward`.
        """
        config = {**vars(self.config), "return_state": self.config.return_state or return_last_states}
        return mlstm_fwbw_custom_grad(config)(q, k, v, i, f, c_initial, n_initial, m_initial)
