"""Conversion between text and tokens: by a checkpoint's tokenizer, as bytes, or as token ids.

``tokenizer.json`` is used if it is there, and needs the package `tokenizers`. Without it, a vocabulary of 256 means the
bytes of UTF-8, and any other prompt is given as token ids.
"""

import codecs
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from examples.xlstm.tensors import CheckpointError


class Text(Protocol):
    """Encodes a prompt at once and decodes tokens one by one."""

    def encode(self, text: str) -> np.ndarray: ...
    def decode(self, token: int) -> str: ...
    def end(self) -> str:
        """The text that remains after the last token."""
        ...


def text_of(directory: str | Path, vocab_size: int) -> Text:
    """The text encoder and decoder of a checkpoint.

    Raises:
        ModuleNotFoundError: there is a ``tokenizer.json``, and `tokenizers` is not installed.
        CheckpointError: `tokenizers` cannot read the file.
    """
    path = Path(directory) / "tokenizer.json"
    if path.exists():
        return _Tokenizer(path)
    return _Bytes() if vocab_size == 256 else _Ids()


class _Tokenizer:
    def __init__(self, path: Path) -> None:
        try:
            import tokenizers  # pyright: ignore[reportMissingImports]  # optional
        except ImportError:
            raise ModuleNotFoundError(
                f"{path}: needs the package `tokenizers`, which is not installed; without the file, prompts are token "
                "ids, or bytes with a vocabulary of 256"
            ) from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise CheckpointError(f"{path.name}: malformed or truncated: {error}") from None
        self._stream: Any = tokenizers.decoders.DecodeStream(skip_special_tokens=True)

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer.encode(text).ids, np.int64)

    def decode(self, token: int) -> str:
        return self._stream.step(self._tokenizer, token) or ""

    def end(self) -> str:
        return ""


class _Bytes:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, token: int) -> str:
        return self._decoder.decode(bytes([token]))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Ids:
    def encode(self, text: str) -> np.ndarray:
        try:
            return np.array([int(each) for each in text.replace(",", " ").split()], np.int64)
        except ValueError:
            raise ValueError(
                "prompt: the checkpoint has no tokenizer.json and its vocabulary is not of bytes; expected token ids"
            ) from None

    def decode(self, token: int) -> str:
        return f"{token} "

    def end(self) -> str:
        return ""
