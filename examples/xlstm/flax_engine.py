"""Prompts and single tokens through the Flax model, for `examples.xlstm.generate`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.xlstm.config import XLSTMConfig
from examples.xlstm.flax_model import XLSTM, State, initial_state
from jax_impl import MLSTMState


class FlaxEngine:
    """One sequence at a time through a model: one compiled function for prompts and one for steps.

    Args:
        config: sizes and constants.
        params: as `checkpoint.load_flax` returns them.
        chunk: tokens of a prompt that are computed at once.
        dtype: of the products, as in the model.

    Attributes:
        compilations: the number of times that each function has been compiled.
    """

    def __init__(self, config: XLSTMConfig, params: Any, *, chunk: int = 512, dtype: Any = None) -> None:
        self.config, self.chunk, self._params = config, chunk, params
        self.compilations = {"step": 0, "prefill": 0}
        model = XLSTM(config, dtype=dtype)

        # The body of a compiled function runs once for each compilation, which is how they are counted.
        def step(params: Any, token: jax.Array, state: State) -> tuple[jax.Array, State]:
            self.compilations["step"] += 1
            logits, state = model.apply(params, token, state, method="step")  # pyright: ignore[reportAssignmentType]
            return logits[0], state

        def prefill(params: Any, tokens: jax.Array, length: jax.Array, state: State) -> tuple[jax.Array, State]:
            self.compilations["prefill"] += 1
            # Of `chunk` tokens the first `length` count. The rest is a packed sequence of its own, which starts empty
            # and is thrown away: prompts of any length take one compiled function.
            both = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros_like(x)]), state)
            lengths = jnp.stack([jnp.zeros_like(length), length, jnp.full_like(length, chunk)])
            features, after = model.apply(  # pyright: ignore[reportAssignmentType]
                params, tokens, both, cu_seqlens=lengths, method="features"
            )
            logits = model.apply(params, features[length - 1], method="logits")
            return logits, jax.tree.map(lambda x: x[:1], after)  # pyright: ignore[reportReturnType]

        # The memories before a call are not needed after it, and their buffers hold those after it.
        self._step = jax.jit(step, donate_argnums=2)
        self._prefill = jax.jit(prefill, donate_argnums=3)

    def empty(self) -> State:
        """The state before any token."""
        dtype = jnp.promote_types(self._params["params"]["lm_head"]["weight"].dtype, jnp.float32)
        return initial_state(self.config, 1, dtype)

    def prefill(self, tokens: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """``(S,)`` with 1 ≤ S ≤ chunk → logits ``(vocab_size,)`` after the last token, and the state."""
        padded = np.zeros(self.chunk, np.int32)
        padded[: len(tokens)] = tokens
        logits, state = self._prefill(self._params, padded, np.int32(len(tokens)), state)
        return np.asarray(logits), state

    def step(self, token: int, state: State) -> tuple[np.ndarray, State]:
        """One token → logits ``(vocab_size,)`` and the state; the earlier state can no longer be used."""
        logits, state = self._step(self._params, np.array([token], np.int32), state)
        return np.asarray(logits), state

    def save(self, state: State) -> dict[str, np.ndarray]:
        """The state as arrays by name."""
        return {
            f"blocks.{index}.{name}": np.asarray(part)
            for index, memory in enumerate(state)
            for name, part in zip(MLSTMState._fields, memory, strict=True)
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> State:
        """The state from such arrays."""
        return tuple(
            MLSTMState(*(jnp.array(arrays[f"blocks.{k}.{name}"]) for name in MLSTMState._fields))
            for k in range(self.config.num_blocks)
        )
