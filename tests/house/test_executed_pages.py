"""Pages whose blocks run when the site is built: they exist, and a block that fails ends the build."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("executed_pages", ROOT / "tools" / "executed_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pages = load()


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```python\nx = 1\nassert x == 2\n```", "assert x == 2|line 3"),
        ("```sh\necho seen\nexit 2\n```", "page.md, line 1: exit status 2\nseen"),
        ("```sh exit=1\ntrue\n```", "page.md, line 1: exit status 0"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```", "UserWarning: old"),
    ],
)
def test_a_block_that_fails_ends_the_build(block: str, said: str) -> None:
    with pytest.raises(pages.PageError, match=said):
        pages.executed(block + "\n", "page.md")


def test_every_executed_page_is_there() -> None:
    for name in pages.EXECUTED:
        assert list((ROOT / "docs").glob(f"{name}*.md" if name.endswith("/") else name)), name
