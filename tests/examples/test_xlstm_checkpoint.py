"""Checkpoints of `examples.xlstm`: byte for byte through either framework, and every kind of damage refused by name."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
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


def swap_shards(directory: Path) -> None:
    first, second = shard_of(directory), shard_of(directory, SHARED)
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "config.json is missing"),
        (lambda d: (d / INDEX).unlink(), "neither .* is there"),
        (lambda d: (d / INDEX).write_bytes((d / INDEX).read_bytes()[:-9]), f"{INDEX}: malformed or truncated"),
        (lambda d: (d / INDEX).write_text("{}"), f"{INDEX}: malformed or truncated: KeyError"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "both .* are there; expected one"),
        (lambda d: shard_of(d).unlink(), f"{INDEX}: it names 'model-.*', which is missing"),
        (edit_index(lambda x: x["weight_map"].update({TENSOR: "../other"})), r"names the file '\.\./other'"),
        (edit_index(lambda x: x["weight_map"].update({TENSOR: "/etc/hostname"})), "names the file '/etc/hostname'"),
        (lambda d: os.truncate(d / INDEX, 40 * 2**30), f"{INDEX} has 42,949,672,960 bytes; expected a text"),
        (lambda d: os.truncate(d / "config.json", 2**30), r"config\.json has 1,073,741,824 bytes; expected a text"),
        (edit_index(lambda x: x["weight_map"].update({TENSOR: "a\0\ud800"})), r"names 'a\\x00\\ud800', which"),
        (lambda d: (d / INDEX).write_text("[" * 100_000), f"{INDEX}: malformed or truncated: RecursionError"),
        (lambda d: (d / INDEX).write_bytes(b"\xff"), f"{INDEX}: malformed or truncated: UnicodeDecodeError"),
        (edit_index(lambda x: x["weight_map"].pop(SHARED)), f"it holds `{SHARED}`, which {INDEX} says is in None"),
        (edit_index(lambda x: x["weight_map"].update(more=x["weight_map"][TENSOR])), "`more` is missing, which"),
        (edit_index(lambda x: x["metadata"].update(total_size=7)), "`total_size` is 7; the files hold"),
        (edit_index(lambda x: x["weight_map"].update({TENSOR: f"./{x['weight_map'][TENSOR]}"})), "names the file './"),
        (lambda d: (d / INDEX).write_text('{"weight_map": {}, "weight_map": {}}'), "`weight_map` is there twice"),
        (lambda d: (d / INDEX).write_text((d / INDEX).read_text(), encoding="utf-16"), f"{INDEX}: malformed"),
        (swap_shards, r"model-.*: `.*` is missing, which .* says is there"),
        (cut(5), "not a complete safetensors file"),
        (cut(40), "not a complete safetensors file"),
        (cut(-1), "not a complete safetensors file"),
        (edit_header(b'{"dtype"', b'["dtype"'), "not a complete safetensors file"),
        (edit_header(b'"F32"', b'"I32"'), "has dtype I32; expected one of"),
        (edit_header(b'"F32"', b'"I8" '), "not a complete safetensors file"),
        (edit_header(b'"F32"', b'"U32"'), "has dtype U32; expected one of"),
        (edit_header(b"[64,24]", b"[24,64]"), r"is float32\[24, 64\]; expected float32\[64, 24\]"),
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


@pytest.mark.long
def test_a_save_that_is_killed_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path) -> None:
    """Killed at every file operation and half of every write: a new checkpoint and one over another, 1 and 10 files."""
    script = Path(__file__).with_name("killed_saves.py")
    for over, size in itertools.product(("fresh", "over"), (SHARD, 10**7)):
        command = [sys.executable, str(script), str(tmp_path / "checkpoint"), over, str(size)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        before = f"none ({tmp_path / 'checkpoint'}: config.json is missing)" if over == "fresh" else "old"
        count = 12 if size == SHARD else 2
        killed = [f"killed, {after}, then last, {count} files" for after in (before, "new")]
        *lines, last = done.stdout.splitlines()
        assert last == f"finished, new, then last, {count} files"
        changed = lines.index(killed[1])
        assert changed > 70
        assert lines == killed[:1] * changed + killed[1:] * (len(lines) - changed)


def test_shards_of_two_saves_are_not_one_checkpoint(tmp_path: Path) -> None:
    first, second = written(tmp_path / "first"), written(tmp_path / "second")
    for directory in (first, second):
        write_checkpoint(directory, open_checkpoint(directory).layout, random_arrays(seed=1))
        assert np.array_equal(open_checkpoint(directory).arrays()[TENSOR], random_arrays(seed=1)[TENSOR])
    shard_of(first).write_bytes(shard_of(second).read_bytes())
    with pytest.raises(CheckpointError, match=r"other-model-.*: it is not from the save that wrote"):
        open_checkpoint(first)


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    source, refused = written(tmp_path), []

    class Reentrant(dict):
        def __getitem__(self, name: str) -> np.ndarray:
            if name == TENSOR:
                with pytest.raises(CheckpointError, match="another process or thread is writing to it"):
                    write_checkpoint(source, open_checkpoint(source).layout, random_arrays(seed=2))
                refused.append(name)
            return super().__getitem__(name)

    write_checkpoint(source, open_checkpoint(source).layout, Reentrant(random_arrays(seed=1)))
    assert refused == [TENSOR]
    assert np.array_equal(open_checkpoint(source).arrays()[TENSOR], random_arrays(seed=1)[TENSOR])


def test_a_checkpoint_of_another_configuration_is_not_written_over(tmp_path: Path) -> None:
    source = written(tmp_path)
    before = files(source)
    other = dataclasses.replace(SMALL, eps=1e-3)
    with pytest.raises(CheckpointError, match=r"its config\.json is not that of the new checkpoint"):
        write_checkpoint(source, new_layout(other, SHARD), random_arrays(other))
    layout = dataclasses.replace(open_checkpoint(source).layout, companions={"tokenizer.json": b"{}"})
    with pytest.raises(CheckpointError, match=r"its tokenizer\.json is not that of the new checkpoint"):
        write_checkpoint(source, layout, random_arrays())
    assert files(source) == before


def test_a_checkpoint_of_links_opens_and_saving_over_it_changes_no_other_file(tmp_path: Path) -> None:
    """The cache of the Hugging Face hub keeps a checkpoint as links to files that lie elsewhere."""
    source, links = written(tmp_path / "source"), tmp_path / "links"
    before = files(source)
    links.mkdir()
    for path in source.iterdir():
        (links / path.name).symlink_to(Path("..") / "source" / path.name)
    assert np.array_equal(open_checkpoint(links).arrays()[TENSOR], random_arrays()[TENSOR])
    write_checkpoint(links, open_checkpoint(links).layout, random_arrays(seed=1))
    assert np.array_equal(open_checkpoint(links).arrays()[TENSOR], random_arrays(seed=1)[TENSOR])
    assert files(source) == before
