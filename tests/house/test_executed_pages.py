"""Pages whose blocks run when the site is built: files, outputs, exit statuses, and failures that end the build."""

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

PAGE = """# A page

```python file=one.py
def f():
    return 1


def g():
    return f() + 1
```

```python
print(f(), g())
```

```python file=one.py
def f():
    return 10
```

```sh exit=3
python -c "import one; print(one.f(), one.g())"
exit 3
```

```text
python is not run here
```
"""


def test_outputs_are_those_of_the_run() -> None:
    shown = pages.executed(PAGE, "page.md")
    assert '```python title="one.py"\ndef f():\n    return 1\n' in shown
    assert '```text title="output"\n1 2\n```' in shown
    assert '```text title="output, exit status 3"\n10 11\n```' in shown
    assert shown.endswith("```text\npython is not run here\n```\n")


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


def test_a_definition_replaces_that_of_its_name_and_others_are_added() -> None:
    old = "import a\n\n\n@a.b\ndef f():\n    return 1\n\n\nx = f()\n"
    new = "def f():\n    return 2\n\n\nclass C:\n    pass\n"
    assert pages.merged(old, new) == "import a\n\n\ndef f():\n    return 2\n\n\nx = f()\n\n\nclass C:\n    pass\n"


def test_only_python_and_sh_are_run() -> None:
    found = list(pages.blocks(PAGE.split("\n")))
    assert [(block.language, block.options) for block in found] == [
        ("python", {"file": "one.py"}),
        ("python", {}),
        ("python", {"file": "one.py"}),
        ("sh", {"exit": "3"}),
    ]


def test_every_executed_page_is_there() -> None:
    for name in pages.EXECUTED:
        assert list((ROOT / "docs").glob(f"{name}*.md" if name.endswith("/") else name)), name
