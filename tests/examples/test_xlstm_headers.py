"""Headers of safetensors files: what the package `safetensors` refuses, `examples.xlstm` refuses."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors

from examples.xlstm.shard import read_header
from examples.xlstm.tensors import CheckpointError

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
WHOLE = {
    "a": {"dtype": "F32", "shape": [50, 16], "data_offsets": [0, 3200]},
    "b": {"dtype": "F32", "shape": [4], "data_offsets": [3200, 3216]},
}
DATA = bytes(3216)
VALUES: dict[str, list[Any]] = {
    "dtype": ["float32", "f32", "F64", "F16", "BF16", "I32", "U32", "I8", "BOOL", "", None, 1, ["F32"]],
    "shape": [
        [50.9, 16], ["50", "16"], [50.0, 16], [-50, -16], [50, 17], [16, 50], [800], [50, 16, 1], [0, 16], [], None,
        "50", 800, [[50], 16], [True, 800], [2**63, 2], [2**64 + 50, 16], [1e999, 1], [{"50": 16}],
    ],
    "data_offsets": [
        [0, 3201], [1, 3201], [3200, 0], [0, 3200, 0], [0], [], None, [0.0, 3200.0], ["0", "3200"], [-1, 3199],
        [0, 2**64], [16, 3216], {"0": 3200}, [False, 3200],
    ],
}  # fmt: skip


def of(document: Any, data: bytes = DATA, **options: Any) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document, **options).encode()
    return len(text).to_bytes(8, "little") + text + data


def damaged_files() -> Iterator[bytes]:
    for field, values in VALUES.items():
        for value in values:
            yield of({**WHOLE, "a": WHOLE["a"] | {field: value}})
        yield of({**WHOLE, "a": {name: value for name, value in WHOLE["a"].items() if name != field}})
    yield of({**WHOLE, "a": WHOLE["a"] | {"more": 1}})
    for tensor in (None, 1, "F32", [], ["F32", [50, 16], [0, 3200]]):
        yield of({**WHOLE, "a": tensor})
    for metadata in (None, 1, [], "pt", {"format": 1}, {"format": None}, {"format": {"a": "b"}}, {"format": "pt"}):
        yield of({**WHOLE, "__metadata__": metadata})
    for document in (None, [], 1, "a", {}):
        yield of(document)
    text = json.dumps(WHOLE)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"):
        yield of(text.encode(encoding))
    for changed in (f" {text}", f"{text}   ", f"{text}\0", f"{text},", text[:-1], text.replace('"b"', '"\\ud800"')):
        yield of(changed.encode())
    yield of(text.encode().replace(b'"b"', b'"\xff"'))
    yield of(text.replace('"b"', '"a"').encode())
    yield of(text.replace('"dtype"', '"dtype": "F32", "dtype"').encode())
    yield of(b"[" * 200_000)
    yield of(text.replace("50", "NaN").encode())
    whole = of(WHOLE)
    for length in (0, 5, 8, 40, len(whole) - len(DATA), len(whole) - 1):
        yield whole[:length]
    yield whole + b"\0"
    for length in (0, 1, 2**31, 2**63, 2**64 - 1, len(text) + 1):
        yield length.to_bytes(8, "little") + whole[8:]
    rng = random.Random(0)
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[rng.randrange(8 + len(text))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


def test_what_safetensors_refuses_is_refused(tmp_path: Path) -> None:
    path, refused, opened = tmp_path / "a.safetensors", 0, 0
    for content in damaged_files():
        path.write_bytes(content)
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                expected = {name: file.get_slice(name) for name in file.keys()}
                expected = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in expected.items()}
        except safetensors.SafetensorError:
            refused += 1
            with pytest.raises(CheckpointError, match="not a complete safetensors file"):
                read_header(path)
            continue
        try:
            entries = read_header(path).entries
        except CheckpointError as error:
            # Stricter on three points: a dtype that no model has, a tensor twice, and a tensor as a list.
            assert any(each in str(error) for each in ("has dtype", "is there twice", "list indices")), str(error)
            continue
        assert {name: (DTYPES[each.dtype], each.shape) for name, each in entries.items()} == expected
        opened += 1
    assert refused > 80 and opened > 5
