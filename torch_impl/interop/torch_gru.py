"""``torch.nn.GRU``, computed by `gru`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from torch_impl._arrays import ACCUMULATION
from torch_impl._backends import KernelBackend
from torch_impl._gru.api import gru
from torch_impl._products import linear


class GRU(nn.RNNBase):
    """``torch.nn.GRU`` on top of `torch_impl.gru`: the same arguments, parameters, state dict, values and gradients.

    Every layer and direction is `gru` with one head and `reset_after`. The state is carried in the accumulation dtype,
    and the final one is returned in the dtype of the output.

    Args:
        input_size: features of the input.
        hidden_size: H.
        num_layers: number of layers; each reads the output of the one before it.
        bias: whether there are biases.
        batch_first: whether inputs and outputs are ``(B, S, ·)`` instead of ``(S, B, ·)``.
        dropout: probability of dropout after each layer but the last one, while the module is in training.
        bidirectional: whether each layer has a second direction, which reads the sequence backwards.
        device, dtype: of the parameters.

    Raises:
        TypeError, ValueError: as in ``torch.nn.GRU``.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        # torch.compile refuses every torch.nn.GRU, so that this is not one of its subclasses.
        super().__init__(
            *("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional),
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        *,
        kernel_backend: KernelBackend | str | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Run the layers.

        Args:
            input: ``(S, B, input_size)``, ``(B, S, input_size)`` with `batch_first`, ``(S, input_size)``, or a
                ``PackedSequence``.
            hx: initial states, ``(num_layers·directions, B, H)``, of an unbatched input without ``B``; None means
                zeros.
            kernel_backend: as in `gru`.

        Returns:
            ``(output, h_n)``: the states of the last layer in the form of the input, its directions side by side, and
            the final states in the form of `hx`.

        Raises:
            RuntimeError, ValueError: as in ``torch.nn.GRU``; or `kernel_backend` does not support the call.
        """
        if isinstance(input, PackedSequence):
            data, batch_sizes, sorted_indices, unsorted_indices = input
            self._check(data, hx, batch_sizes)
            packing = _packing(batch_sizes, data.device)
            if hx is not None and sorted_indices is not None:
                hx = hx.index_select(1, sorted_indices)
            y, last = self._layers(data[packing.tokens], hx, packing, kernel_backend)
            last = last if unsorted_indices is None else last.index_select(1, unsorted_indices)
            output = torch.empty_like(y).index_copy(0, packing.tokens, y)
            return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), last
        if input.dim() not in (2, 3):
            raise ValueError(f"GRU: `input` is {input.dim()}-D; expected 2-D or 3-D")
        if hx is not None and hx.dim() != input.dim():
            raise RuntimeError(f"GRU: `hx` is {hx.dim()}-D; expected {input.dim()}-D to match `input`")
        unbatched, sequences = input.dim() == 2, 0 if self.batch_first else 1
        if unbatched:
            input, hx = input.unsqueeze(sequences), None if hx is None else hx.unsqueeze(1)
        self._check(input, hx, None)
        y, last = self._layers(input if self.batch_first else input.transpose(0, 1), hx, None, kernel_backend)
        y = y if self.batch_first else y.transpose(0, 1)
        return (y.squeeze(sequences), last.squeeze(1)) if unbatched else (y, last)

    def _check(self, input: Tensor, hx: Tensor | None, batch_sizes: Tensor | None) -> None:
        self.check_input(input, batch_sizes)
        if hx is not None:
            self.check_hidden_size(hx, self.get_expected_hidden_size(input, batch_sizes))

    def _layers(
        self, x: Tensor, hx: Tensor | None, packing: "_Packing | None", backend: KernelBackend | str | None
    ) -> tuple[Tensor, Tensor]:
        """``(B, S, ·)`` or ``(T, ·)`` → the states of the last layer, and all final states."""
        states: list[Tensor] = []
        sides = ("", "_reverse") if self.bidirectional else ("",)
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for side in sides:
                turn = _reversed(packing) if side else lambda y: y
                initial = None if hx is None else hx[len(states)]
                y, last = self._direction(turn(x), initial, f"_l{layer}{side}", packing, backend)
                outputs.append(turn(y))
                states.append(last)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        return x, torch.stack(states).to(x.dtype)

    def _direction(
        self, x: Tensor, h: Tensor | None, name: str, packing: "_Packing | None", backend: KernelBackend | str | None
    ) -> tuple[Tensor, Tensor]:
        H = self.hidden_size
        bias, candidate_bias = None, None
        if self.bias:
            # The candidate's second bias stands inside the product with r; those of the gates are added to the input.
            recurrent = getattr(self, f"bias_hh{name}")
            bias = getattr(self, f"bias_ih{name}") + F.pad(recurrent[: 2 * H], (0, H))
            candidate_bias = recurrent[None, 2 * H :]
        heads = linear(x, getattr(self, f"weight_ih{name}"), bias).unflatten(-1, (3, 1, H))
        reset, update, candidate = heads.unbind(-3)
        weights = getattr(self, f"weight_hh{name}").unflatten(0, (3, H)).mT
        y, last = gru(
            *(candidate, weights[2:], update, weights[1:2], reset, weights[:1]),
            None if h is None else h.unsqueeze(1).to(ACCUMULATION[heads.dtype]),
            cu_seqlens=None if packing is None else packing.cu_seqlens,
            reset_after=True,
            recurrent_bias=candidate_bias,
            kernel_backend=backend,
        )
        return y.squeeze(-2), last.squeeze(1)


class _Packing(NamedTuple):
    """The sequences of a ``PackedSequence``.

    Attributes:
        tokens: ``(T,)``, the place in its data of each token, sequence by sequence.
        cu_seqlens: ``(B+1,)``.
        backwards: ``(T,)``, for each token the one at its place when each sequence is reversed.
    """

    tokens: Tensor
    cu_seqlens: Tensor
    backwards: Tensor


def _packing(batch_sizes: Tensor, device: torch.device) -> _Packing:
    """The packing whose step t has the first ``batch_sizes[t]`` sequences."""
    starts = batch_sizes.cumsum(0) - batch_sizes
    sequences = torch.arange(int(batch_sizes[0]))
    present = sequences[:, None] < batch_sizes
    lengths = present.sum(1)
    bounds = F.pad(lengths.cumsum(0), (1, 0))
    first_and_last = (bounds[:-1] + bounds[1:] - 1).repeat_interleave(lengths)
    found = (starts + sequences[:, None])[present], bounds, first_and_last - torch.arange(len(first_and_last))
    return _Packing(*(x.to(device) for x in found))


def _reversed(packing: _Packing | None) -> Callable[[Tensor], Tensor]:
    return (lambda x: x.flip(1)) if packing is None else (lambda x: x[packing.backwards])
