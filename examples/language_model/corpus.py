"""Text to train on: the files of a directory, or one file, as bytes, divided into training and held-out documents.

A document is one file. It becomes a sequence of tokens: the marker `BOUNDARY`, then its bytes; the target after the
last byte is `BOUNDARY` again. So each token has a target, and no token is padding.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.language_model.settings import Settings

# Begins and ends a document; also stands for an input byte that is hidden.
BOUNDARY = 256
VOCABULARY = 257

# What an installation may add to its standard library, and what is there for its own tests.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class CorpusError(ValueError):
    """The text cannot be read, or there is too little of it; the text of the error names the place."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents one after the other.

    Attributes:
        tokens: ``(L,)`` int32, each document as `BOUNDARY` and its bytes.
        starts: ``(D+1,)`` int64, the start of each document, then L.
    """

    tokens: np.ndarray
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, ``(D,)``."""
        return np.diff(self.starts)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training and held-out documents.

    Attributes:
        training, validation: the documents.
        fingerprint: SHA-256 of all names and bytes, by which a resumed run recognises its text.
        source: the directory, or the file.
    """

    training: Documents
    validation: Documents
    fingerprint: str
    source: Path


def read(settings: Settings) -> Corpus:
    """Read the text that the settings name.

    A file is held out if the hash of its relative name is below `validation_share`: the same file is held out in every
    run, even if other files are added. Of a single file, the last `validation_share` of its bytes is held out.

    Raises:
        CorpusError: `data` is neither a directory nor a file, holds no file that fits, a file cannot be read, or one of
            the two parts is empty.
    """
    directory = Path(settings.data) if settings.data is not None else Path(sysconfig.get_path("stdlib"))
    found = _files(directory, settings)
    texts: dict[str, bytes] = {}
    digest = hashlib.sha256()
    for name, path in found:
        if not path.is_file():
            continue
        try:
            text = path.read_bytes()
        except OSError as error:
            raise CorpusError(f"`data`: {path} cannot be read: {error.strerror}") from error
        if len(text) >= settings.smallest_file:
            texts[name] = text
            digest.update(os.fsencode(f"{name} {len(text)}\n") + text)
    if not texts:
        raise CorpusError(
            f"`data` is {str(directory)!r}, where no file fits `pattern` {settings.pattern!r} "
            f"with at least {settings.smallest_file} bytes"
        )
    parts = _divided(texts, settings.validation_share)
    for validation, part in (("held out", parts[True]), ("left for training", parts[False])):
        if not part:
            raise CorpusError(
                f"`validation_share` is {settings.validation_share}: of {len(texts)} files in {str(directory)!r} "
                f"none is {validation}"
            )
    return Corpus(
        training=joined(parts[False]),
        validation=joined(parts[True]),
        fingerprint=digest.hexdigest(),
        source=directory,
    )


def _files(place: Path, settings: Settings) -> list[tuple[str, Path]]:
    """The files that may be read, by relative name: those of a directory that fit the pattern, or the file itself."""
    if place.is_file():
        return [(place.name, place)]
    if not place.is_dir():
        raise CorpusError(f"`data` is {str(place)!r}, which is neither a directory nor a file")
    skipped = _NOT_LIBRARY if settings.data is None else {"__pycache__"}
    if ".." in Path(settings.pattern).parts:
        raise CorpusError(f"`pattern` is {settings.pattern!r}; expected one without '..'")
    try:
        return sorted(
            (path.relative_to(place).as_posix(), path)
            for path in place.rglob(settings.pattern)
            if not skipped & set(path.relative_to(place).parts)
        )
    except (ValueError, NotImplementedError) as error:
        raise CorpusError(f"`pattern` is {settings.pattern!r}: {error}") from error


def _divided(texts: Mapping[str, bytes], share: float) -> dict[bool, list[bytes]]:
    """The texts that are held out, and those that are not."""
    if len(texts) == 1:
        (text,) = texts.values()
        cut = len(text) - round(share * len(text))
        return {held: [part] if part else [] for held, part in ((True, text[cut:]), (False, text[:cut]))}
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for name, text in texts.items():
        parts[held_out(name, share)].append(text)
    return parts


def held_out(name: str, share: float) -> bool:
    """Whether a file is held out, from its relative name alone."""
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8]) < share * 2**64


def joined(texts: Iterable[bytes]) -> Documents:
    """Make `Documents` from the bytes of each document."""
    pieces, starts = [], [0]
    for text in texts:
        pieces.append(np.concatenate(([BOUNDARY], np.frombuffer(text, np.uint8))).astype(np.int32))
        starts.append(starts[-1] + len(pieces[-1]))
    return Documents(tokens=np.concatenate(pieces), starts=np.array(starts, np.int64))


def text_of(tokens: np.ndarray) -> bytes:
    """The bytes among tokens, without the markers."""
    return tokens[tokens < BOUNDARY].astype(np.uint8).tobytes()
