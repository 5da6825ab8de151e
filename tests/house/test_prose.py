"""Prose stays plain: what a docstring begins with, words that were replaced, and line lengths."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("reference", "jax_impl", "torch_impl", "conformance", "benchmarks", "examples")
# A description begins with a noun or a verb; "Whether" is the usual beginning for a truth value.
QUESTION = re.compile(r"(What|Where|How|Which|Who|When|Why)\b")
SECTION = re.compile(r"^ *(Args|Attributes|Raises|Returns|Yields): *\S", re.MULTILINE)
REPLACED = {
    r"\bbeside\b": "with, for, or next to",
    r"\bwhat came\b": "what was received",
    r"\b(laid|done|drawn|measured) anew\b|\banew\b": "again",
    r"\bthe way back\b": "the backward pass",
    r"\btruth values?\b": "boolean",
    r"\bsuch an? one\b": "a noun",
    r"\bwant of\b": "lack of",
    r"\bto be had\b": "available",
    r"\bthat there is not\b": "unknown",
    r"\bdecided? otherwise\b": "differ",
    r"\breference's words\b": "the reference's error",
    r"\bcalled wrong\b": "counted as a failure",
}
# The aim is 120; a word more is no reason to fail.
LINE = 130

# Drawn from recorded results, one paragraph per line.
MADE = {"docs/peers.md", "docs/peers-details.md", "docs/peers-scripts.md"}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """The docstrings and other texts of a module: line, text, and whether it is a docstring."""
    documents = set()
    # A node comes after the statement that holds it.
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr):
            documents.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value, id(node) in documents


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code blocks, tables and addresses."""
    code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code ^= line.startswith("```")
        if not (code or line.startswith(("    ", "![", "<")) or line.lstrip().startswith("|")):
            yield number, line


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_describe_and_use_standard_words(package: str) -> None:
    wrong = []
    for path in tracked(f"{package}/*.py"):
        for line, text, document in texts(path):
            at = f"{path.relative_to(ROOT)}:{line}"
            if document and QUESTION.match(text.strip()):
                wrong.append(f"{at}: a docstring begins with {text.split()[0]!r}")
            if document and SECTION.search(text):
                wrong.append(f"{at}: the entries of a section begin on lines of their own")
            if document or " " in text.strip():
                wrong += [f"{at}: {found} → {better}" for found, better in replaced(text)]
    assert not wrong, "\n".join(wrong)


def replaced(text: str) -> list[tuple[str, str]]:
    """The words of `REPLACED` in a text, each with what to write; names in backticks do not count."""
    text = re.sub(r"(`+).*?\1", "", text, flags=re.DOTALL)
    return [(found.group(), better) for word, better in REPLACED.items() for found in re.finditer(word, text)]


def pages() -> list[Path]:
    return tracked(":(glob)*.md", "docs/*.md")


def test_pages_use_standard_words_in_lines_of_a_readable_length() -> None:
    wrong = []
    for path in pages():
        name = str(path.relative_to(ROOT))
        for number, line in prose(path):
            wrong += [f"{name}:{number}: {found} → {better}" for found, better in replaced(line)]
            if len(line) > LINE and name not in MADE:
                wrong.append(f"{name}:{number}: {len(line)} characters")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text", ["the way back from here", "floats beside integers", "drawn anew", "a row that there is not"]
)
def test_a_replaced_word_is_found(text: str) -> None:
    assert replaced(text)
