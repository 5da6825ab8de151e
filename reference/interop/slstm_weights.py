"""The weights of an `sLSTM` layer as NumPy arrays, in one layout, and those of the ``xlstm`` package read into it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference._arrays import NUMPY
from reference._call import Call, describe
from reference.arguments import check_forget_gate
from reference.interop.gru_checkpoints import check_mapping
from reference.interop.gru_weights import as_projection

_ARRAYS = ("input_kernel", "weight_z", "weight_i", "weight_f", "weight_o", "input_bias", "output_kernel", "output_bias")


@dataclass(frozen=True, kw_only=True)
class SLSTMWeights:
    """The weights of an `sLSTM` layer, in NumPy.

    The layer computes::

        z, i, f, o = split(input · input_kernel + input_bias)
        h, state = slstm(z, i, f, o, weight_z, weight_i, weight_f, weight_o)
        output = h · output_kernel + output_bias

    Attributes:
        input_kernel: ``(input_size, 4·N·H)``, columns in the order z, i, f, o.
        weight_z, weight_i, weight_f, weight_o: ``(N, H, H)``.
        input_bias: ``(4·N·H,)``; None means no bias.
        output_kernel: ``(N·H, output_size)``; None means that the layer returns h as it is.
        output_bias: ``(output_size,)``; None means no bias.
        gradient_clipping, forget_gate: as in `slstm`.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: shapes disagree, or `forget_gate` is none of `slstm`.
    """

    input_kernel: np.ndarray
    weight_z: np.ndarray
    weight_i: np.ndarray
    weight_f: np.ndarray
    weight_o: np.ndarray
    input_bias: np.ndarray | None = None
    output_kernel: np.ndarray | None = None
    output_bias: np.ndarray | None = None
    gradient_clipping: float | None = None
    forget_gate: str = "sigmoid"

    def __post_init__(self) -> None:
        call = Call("SLSTMWeights", NUMPY)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        call.floating(**{name: x for name, x in arrays.items() if x is not None or name in _ARRAYS[:5]})
        if self.gradient_clipping is not None:
            call.number("gradient_clipping", self.gradient_clipping, "None or a number", lambda _: True)
        check_forget_gate(call, self.forget_gate)
        for name in _ARRAYS[1:5]:
            call.shape(name, arrays[name], "N H H")
        width = call["N"] * call["H"]
        call.shape("input_kernel", self.input_kernel, f"I {4 * width}")
        if self.input_bias is not None:
            call.shape("input_bias", self.input_bias, f"{4 * width}")
        size = width
        if self.output_kernel is not None:
            call.shape("output_kernel", self.output_kernel, f"{width} O")
            size = call["O"]
        if self.output_bias is not None:
            call.shape("output_bias", self.output_bias, f"{size}")

    @property
    def has_bias(self) -> bool:
        """Whether the layer adds biases: it adds both if one of them is given, and the other one is then 0."""
        return self.input_bias is not None or self.output_bias is not None

    def with_output_projection(self, kernel: np.ndarray, bias: np.ndarray | None = None) -> "SLSTMWeights":
        """These weights, followed by a linear layer ``(N·H, output_size)``, whose bias may be None.

        Raises:
            TypeError, ValueError: as `SLSTMWeights`; there is an output projection already.
        """
        if self.output_kernel is not None:
            raise ValueError(
                "SLSTMWeights: `output_kernel` is given already; expected weights without an output projection"
            )
        Call("SLSTMWeights", NUMPY).kind(output_kernel=kernel)
        return dataclasses.replace(self, output_kernel=kernel, output_bias=bias)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `sLSTM` by name, the same in all three packages."""
        N, H = self.weight_z.shape[:2]
        return dict(
            input_size=self.input_kernel.shape[0],
            state_head_dim=H,
            output_size=N * H if self.output_kernel is None else self.output_kernel.shape[1],
            num_heads=N,
            add_bias=self.has_bias,
            gradient_clipping=self.gradient_clipping,
            forget_gate=self.forget_gate,
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters of `sLSTM` by name, as `reference.sLSTM` holds them and as Flax names them; copies.

        Where there is no output projection the layer's is the identity, which changes no bit of h.
        """
        N, H = self.weight_z.shape[:2]
        out = np.eye(N * H, dtype=self.input_kernel.dtype) if self.output_kernel is None else self.output_kernel
        return dict(
            input_projection=as_projection(self.input_kernel, self.input_bias, self.has_bias),
            **{name: getattr(self, name).copy() for name in _ARRAYS[1:5]},
            output_projection=as_projection(out, self.output_bias, self.has_bias),
        )


_GATES = {"i": "fgate", "f": "igate", "z": "zgate", "o": "ogate"}
"""The projection whose result each gate reads, in the order of the cell. Its first two names are exchanged."""
_CELL = ("slstm_cell._recurrent_kernel_", "slstm_cell._bias_")
_AROUND = ("conv1d.conv.weight", "conv1d.conv.bias", "group_norm.weight")


def slstm_weights_from_xlstm(state_dict: Mapping[str, np.ndarray], *, prefix: str = "") -> SLSTMWeights:
    """Weights of the ``sLSTMLayer`` of the ``xlstm`` package: its four projections and its cell.

    Its convolution and its group norm are not a part of `sLSTM`. With a convolution, whose result after its activation
    is y, the layer's input is ``[x, y]``, of twice the features: z and o read x, i and f read y. The projection that is
    called ``fgate`` there is the input gate's, and ``igate`` is the forget gate's.

    Args:
        state_dict: parameters by name as NumPy arrays: ``fgate.weight``, ``igate.weight``, ``zgate.weight`` and
            ``ogate.weight``, ``(N, H, H)``; ``slstm_cell._recurrent_kernel_``, ``(N, 4·H, H)`` of the backend
            ``vanilla`` or ``(N, H, 4·H)`` of the backend ``cuda``; ``slstm_cell._bias_``, ``(4·N·H,)``. Those of
            ``conv1d`` say that there is a convolution.
        prefix: what stands before these names, such as ``"xlstm.blocks.1.xlstm."``. Names without it are not read.

    Returns:
        Weights of a layer that returns h.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: a parameter is missing, unknown or has another shape.

    Source:
        Beck et al., arXiv:2405.04517; the ``xlstm`` package, version 2.0, ``blocks/slstm``.
    """
    call = Call("slstm_weights_from_xlstm", NUMPY)
    check_mapping(call, "state_dict", state_dict, "arrays by name")
    if not isinstance(prefix, str):
        call.refuse(TypeError, "prefix", describe(prefix), "the beginning of names")
    for name in state_dict:
        if not isinstance(name, str):
            call.refuse(TypeError, "state_dict", f"a mapping with the key {name!r}", "arrays by name")
    arrays = {name.removeprefix(prefix): array for name, array in state_dict.items() if name.startswith(prefix)}
    needed = (*(f"{name}.weight" for name in _GATES.values()), *_CELL)
    for name in needed:
        if name not in arrays:
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", "missing", "a parameter of sLSTMLayer")
    for name, array in arrays.items():
        if name not in (*needed, *_AROUND):
            call.refuse(ValueError, f"state_dict[{prefix + name!r}]", describe(array), "a parameter of sLSTMLayer")
    call.floating(**{name: arrays[name] for name in needed})
    for name in needed[:4]:
        call.shape(f"{prefix}{name}", arrays[name], "N H H")
    N, H = call["N"], call["H"]
    recurrent, bias = (arrays[name] for name in _CELL)
    vanilla = recurrent.shape == (N, 4 * H, H)
    if not vanilla:
        call.shape(f"{prefix}{_CELL[0]}", recurrent, f"N H {4 * H}")
    call.shape(f"{prefix}{_CELL[1]}", bias, f"{4 * N * H}")
    # Of the cell's gates i, f, z, o: matrices (in, out), and biases by head.
    matrices = recurrent.reshape(N, 4, H, H).mT if vanilla else recurrent.reshape(N, H, 4, H).swapaxes(1, 2)
    biases = bias.reshape(4, N, H) if vanilla else bias.reshape(N, 4, H).swapaxes(0, 1)
    of = {gate: (np.ascontiguousarray(matrices[:, at]), biases[at]) for at, gate in enumerate(_GATES)}
    convolved = any(name.startswith("conv1d.") for name in arrays)
    kernels = []
    for gate in "zifo":
        kernel = np.zeros((2 if convolved else 1, N, H, N, H), recurrent.dtype)
        for n in range(N):
            kernel[-1 if gate in "if" else 0, n, :, n] = arrays[f"{_GATES[gate]}.weight"][n].T
        kernels.append(kernel.reshape(-1, N * H))
    return SLSTMWeights(
        input_kernel=np.concatenate(kernels, axis=1),
        input_bias=np.concatenate([of[gate][1].ravel() for gate in "zifo"]),
        weight_z=of["z"][0],
        weight_i=of["i"][0],
        weight_f=of["f"][0],
        weight_o=of["o"][0],
    )
