"""What workflows and pages ask for exists: targets of the Makefile, files, versions of Python, actions."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
# `make test` in backticks, a command of a workflow, or a line of an indented block.
CALL = re.compile(r"(?:`|run: |^    |&& )make(?: --\S+)* ([a-z][a-z-]*)", re.MULTILINE)


@pytest.mark.parametrize("path", [*WORKFLOWS, *PAGES], ids=lambda path: path.name)
def test_a_named_target_is_in_the_makefile(path: Path) -> None:
    assert set(CALL.findall(path.read_text())) <= TARGETS


def test_targets_are_recognised() -> None:
    assert CALL.findall("- run: make matrix END=oldest\n`make versions` and `make\n    make --silent setup\n") == [
        "matrix", "versions", "setup",
    ]  # fmt: skip
    assert {"test", "conformance", "matrix", "aot"} <= TARGETS


def test_every_target_runs_although_a_file_has_its_name() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None and set(phony[1].split()) == TARGETS


def test_ci_runs_targets_of_the_makefile() -> None:
    listed = re.search(r"^for target in (.*); do$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert listed is not None and set(listed[1].split()) <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_files_that_a_workflow_names_exist(path: Path) -> None:
    named = re.findall(r"(?<![\w./])((?:tools|constraints|\.ci|benchmarks|tests)/[\w./*-]*\w)", path.read_text())
    named += [each for each in ("pyproject.toml", "Makefile", "CHANGELOG.md") if each in path.read_text()]
    assert all(list(ROOT.glob(each)) for each in named), named


def test_an_action_has_one_version_in_all_workflows() -> None:
    used = {use for path in WORKFLOWS for use in re.findall(r"uses: (\S+)", path.read_text())}
    assert len(used) == len({use.partition("@")[0] for use in used}), sorted(used)
    # A tag of a major version, or the branch that PyPA keeps for it.
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", use) for use in used), sorted(used)


def test_a_cached_environment_belongs_to_the_interpreters_it_was_made_with() -> None:
    """An environment links to its interpreter: with the cache of another patch version the link would be dead."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    key = re.search(r"^ +key: (.*)$", workflow, re.MULTILINE)
    assert key is not None and "steps.pythons.outputs.versions" in key[1]
    assert workflow.index("id: pythons") < workflow.index("actions/cache@")


@pytest.mark.skipif(sys.platform == "win32", reason="the runners have bash")
def test_a_release_has_the_notes_of_its_version(tmp_path: Path) -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    command = re.search(r"^ +(awk .*) > notes\.md$", workflow, re.MULTILINE)
    assert command is not None
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n## [1.2.10] - d\nno\n## [1.2.1] - d\n\n### Added\n## [1.2.0] - d\nno\n"
    )
    done = subprocess.run(
        ["bash", "-c", command[1]], cwd=tmp_path, env={"GITHUB_REF_NAME": "v1.2.1"}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("\n### Added\n", "")
