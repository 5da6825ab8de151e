"""Published checkpoints: ``config.json`` and safetensors files, one or several with an index.

    checkpoint = open_checkpoint("xLSTM-7b")        # reads headers; tensors are mapped
    model = load_torch(checkpoint)                  # parameters lie in the mapped files
    params = load_flax(checkpoint)                  # on JAX's default device, tensor by tensor
    write_checkpoint("copy", checkpoint.layout, from_torch(model))      # the same bytes in the same files
    write_checkpoint("new", new_layout(config), from_flax(params))      # a model of your own

Opening checks that the files hold every tensor of the configuration exactly once, with its shape and dtype, and nothing
else.
"""

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.xlstm.config import XLSTMConfig, parse_config, read_json
from examples.xlstm.parameters import to_flax, to_torch
from examples.xlstm.shard import Entry, Header, MappedShard, alone, make_header, replacing, write_shard
from examples.xlstm.tensors import CheckpointError, check_tensors, tensor_shapes

if TYPE_CHECKING:
    from examples.xlstm.torch_model import XLSTM

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"

_WIDE = "jax_enable_x64"

_SAVE, _OTHER = "save", "other-"
"""Key under which the index and the headers of a checkpoint that was written over another name their save, and what
distinguishes the names of its files from those of the other."""

_LARGEST = 2**28
"""No configuration, index or tokenizer has as many bytes."""

