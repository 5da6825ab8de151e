"""`tools/environments.py` deletes nobody's directory, and CI notices what it leaves out."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "environments.py"
HERE = "{}.{}".format(*sys.version_info)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the Makefile needs bash")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool as a module, with another directory for a repository."""
    spec = importlib.util.spec_from_file_location("environments", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "environments", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def environment(tool: ModuleType) -> object:
    return tool.Environment(
        directory=".venv", python=sys.executable, version=HERE, torch=None, jax=True, extras=("dev",)
    )


def test_a_directory_that_is_no_environment_is_left_alone(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "thesis.txt").touch()
    monkeypatch.setattr(tool, "_call", lambda command: None)
    with pytest.raises(tool.SetupError, match="is not an environment; move it away"):
        tool.make(environment(tool), False, lambda line: None)
    assert (tmp_path / ".venv" / "thesis.txt").exists()


def test_where_everything_is_required_something_left_out_is_an_error(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.delenv("GATESPEC_REQUIRE_ALL", raising=False)
    tool.complain_or_say("left out: torch_impl", said.append)
    assert said == ["left out: torch_impl"]
    monkeypatch.setenv("GATESPEC_REQUIRE_ALL", "1")
    tool.complain_or_say(None, said.append)
    with pytest.raises(tool.SetupError, match="GATESPEC_REQUIRE_ALL is set, and this is left out: torch_impl"):
        tool.complain_or_say("left out: torch_impl", said.append)
    assert "export GATESPEC_REQUIRE_ALL=1" in (ROOT / ".ci" / "run").read_text()
