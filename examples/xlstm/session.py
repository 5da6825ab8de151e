"""An unfinished text: the memories, the last logits and the random state, which can be saved and resumed.

On the same machine, a resumed session gives bit for bit the same text as an uninterrupted one. The file is in
the safetensors format. Its size does not depend on the number of tokens.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from examples.xlstm.checkpoint import Checkpoint
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.shard import MappedShard, make_header, write_shard
from examples.xlstm.tensors import CheckpointError

_FORMAT = "gatespec xLSTM session 1"
_SAMPLE = 4096
"""Number of bytes of each tensor by which a checkpoint is recognised."""


class Engine(Protocol):
    """The interface of `TorchEngine` and `FlaxEngine`. A state that was passed to a method must not be used again."""

    config: XLSTMConfig
    chunk: int

    def empty(self) -> Any: ...
    def prefill(self, tokens: np.ndarray, state: Any) -> tuple[np.ndarray, Any]: ...
    def step(self, token: int, state: Any) -> tuple[np.ndarray, Any]: ...
    def save(self, state: Any) -> dict[str, np.ndarray]: ...
    def restore(self, arrays: dict[str, np.ndarray]) -> Any: ...


@dataclass(kw_only=True)
class Session:
    """The state of a text.

    Attributes:
        engine: computes logits and states.
        model_id: the identity of the checkpoint, from `identify`.
        rng: draws the tokens.
        state: the memories after the tokens so far, without `pending`.
        logits: after the same tokens, ``(vocab_size,)``; None before the first.
        pending: a token that was drawn and is not yet in `state`.
        tokens: number of tokens in `state`.
    """

    engine: Engine
    model_id: str
    rng: np.random.Generator
    state: Any
    logits: np.ndarray | None = None
    pending: int | None = None
    tokens: int = 0

    def feed(self, tokens: np.ndarray) -> None:
        """Process a prompt in chunks, after the pending token.

        Args:
            tokens: integers ``(S,)``; nothing happens if there are none.

        Raises:
            ValueError: a token is not in the vocabulary.
        """
        vocabulary = self.engine.config.vocab_size
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise ValueError(f"prompt: tokens {tokens.min()} to {tokens.max()}; expected 0 to {vocabulary - 1}")
        self.advance()
        for start in range(0, len(tokens), self.engine.chunk):
            part = np.ascontiguousarray(tokens[start : start + self.engine.chunk], np.int64)
            self.logits, self.state = self.engine.prefill(part, self.state)
            self.tokens += len(part)

    def advance(self) -> None:
        """Process the pending token, if there is one."""
        if self.pending is not None:
            self.logits, self.state = self.engine.step(self.pending, self.state)
            self.pending = None
            self.tokens += 1

    def save(self, path: str | Path) -> None:
        """Write the session to a file, which is replaced only when the new one is complete."""
        arrays = self.engine.save(self.state)
        if self.logits is not None:
            arrays["logits"] = self.logits
        metadata = {
            "format": _FORMAT,
            "model": self.model_id,
            "rng": json.dumps(self.rng.bit_generator.state),
            "pending": json.dumps(self.pending),
            "tokens": json.dumps(self.tokens),
        }
        header = make_header({name: (str(x.dtype), x.shape) for name, x in arrays.items()}, metadata)
        write_shard(Path(path), header, arrays.__getitem__)


def new_session(engine: Engine, model_id: str, seed: int = 0) -> Session:
    """A session without any token."""
    return Session(engine=engine, model_id=model_id, rng=np.random.default_rng(seed), state=engine.empty())


def resume_session(engine: Engine, model_id: str, path: str | Path) -> Session:
    """Read a session from a file.

    Raises:
        CheckpointError: the file is incomplete, not a session, from another checkpoint, or lacks a tensor.
    """
    path = Path(path)
    shard = MappedShard(path)
    metadata = shard.header.metadata
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path.name}: its format is {metadata.get('format')!r}; expected {_FORMAT!r}")
    if metadata.get("model") != model_id:
        raise CheckpointError(f"{path.name}: saved with another checkpoint than this one")
    arrays = {name: shard.array(name).copy() for name in shard.header.entries}
    expected = {name: (x.shape, x.dtype) for name, x in engine.save(engine.empty()).items()}
    if "logits" in arrays:
        expected["logits"] = (engine.config.vocab_size,), arrays["logits"].dtype
    for name in sorted(expected.keys() ^ arrays.keys()):
        raise CheckpointError(f"{path.name}: `{name}` is {'missing' if name in expected else 'not part of a state'}")
    for name, (shape, dtype) in expected.items():
        if (arrays[name].shape, arrays[name].dtype) != (shape, dtype):
            received = f"{arrays[name].dtype}{list(arrays[name].shape)}"
            raise CheckpointError(f"{path.name}: `{name}` is {received}; expected {dtype}{list(shape)}")
    rng = np.random.default_rng()
    try:
        rng.bit_generator.state = json.loads(metadata["rng"])
        pending, tokens = json.loads(metadata["pending"]), json.loads(metadata["tokens"])
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: its header is malformed: {error!r}") from None
    if pending is not None and not (type(pending) is int and 0 <= pending < engine.config.vocab_size):
        raise CheckpointError(f"{path.name}: `pending` is {pending!r}; expected null or a token")
    if type(tokens) is not int or tokens < 0:
        raise CheckpointError(f"{path.name}: `tokens` is {tokens!r}; expected a number of tokens")
    logits = arrays.pop("logits", None)
    if logits is None and tokens:
        raise CheckpointError(f"{path.name}: `logits` is missing")
    return Session(
        engine=engine,
        model_id=model_id,
        rng=rng,
        state=engine.restore(arrays),
        logits=logits,
        pending=pending,
        tokens=tokens,
    )


def identify(checkpoint: Checkpoint) -> str:
    """A digest of a checkpoint's configuration and of the first bytes of each of its tensors."""
    digest = hashlib.sha256(repr(checkpoint.config).encode())
    for name, x in checkpoint.arrays().items():
        digest.update(name.encode())
        digest.update(x.reshape(-1).view(np.uint8)[:_SAMPLE].tobytes())
    return digest.hexdigest()
