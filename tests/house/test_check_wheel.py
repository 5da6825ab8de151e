"""`tools/check_wheel.py` refuses a wheel that is not as it should be; `make test` runs it on one that is."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    spec = importlib.util.spec_from_file_location("check_wheel", TOOLS / "check_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_command_that_ends_otherwise_is_shown_with_what_it_said(tool: ModuleType) -> None:
    code = "import sys; print('so it said'); sys.exit(3)"
    assert tool.call([sys.executable, "-c", code], status=3) == "so it said\n"
    with pytest.raises(tool.WheelError, match=r"status 3, expected 0(.|\n)*so it said"):
        tool.call([sys.executable, "-c", code])


def test_what_is_installed_besides_numpy_is_refused(tool: ModuleType) -> None:
    with pytest.raises(tool.WheelError, match="'pytest'"):
        tool.call([sys.executable, "-c", tool.ALONE])


def test_packages_from_elsewhere_are_refused(tool: ModuleType, tmp_path: Path) -> None:
    code = tool.EVERY_PACKAGE.format(packages=["reference"], absent=[], version="0.1.0")
    root = str(TOOLS.parent)
    with pytest.raises(tool.WheelError, match="AssertionError: <module 'reference'"):
        tool.call([sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"], tmp_path)


def test_distributions_of_before_are_not_published(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "gatespec-0.0.1.tar.gz").touch()
    with pytest.raises(tool.WheelError, match="is not empty; remove what is in it"):
        tool.build(tmp_path)


def test_what_one_python_leaves_is_not_in_the_way_of_the_next(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite refuses to write its vectors into a folder that is not empty."""
    commands: list[list[str]] = []

    def call(command: list[str], cwd: Path = tmp_path, status: int = 0) -> str:
        commands.append(command)
        if "vectors" in command:
            (cwd / "vectors").mkdir()
        return "3.12\n"

    monkeypatch.setattr(tool, "call", call)
    wheel = tmp_path / "gatespec-0.1.0-py3-none-any.whl"
    for _ in range(2):
        assert tool.check("conformance", sys.executable, wheel, tmp_path) is None
    environments = {command[-1] for command in commands if command[1:3] == ["-m", "venv"]}
    assert len(environments) == 2 and list(tmp_path.iterdir()) == []
