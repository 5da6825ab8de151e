"""The search for a browser: it proves that one starts, and says plainly where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIND_CHROMIUM = ROOT / "tools" / "find_chromium.sh"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the search needs bash")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH on which there is what the search itself needs and no browser."""
    for tool in ("bash", "timeout", "sort", "sed"):
        (tmp_path / tool).symlink_to(
            Path("/usr/bin") / tool if (Path("/usr/bin") / tool).exists() else Path("/bin") / tool
        )
    return tmp_path


def browser(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def find(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("CHROMIUM", "PLAYWRIGHT_BROWSERS_PATH")}
    given = {**kept, "PATH": str(path), "HOME": str(path / "home"), **environment}
    command = [str(path / "bash"), str(FIND_CHROMIUM)]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)


def test_a_stub_that_does_not_start_is_passed_over(path: Path) -> None:
    browser(path / "chromium", "echo this needs a snap >&2; exit 1")
    real = browser(path / "google-chrome", "echo Google Chrome 150.0")
    found = find(path)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{real}\n", "")


@pytest.mark.skipif(sys.platform == "darwin", reason="an application that is installed is found whatever PATH says")
def test_it_says_plainly_that_there_is_none(path: Path) -> None:
    found = find(path)
    assert (found.returncode, found.stdout) == (1, "")
    assert "no Chromium that starts" in found.stderr and "apt-get install chromium" in found.stderr


def test_the_one_that_is_named_is_taken_or_refused(path: Path) -> None:
    other = browser(path / "other", "echo Chromium 1.0")
    assert find(path, CHROMIUM=str(other)).stdout == f"{other}\n"
    browser(path / "chromium", "echo Chromium 2.0")
    wrong = find(path, CHROMIUM="/no/such/browser")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "find_chromium: CHROMIUM=/no/such/browser is no browser that starts\n"
