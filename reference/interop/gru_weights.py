"""The weights of a `GRU` layer as NumPy arrays, in one layout from which all three packages make their layer."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reference._arrays import NUMPY
from reference._call import Call, describe, whole_number


@dataclass(frozen=True, kw_only=True)
class GRUWeights:
    """The weights of a `GRU` layer, in NumPy.

    The layer computes, with Nx, Nxf and Nxr input heads of H features each::

        x, x_f, x_r = split(input · input_kernel + input_bias)
        y, state = gru(x, state_weight, x_f, forget_weight, x_r, reset_weight)
        output = y · output_kernel + output_bias

    where ``gru`` has `reset_after` and `recurrent_bias` as options.

    The forget gate f is the weight of the old state, ``h' = f⊙h + (1−f)⊙z``.

    Attributes:
        input_kernel: ``(input_size, (Nx + Nxf + Nxr)·H)``, columns in the order x, x_f, x_r.
        input_bias: ``((Nx + Nxf + Nxr)·H,)``; None means no bias.
        state_weight: W, ``(Nw, H, H)``.
        forget_weight: W_f, ``(Nwf, H, H)``.
        reset_weight: W_r, ``(Nwr, H, H)``.
        output_kernel: ``(N·H, output_size)``; None means that the layer returns its states as they are.
        output_bias: ``(output_size,)``; None means no bias.
        recurrent_bias: ``(Nw, H)``, only with `reset_after`; None means no bias.
        num_input_heads, num_forget_input_heads, num_reset_input_heads: Nx, Nxf, Nxr.
        gradient_clipping, reset_after: as in `gru`.

    Raises:
        TypeError: an array is not a floating-point NumPy array, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide the largest one, or there is a recurrent bias without
            `reset_after`.
    """

    input_kernel: np.ndarray
    state_weight: np.ndarray
    forget_weight: np.ndarray
    reset_weight: np.ndarray
    input_bias: np.ndarray | None = None
    output_kernel: np.ndarray | None = None
    output_bias: np.ndarray | None = None
    recurrent_bias: np.ndarray | None = None
    num_input_heads: int = 1
    num_forget_input_heads: int = 1
    num_reset_input_heads: int = 1
    gradient_clipping: float | None = None
    reset_after: bool = False

    def __post_init__(self) -> None:
        call = Call("GRUWeights", NUMPY)
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[:8]}
        optional = ("input_bias", "output_kernel", "output_bias", "recurrent_bias")
        call.floating(**{name: x for name, x in arrays.items() if x is not None or name not in optional})
        if self.gradient_clipping is not None:
            call.number("gradient_clipping", self.gradient_clipping, "None or a number", lambda _: True)
        if not call.flag("reset_after", self.reset_after) and self.recurrent_bias is not None:
            call.refuse(ValueError, "recurrent_bias", describe(self.recurrent_bias), "None without `reset_after`")
        if self.state_weight.ndim:
            call.bind("H", self.state_weight.shape[-1], "state_weight")
        for name, heads in (("state_weight", "Nw"), ("forget_weight", "Nwf"), ("reset_weight", "Nwr")):
            call.shape(name, arrays[name], f"{heads} H H")
        if self.recurrent_bias is not None:
            call.shape("recurrent_bias", self.recurrent_bias, "Nw H")
        columns = self._input_heads(call) * call["H"]
        call.shape("input_kernel", self.input_kernel, f"I {columns}")
        if self.input_bias is not None:
            call.shape("input_bias", self.input_bias, f"{columns}")
        heads = max(self._head_counts().values())
        call.bind("O", heads * call["H"], "state_weight")
        if self.output_kernel is not None:
            call.shape("output_kernel", self.output_kernel, f"{call['O']} P")
            call.bind("O", call["P"], "output_kernel")
        if self.output_bias is not None:
            call.shape("output_bias", self.output_bias, "O")

    def _input_heads(self, call: Call) -> int:
        names = ("num_input_heads", "num_forget_input_heads", "num_reset_input_heads")
        return sum(call.integer(name, getattr(self, name), 1) or 0 for name in names)

    def _head_counts(self) -> dict[str, int]:
        return dict(
            num_input_heads=whole_number(self.num_input_heads) or 0,
            num_forget_input_heads=whole_number(self.num_forget_input_heads) or 0,
            num_reset_input_heads=whole_number(self.num_reset_input_heads) or 0,
            num_weight_heads=self.state_weight.shape[0],
            num_forget_weight_heads=self.forget_weight.shape[0],
            num_reset_weight_heads=self.reset_weight.shape[0],
        )

    @property
    def dtype(self) -> np.dtype:
        """The dtype that all arrays share."""
        return self.input_kernel.dtype

    @property
    def state_size(self) -> int:
        """``N·H``, the number of features of the state."""
        return max(self._head_counts().values()) * self.state_weight.shape[-1]

    @property
    def has_bias(self) -> bool:
        """Whether the layer adds biases: it adds all if one of them is given, and the others are then 0."""
        return any(bias is not None for bias in (self.input_bias, self.output_bias, self.recurrent_bias))

    def with_output_projection(self, kernel: np.ndarray, bias: np.ndarray | None = None) -> "GRUWeights":
        """These weights, followed by a linear layer as output projection.

        Args:
            kernel: ``(N·H, output_size)``, in the dtype of the other arrays.
            bias: ``(output_size,)``; None means no bias.

        Returns:
            New weights; the layer that is made of them returns ``y · kernel + bias``.

        Raises:
            TypeError, ValueError: as `GRUWeights`; there is an output projection already.
        """
        if self.output_kernel is not None:
            raise ValueError(
                "GRUWeights: `output_kernel` is given already; expected weights without an output projection"
            )
        Call("GRUWeights", NUMPY).kind(output_kernel=kernel)
        return dataclasses.replace(self, output_kernel=kernel, output_bias=bias)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `GRU` by name, the same in all three packages."""
        output_size = self.state_size if self.output_kernel is None else self.output_kernel.shape[1]
        return dict(
            input_size=self.input_kernel.shape[0],
            state_head_dim=self.state_weight.shape[-1],
            output_size=output_size,
            **self._head_counts(),
            add_bias=self.has_bias,
            gradient_clipping=self.gradient_clipping,
            reset_after=self.reset_after,
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters of `GRU` by name, as `reference.GRU` holds them and as Flax names them.

        Where there is no output projection the layer's is the identity, which changes no bit of a finite state.

        Returns:
            ``state_weight``, ``forget_weight``, ``reset_weight``, and ``input_projection`` and ``output_projection``,
            each a dict of ``kernel`` and, where the layer adds biases, ``bias``; with `reset_after`,
            ``recurrent_bias`` is one of these. Copies.
        """
        bias = np.zeros(self.state_weight.shape[:2], self.dtype) if self.recurrent_bias is None else self.recurrent_bias
        return dict(
            input_projection=as_projection(self.input_kernel, self.input_bias, self.has_bias),
            state_weight=self.state_weight.copy(),
            forget_weight=self.forget_weight.copy(),
            reset_weight=self.reset_weight.copy(),
            output_projection=as_projection(
                np.eye(self.state_size, dtype=self.dtype) if self.output_kernel is None else self.output_kernel,
                self.output_bias,
                self.has_bias,
            ),
            **({"recurrent_bias": bias.copy()} if self.reset_after and self.has_bias else {}),
        )


def as_projection(kernel: np.ndarray, bias: np.ndarray | None, has_bias: bool) -> dict[str, np.ndarray]:
    """A projection's parameters, copied; where a layer has biases and this one has none, it is 0."""
    if not has_bias:
        return {"kernel": kernel.copy()}
    return {"kernel": kernel.copy(), "bias": np.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias.copy()}


class Gate(NamedTuple):
    """The weights of one gate, or of the candidate, of a layer with one head.

    Attributes:
        kernel: ``(input_size, H)``.
        recurrent: ``(H, H)``.
        bias: of the input, ``(H,)``; None means no bias.
        recurrent_bias: of the recurrent product, ``(H,)``; None means no bias.
    """

    kernel: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray | None = None
    recurrent_bias: np.ndarray | None = None


def in_columns(
    kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray | None, recurrent_bias: np.ndarray | None
) -> list[Gate]:
    """The three gates that stand side by side in the last axis of each array, in their order there."""
    each = ([None] * 3 if x is None else np.split(x, 3, axis=-1) for x in (kernel, recurrent, bias, recurrent_bias))
    return [Gate(*parts) for parts in zip(*each, strict=True)]


def one_head(*, update: Gate, reset: Gate, candidate: Gate, reset_after: bool) -> GRUWeights:
    """The weights of a layer with one head whose update gate z weights the old state, as our forget gate f does::

        z = σ(x W_z + b_z + h R_z + c_z)        r = σ(x W_r + b_r + h R_r + c_r)        h' = z⊙h + (1−z)⊙h̃
        h̃ = tanh(x W_h + b_h + (r⊙h) R_h + c_h), or with `reset_after` tanh(x W_h + b_h + r⊙(h R_h + c_h))

    so ``z`` is our f and ``h̃`` our z; no weight changes its sign. Both biases of a gate are added, and so are those of
    the candidate unless the reset gate stands before one of them.
    """
    own = candidate.recurrent_bias if reset_after else None
    if reset_after:
        candidate = candidate._replace(recurrent_bias=None)
    gates = (candidate, update, reset)
    sums = [[x for x in (gate.bias, gate.recurrent_bias) if x is not None] for gate in gates]
    none = np.zeros(len(candidate.recurrent), candidate.recurrent.dtype)
    return GRUWeights(
        input_kernel=np.concatenate([gate.kernel for gate in gates], axis=1),
        input_bias=np.concatenate([sum(each[1:], each[0]) if each else none for each in sums]) if any(sums) else None,
        state_weight=candidate.recurrent[None],
        forget_weight=update.recurrent[None],
        reset_weight=reset.recurrent[None],
        recurrent_bias=None if own is None else own[None],
        reset_after=reset_after,
    )