_COMPANIONS = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
"""Files that belong to a checkpoint and are copied unchanged."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Everything about the files of a checkpoint except the values of its tensors.

    Attributes:
        config: the bytes of ``config.json``.
        index: the bytes of the index; None for a single file.
        headers: the headers by file name.
        companions: other files, such as the tokenizer, by name.
    """

    config: bytes
    index: bytes | None
    headers: dict[str, Header]
    companions: dict[str, bytes]

    @property
    def entries(self) -> dict[str, Entry]:
        """All tensors by name."""
        return {name: entry for header in self.headers.values() for name, entry in header.entries.items()}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An open checkpoint: its configuration, its layout, and its mapped files by the names of the tensors."""

    config: XLSTMConfig
    layout: Layout
    shard_of: dict[str, MappedShard]

    def arrays(self) -> dict[str, np.ndarray]:
        """All tensors by name, as writable arrays in memory that is mapped from the files; writing changes no file."""
        return {name: shard.array(name) for name, shard in self.shard_of.items()}


def open_checkpoint(directory: str | Path, ignore: frozenset[str] = frozenset()) -> Checkpoint:
    """Open and check a checkpoint without reading the values of its tensors.

    Args:
        directory: holds ``config.json`` and ``model.safetensors``, or an index and the files that it names.
        ignore: unknown fields of the configuration to ignore, as in `read_config`.

    Raises:
        ConfigError: as in `read_config`.
        CheckpointError: a file, a tensor, a shape, a dtype or the index contradicts the others.
        OSError: a file cannot be read.
    """
    directory = Path(directory)
    text = _read(directory / CONFIG)
    config = parse_config(text, ignore)
    index = _read(directory / INDEX) if (directory / INDEX).exists() else None
    if index is None:
        if not (directory / SINGLE).exists():
            raise CheckpointError(f"{directory}: neither {INDEX} nor {SINGLE} is there")
        shards = {SINGLE: MappedShard(directory / SINGLE)}
    else:
        if (directory / SINGLE).exists():
            raise CheckpointError(f"{directory}: both {INDEX} and {SINGLE} are there; expected one of them")
        shards = _indexed(directory, index)
    layout = Layout(
        config=text,
        index=index,
        headers={name: shard.header for name, shard in shards.items()},
        companions={name: _read(directory / name) for name in _COMPANIONS if (directory / name).exists()},
    )
    check_tensors(config, layout.entries)
    shard_of = {name: shard for shard in shards.values() for name in shard.header.entries}
    return Checkpoint(config=config, layout=layout, shard_of={name: shard_of[name] for name in tensor_shapes(config)})


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: {path.name} is missing")
    if path.stat().st_size > _LARGEST:
        raise CheckpointError(f"{path.parent}: {path.name} has {path.stat().st_size:,} bytes; expected a text")
    return path.read_bytes()


def _indexed(directory: Path, index: bytes) -> dict[str, MappedShard]:
    places, metadata = _read_index(index)
    shards: dict[str, MappedShard] = {}
    for file in dict.fromkeys(places.values()):
        if Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(f"{INDEX}: it names the file {file!r}; expected a file in the same directory")
        if not (directory / file).is_file():
            raise CheckpointError(f"{INDEX}: it names {file!r}, which is missing")
        shards[file] = MappedShard(directory / file)
        if shards[file].header.metadata.get(_SAVE) != metadata.get(_SAVE):
            raise CheckpointError(f"{file}: it is not from the save that wrote {INDEX}")
    for tensor, file in places.items():
        if tensor not in shards[file].header.entries:
            raise CheckpointError(f"{file}: `{tensor}` is missing, which {INDEX} says is there")
    for file, shard in shards.items():
        for tensor in shard.header.entries:
            if places.get(tensor) != file:
                raise CheckpointError(f"{file}: it holds `{tensor}`, which {INDEX} says is in {places.get(tensor)}")
    held = sum(entry.end - entry.start for shard in shards.values() for entry in shard.header.entries.values())
    total = metadata.get("total_size", held)
    if total != held:
        raise CheckpointError(f"{INDEX}: `total_size` is {total}; the files hold {held} bytes of tensors")
    return shards


def _read_index(index: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """The files by tensor, and the metadata."""
    try:
        document = read_json(index)
        places = {tensor: str(file) for tensor, file in document["weight_map"].items()}
        return places, dict(document.get("metadata", {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{INDEX}: malformed or truncated: {error!r}") from None


def load_torch(checkpoint: Checkpoint) -> "XLSTM":
    """A PyTorch model on the CPU whose parameters lie in the mapped files, so that nothing is copied."""
    return to_torch(checkpoint.config, checkpoint.arrays())


def load_flax(checkpoint: Checkpoint, device: Any = None) -> dict[str, Any]:
    """Flax parameters on a device of JAX, or on its default device.

    Tensors are moved one by one: the mapped memory of each is released before the next is read.

    Raises:
        TypeError: the tensors are float64 and ``jax_enable_x64`` is off.
    """
    import jax

    if checkpoint.config.dtype == "float64" and not getattr(jax.config, _WIDE):
        raise TypeError("load_flax: the checkpoint is float64; expected float32, or `jax_enable_x64` turned on")
    params: dict[str, Any] = {}
    for name, shard in checkpoint.shard_of.items():
        params[name] = jax.device_put(shard.moved(name), device).block_until_ready()
    return to_flax(checkpoint.config, params)


def new_layout(config: XLSTMConfig, max_shard_bytes: int = 5_000_000_000) -> Layout:
    """The files that transformers would write for a configuration.

    Tensors fill a file in the order of `tensor_shapes` until the next would make it larger than `max_shard_bytes`; a
    tensor that is larger than that gets a separate file.
    """
    width = np.dtype(np.uint16 if config.dtype == "bfloat16" else config.dtype).itemsize
    groups: list[list[str]] = []
    group: list[str] = []
    filled = total = 0
    shapes = tensor_shapes(config)
    for name, shape in shapes.items():
        size = math.prod(shape) * width
        total += size
        if size > max_shard_bytes:
            groups.append([name])
            continue
        if filled + size > max_shard_bytes:
            groups.append(group)
            group, filled = [], 0
        group.append(name)
        filled += size
    groups += [group] if group else []
    count = len(groups)
    files = [f"model-{k:05}-of-{count:05}.safetensors" for k in range(1, count + 1)] if count > 1 else [SINGLE]
    headers = {
        file: make_header({name: (config.dtype, shapes[name]) for name in group}, {"format": "pt"})
        for file, group in zip(files, groups, strict=True)
    }
    weight_map = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    metadata = {"total_parameters": total // width, "total_size": total}
    index = json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"
    return Layout(
        config=config.to_json().encode(), index=index.encode() if count > 1 else None, headers=headers, companions={}
    )


def write_checkpoint(directory: str | Path, layout: Layout, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint, one tensor at a time.

    In a new directory the files are those of the layout, byte for byte, and `config.json`, without which nothing can be
    opened, is written last. Over a checkpoint of the same configuration, the new shards get other names; the index,
    which then names them, replaces the old one when they are complete. So what can be opened is at any time the old
    checkpoint or the new one. Files from which the tensors are mapped may be overwritten.

    Args:
        directory: created if it does not exist; it must hold no safetensors file of another layout, and no checkpoint
            of another configuration.
        layout: the layout of an open checkpoint, or one from `new_layout`.
        arrays: by name, with the shapes and dtypes of the layout; values may be computed when they are requested.

    Raises:
        CheckpointError: arrays do not fit the layout, the directory holds files that do not belong to the new
            checkpoint, or another process or thread is writing to it.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory):
        _write_alone(directory, layout, arrays)


def _write_alone(directory: Path, layout: Layout, arrays: Mapping[str, np.ndarray]) -> None:
    names = set(layout.entries)
    if names != set(arrays):
        name = min(names ^ set(arrays))
        raise CheckpointError(f"write_checkpoint: `{name}` is {'missing' if name in names else 'not in the layout'}")
    others = {_other(file) for file in layout.headers if layout.index is not None}
    strangers = {path.name for path in directory.glob("*.safetensors")} - set(layout.headers) - others
    if layout.index is None and (directory / INDEX).exists():
        strangers.add(INDEX)
    if strangers:
        raise CheckpointError(f"{directory}: it holds {min(strangers)}, which does not belong to the new checkpoint")
    texts = {**layout.companions, CONFIG: layout.config}
    replaces = (directory / CONFIG).exists()
    for file, text in texts.items():
        if replaces and (not (directory / file).exists() or _read(directory / file) != text):
            raise CheckpointError(
                f"{directory}: its {file} is not that of the new checkpoint; choose another directory"
            )
    index, headers = layout.index, layout.headers
    if replaces and index is not None and (directory / INDEX).exists():
        index, headers = _another_save(layout, index, set(_read_index(_read(directory / INDEX))[0].values()))
    for file, header in headers.items():
        write_shard(directory / file, header, arrays.__getitem__)
    if index is not None:
        _write(directory / INDEX, index)
    if not replaces:
        for file, text in texts.items():
            _write(directory / file, text)
    for file in (set(layout.headers) | others) - set(headers):
        (directory / file).unlink(missing_ok=True)


def _another_save(layout: Layout, index: bytes, used: set[str]) -> tuple[bytes, dict[str, Header]]:
    """The index and headers of a layout, with names of files that are not in use and a new name of the save."""
    save = secrets.token_hex(8)
    names = {file: _other(file) if file in used else file for file in layout.headers}
    places, metadata = _read_index(index)
    document = {
        "metadata": metadata | {_SAVE: save},
        "weight_map": {tensor: names[file] for tensor, file in places.items()},
    }
    headers = {
        names[file]: make_header(
            {name: (entry.dtype, entry.shape) for name, entry in header.entries.items()},
            header.metadata | {_SAVE: save},
        )
        for file, header in layout.headers.items()
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode(), headers


def _other(file: str) -> str:
    return file.removeprefix(_OTHER) if file.startswith(_OTHER) else _OTHER + file


def _write(path: Path, text: bytes) -> None:
    with replacing(path) as stream:
        stream.write(text)
