"""The blocks of docs/interop.md that need other packages run, each by itself; `tests/house` runs those that do not."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "interop.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_a_block_runs(block: int) -> None:
    exec(compile(BLOCKS[block], f"{PAGE.name}, block {block}", "exec"), {"__name__": "__main__"})


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 7
