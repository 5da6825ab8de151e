"""The files that the repository's host and readers' tools look for agree with the project."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(PROJECT['version'])}$", citation, re.MULTILINE)
    assert re.search(rf"^license: {re.escape(PROJECT['license'])}$", citation, re.MULTILINE)


def test_ci_runs_what_a_contributor_runs() -> None:
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()
    commands = (ROOT / ".ci/run").read_text()
    assert all(target in commands for target in ("test", "conformance", "interop", "docs"))


def test_a_release_refuses_a_tag_of_another_version_and_a_wheel_that_does_not_run() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    for step in ("GITHUB_REF_NAME", "tools/check_wheel.py --dist dist --require", "id-token: write"):
        assert step in workflow
    for version in PYTHONS:
        assert f"--python python{version}" in workflow
