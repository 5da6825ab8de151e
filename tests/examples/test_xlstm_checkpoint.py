"""Checkpoints of `examples.xlstm`: byte for byte through either framework, and every kind of damage refused by name."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from examples.xlstm.checkpoint import (  # noqa: E402
    INDEX,
    load_flax,
    load_torch,
    new_layout,
    open_checkpoint,
    write_checkpoint,
)
from examples.xlstm.parameters import from_flax, from_torch  # noqa: E402
from examples.xlstm.shard import read_header  # noqa: E402
from examples.xlstm.tensors import CheckpointError  # noqa: E402
from tests.examples.xlstm_tools import SMALL, random_arrays  # noqa: E402

SHARD = 9000
TENSOR, SHARED = "backbone.blocks.0.ffn.proj_up.weight", "backbone.blocks.0.mlstm_layer.k.weight"


def written(directory: Path, dtype: str = "float32") -> Path:
    config = dataclasses.replace(SMALL, dtype=dtype)
    write_checkpoint(directory, new_layout(config, SHARD), random_arrays(config))
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_checkpoint_returns_byte_for_byte_through_either_framework(tmp_path: Path, dtype: str) -> None:
    source = written(tmp_path / "source", dtype)
    (source / "tokenizer_config.json").write_text("{}")
    checkpoint = open_checkpoint(source)
    assert len(checkpoint.layout.headers) > 3
    write_checkpoint(tmp_path / "torch", checkpoint.layout, from_torch(load_torch(checkpoint)))
    write_checkpoint(tmp_path / "jax", checkpoint.layout, from_flax(load_flax(checkpoint)))
    assert files(tmp_path / "torch") == files(tmp_path / "jax") == files(source)


def test_what_we_write_is_what_safetensors_reads(tmp_path: Path) -> None:
    arrays = random_arrays()
    write_checkpoint(tmp_path, new_layout(SMALL), arrays)
    assert sorted(files(tmp_path)) == ["config.json", "model.safetensors"]
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert {name: file.get_tensor(name).tobytes() for name in file.keys()} == {
            name: x.tobytes() for name, x in arrays.items()
        }


def test_training_a_mapped_model_changes_no_file_and_can_be_written_over_it(tmp_path: Path) -> None:
    source = written(tmp_path)
    before = files(source)
    checkpoint = open_checkpoint(source)
    model = load_torch(checkpoint)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert files(source) == before
    write_checkpoint(source, checkpoint.layout, from_torch(model))
    again = open_checkpoint(source).arrays()
    assert all(np.array_equal(again[name], 2 * x) for name, x in random_arrays().items())


def edit_index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        document = json.loads((directory / INDEX).read_text())
        change(document)
        (directory / INDEX).write_text(json.dumps(document))

    return damage


def shard_of(directory: Path, tensor: str = TENSOR) -> Path:
    return directory / json.loads((directory / INDEX).read_text())["weight_map"][tensor]


def edit_header(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = shard_of(directory)
        data = path.read_bytes()
        assert old in data and len(old) == len(new)
        path.write_bytes(data.replace(old, new, 1))

    return damage


def cut(length: int) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = shard_of(directory)
        path.write_bytes(path.read_bytes()[:length])

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "config.json is missing"),
        (lambda d: (d / INDEX).unlink(), "neither .* is there"),
        (lambda d: (d / INDEX).write_bytes((d / INDEX).read_bytes()[:-9]), f"{INDEX}: malformed or truncated"),
        (lambda d: (d / INDEX).write_text("{}"), f"{INDEX}: malformed or truncated: KeyError"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "both .* are there; expected one"),
        (lambda d: shard_of(d).unlink(), f"{INDEX}: it names model-.*, which is missing"),
        (edit_index(lambda x: x["weight_map"].update({TENSOR: "../other"})), r"names the file '\.\./other'"),
        (edit_index(lambda x: x["weight_map"].update({TENSOR: "/etc/hostname"})), "names the file '/etc/hostname'"),
        (lambda d: (d / INDEX).write_text("[" * 100_000), f"{INDEX}: malformed or truncated: RecursionError"),
        (lambda d: (d / INDEX).write_bytes(b"\xff"), f"{INDEX}: malformed or truncated: UnicodeDecodeError"),
        (edit_index(lambda x: x["weight_map"].pop(SHARED)), f"it holds `{SHARED}`, which {INDEX} says is in None"),
        (edit_index(lambda x: x["weight_map"].update(more=x["weight_map"][TENSOR])), "`more` is missing, which"),
        (edit_index(lambda x: x["metadata"].update(total_size=7)), "`total_size` is 7; the files hold"),
        (cut(5), "5 bytes; its header alone needs"),
        (cut(40), "40 bytes; its header alone needs"),
        (cut(-1), "bytes; its header describes"),
        (edit_header(b'{"dtype"', b'["dtype"'), "its header is malformed"),
        (edit_header(b"[64,24]", b"[1e999]"), "its header is malformed: OverflowError"),
        (edit_header(b"[64,24]", b"[-8,24]"), "`backbone.* lies at bytes 0 to 6144; expected 0 to -768"),
        (edit_header(b'"F32"', b'"I32"'), "has dtype I32; expected one of"),
        (edit_header(b"[64,24]", b"[24,64]"), r"is float32\[24, 64\]; expected float32\[64, 24\]"),
        (edit_header(b"[64,24]", b"[64,25]"), "lies at bytes 0 to 6144; expected 0 to 6400"),
        (edit_header(TENSOR.encode(), TENSOR.replace("up", "us").encode()), f"`{TENSOR}` is missing, which {INDEX}"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(written(tmp_path))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path)
    path = source / "config.json"
    for name, value, message in (
        ("num_blocks", 3, r"`backbone\.blocks\.2\.norm_mlstm\.weight` is missing; expected float32\[24\]"),
        ("num_blocks", 10**9, r"`backbone\.blocks\.2\.norm_mlstm\.weight` is missing; expected float32\[24\]"),
        ("num_blocks", 1, r"`backbone\.blocks\.1\..*` is not a tensor of this model"),
        ("vocab_size", 30, r"`backbone\.embeddings\.weight` is float32\[29, 24\]; expected float32\[30, 24\]"),
        ("dtype", "float16", r"is float32\[29, 24\]; expected float16\[29, 24\]"),
    ):
        before = path.read_text()
        document = json.loads(before) | {name: value}
        document |= {"num_hidden_layers": document["num_blocks"]}
        path.write_text(json.dumps(document))
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(source)
        path.write_text(before)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    source = written(tmp_path)
    before, layout = files(source), open_checkpoint(source).layout
    arrays = random_arrays()
    with pytest.raises(CheckpointError, match=f"`{TENSOR}` is missing"):
        write_checkpoint(source, layout, {name: x for name, x in arrays.items() if name != TENSOR})
    with pytest.raises(CheckpointError, match="is float64"):
        write_checkpoint(source, layout, {name: x.astype(np.float64) for name, x in arrays.items()})
    with pytest.raises(CheckpointError, match=r"which does not belong to the new checkpoint"):
        write_checkpoint(source, new_layout(SMALL), arrays)
    assert files(source) == before


def test_float64_is_not_cast_silently(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(written(tmp_path, "float64"))
    with pytest.raises(TypeError, match="the checkpoint is float64"):
        load_flax(checkpoint)
    assert load_torch(checkpoint).lm_head.weight.dtype is torch.float64


def test_a_header_of_odd_length_is_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, new_layout(SMALL), random_arrays())
    path = tmp_path / "model.safetensors"
    header, data = read_header(path), path.read_bytes()
    body = header.text + b" "
    path.write_bytes(len(body).to_bytes(8, "little") + body + data[header.data_start :])
    checkpoint = open_checkpoint(tmp_path)
    for arrays in (from_torch(load_torch(checkpoint)), from_flax(load_flax(checkpoint))):
        assert all(np.array_equal(arrays[name], x) for name, x in random_arrays().items())
