"""Prompts and single tokens through the PyTorch model, for `examples.xlstm.generate`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.xlstm.parameters import array_of, tensor_of
from examples.xlstm.torch_model import XLSTM, State
from torch_impl import MLSTMState


class TorchEngine:
    """One sequence at a time through a model.

    Args:
        model: on any device.
        chunk: tokens of a prompt that are computed at once.
        compiler: compiles the step, for example ``torch.compile``; called once. None runs the step without compiling
            it.
    """

    def __init__(self, model: XLSTM, *, chunk: int = 512, compiler: Callable[..., Any] | None = None) -> None:
        self.config, self.chunk = model.config, chunk
        self._model = model.eval()
        self._device = model.lm_head.weight.device
        self._step = model.step if compiler is None else compiler(model.step, fullgraph=True, dynamic=False)

    def empty(self) -> State:
        """The state before any token."""
        return self._model.initial_state(1)

    @torch.no_grad()
    def prefill(self, tokens: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """``(S,)`` with 1 ≤ S ≤ chunk → logits ``(vocab_size,)`` after the last token, and the state."""
        features, state = self._model.features(torch.from_numpy(tokens)[None].to(self._device), state)
        # The compiled step is for contiguous memories.
        state = tuple(MLSTMState(*(part.contiguous() for part in memory)) for memory in state)
        return self._logits(self._model.logits(features[:, -1])), state

    @torch.no_grad()
    def step(self, token: int, state: State) -> tuple[np.ndarray, State]:
        """One token → logits ``(vocab_size,)`` and the state."""
        logits, state = self._step(torch.tensor([token], device=self._device), state)
        return self._logits(logits), state

    def save(self, state: State) -> dict[str, np.ndarray]:
        """The state as arrays by name."""
        return {
            f"blocks.{index}.{name}": array_of(part)
            for index, memory in enumerate(state)
            for name, part in zip(MLSTMState._fields, memory, strict=True)
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> State:
        """The state from such arrays."""
        return tuple(
            MLSTMState(*(tensor_of(arrays[f"blocks.{k}.{name}"]).to(self._device) for name in MLSTMState._fields))
            for k in range(self.config.num_blocks)
        )

    @staticmethod
    def _logits(logits: Tensor) -> np.ndarray:
        return logits[0].cpu().numpy()
