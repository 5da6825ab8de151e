"""The layer `mLSTM`, as a plain callable on top of `mlstm`."""

from typing import Any

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend
from reference._gates import sigmoid
from reference._mlstm import mlstm, mlstm_step
from reference._modules import float64_state
from reference.arguments import Call, MLSTMState, check_mlstm_sizes


class mLSTM:
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
        rng: seed of the initial parameters.

    Attributes:
        params: every parameter by name, float64. ``q``, ``k``, ``v``, ``ogate_preact``, ``igate_preact``,
            ``fgate_preact`` and ``out_proj`` are dicts of ``weight``, ``(outputs, inputs)``, and ``bias``, and
            ``multihead_norm`` is one of ``weight``, ``(N·V,)``, and ``bias``.

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
        rng: int = 0,
    ):
        call = check_mlstm_sizes(
            *(input_size, num_heads, add_bias, qk_dim_factor, v_dim_factor, gate_soft_cap, norm_eps, eps, num_blocks)
        )
        self.gate_soft_cap, self.norm_eps, self.eps = gate_soft_cap, norm_eps, eps
        self.num_heads, self.qk_head_dim, self.v_head_dim = num_heads, call["K"], call["V"]
        D, N, K, V = input_size, num_heads, call["K"], call["V"]
        generator = np.random.default_rng(rng)

        def projection(outputs: int, inputs: int, deviation: float) -> dict[str, np.ndarray]:
            weight = {"weight": deviation * generator.normal(size=(outputs, inputs))}
            return {**weight, "bias": np.zeros(outputs)} if add_bias else weight

        small = (2 / (5 * D)) ** 0.5
        norm = {"weight": np.ones(N * V)}
        self.params: dict[str, Any] = {
            "q": projection(N * K, D, small),
            "k": projection(N * K, D, small),
            "v": projection(N * V, D, small),
            "ogate_preact": projection(N * V, D, small),
            "igate_preact": {"weight": np.zeros((N, D)), "bias": np.full(N, -10.0)},
            "fgate_preact": {"weight": np.zeros((N, D)), "bias": np.linspace(3.0, 6.0, N)},
            "multihead_norm": {**norm, "bias": np.zeros(N * V)} if add_bias else norm,
            "out_proj": projection(D, N * V, 2 / (num_blocks * D**0.5)),
        }

    def initial_state(self, batch_size: int) -> MLSTMState:
        """The empty memory of `batch_size` sequences."""
        B, N, K, V = batch_size, self.num_heads, self.qk_head_dim, self.v_head_dim
        return MLSTMState(np.zeros((B, N, K, V)), np.zeros((B, N, K)), np.zeros((B, N)))

    def __call__(
        self,
        input: np.ndarray,
        initial_state: MLSTMState | None = None,
        cu_seqlens: np.ndarray | None = None,
        max_seqlen: int | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[np.ndarray, MLSTMState]:
        """Run the layer.

        Args:
            input: ``(B, S, D)``, or ``(T, D)`` with `cu_seqlens`.
            initial_state, cu_seqlens, max_seqlen, kernel_backend: as in `mlstm`.

        Returns:
            ``(output, state)``: the output in the shape of the input, and an `MLSTMState`.

        Raises:
            TypeError, ValueError: as in `mlstm`.
        """
        x = self._checked(input, "B S" if cu_seqlens is None else "T")
        h, state = mlstm(
            *self._inputs(x),
            initial_state=float64_state(initial_state),
            return_state=True,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            eps=self.eps,
            kernel_backend=kernel_backend,
        )
        return self._output(x, h), state

    def step(
        self, input: np.ndarray, state: MLSTMState, *, kernel_backend: KernelBackend | str | None = None
    ) -> tuple[np.ndarray, MLSTMState]:
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
        x = self._checked(input, "B")
        h, after = mlstm_step(*self._inputs(x), float64_state(state), eps=self.eps, kernel_backend=kernel_backend)
        return self._output(x, h), after

    def _checked(self, input: np.ndarray, tokens: str) -> np.ndarray:
        call = Call("mLSTM", NUMPY)
        call.floating(input=input)
        call.shape("input", input, f"{tokens} {self.params['q']['weight'].shape[1]}")
        return float64(input)

    def _inputs(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        N, K, V, c = self.num_heads, self.qk_head_dim, self.v_head_dim, self.gate_soft_cap
        q, k = (self._linear(name, x).reshape(*x.shape[:-1], N, K) for name in "qk")
        v = self._linear("v", x).reshape(*x.shape[:-1], N, V)
        i, f = (self._linear(name, x) for name in ("igate_preact", "fgate_preact"))
        if c is not None:
            i, f = (c * np.tanh(gate / c) for gate in (i, f))
        return q, k, v, i, f

    def _output(self, x: np.ndarray, h: np.ndarray) -> np.ndarray:
        centred = h - h.mean(-1, keepdims=True)
        normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + self.norm_eps)
        norm = self.params["multihead_norm"]
        scaled = normed.reshape(*x.shape[:-1], self.num_heads * self.v_head_dim) * norm["weight"] + norm.get(
            "bias", 0.0
        )
        return self._linear("out_proj", sigmoid(self._linear("ogate_preact", x)) * scaled)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.params[name]["weight"].T + self.params[name].get("bias", 0.0)
