"""Pages that are executed when the site is built: the outputs that they show are those of that build.

Every ``python`` and ``sh`` block of a page runs, in order, in one process for the page and in an empty directory of
its own. Words after the language say more:

- ``file=NAME``: the block is also saved in that file. A function or class that the file already has is replaced; the
  rest is added at the end.
- ``exit=STATUS``: the exit status that the shell's last command must have; 0 if none is given.

A block that raises, or that ends with another status, ends the build.
"""

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(r"```(python|sh)((?: \w+=\S+)*)\s*$")
EXECUTED = ("tutorials/", "adapters.md", "refusals-and-known-failures.md")
"""Beginnings of the names, on the site, of the pages that are executed."""

MOST_SECONDS = 1800
"""Time limit for a page on a busy machine; on an idle one each takes less than a minute."""


class PageError(Exception):
    """A block of a page that fails; the message has the page, the line and what the block printed."""


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: ``python`` or ``sh``.
        options: the words after the language.
        first: the number of its first line of code in the page, from 0.
        code: its lines.
    """

    language: str
    options: dict[str, str]
    first: int
    code: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.code) + "\n"


def blocks(lines: list[str]) -> Iterator[Block]:
    """The blocks of a page that run; other fences are ignored."""
    number = 0
    while number < len(lines):
        opening, fence = OPENING.match(lines[number]), lines[number].startswith("```")
        number += 1
        if not fence:
            continue
        first = number
        while lines[number] != "```":
            number += 1
        if opening:
            options = dict(word.split("=", 1) for word in opening[2].split())
            yield Block(opening[1], options, first, lines[first:number])
        number += 1


def executed(markdown: str, name: str) -> str:
    """A page with the output of each block below it.

    Args:
        markdown: the page.
        name: its path, for messages.

    Raises:
        PageError: a block fails, or the page takes too long.
    """
    with tempfile.TemporaryDirectory() as directory:
        folders = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        environment = os.environ | {"PYTHONPATH": folders, "PATH": programs, "COLUMNS": "100", "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", str(Path(__file__)), name],
                input=markdown,
                capture_output=True,
                text=True,
                cwd=directory,
                env=environment,
                timeout=MOST_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise PageError(f"{name}: its blocks took more than {MOST_SECONDS} seconds") from error
    if done.returncode:
        raise PageError(done.stderr.strip())
    outputs = {int(first): output for first, output in json.loads(done.stdout).items()}
    return with_outputs(markdown.split("\n"), outputs)


def with_outputs(lines: list[str], outputs: dict[int, str]) -> str:
    """The page as the site shows it: file names as titles, and outputs below their blocks.

    Args:
        lines: the page.
        outputs: what each block printed, by the number of its first line.
    """
    openings = {block.first - 1: block for block in blocks(lines)}
    endings = {block.first + len(block.code): block for block in openings.values()}
    shown = []
    for number, line in enumerate(lines):
        if number in openings:
            block = openings[number]
            file = block.options.get("file")
            line = f"```{block.language}" + (f' title="{file}"' if file else "")
        shown.append(line)
        if number in endings and (output := outputs[endings[number].first].rstrip()):
            status = endings[number].options.get("exit")
            title = f"output, exit status {status}" if status else "output"
            shown += ["", f'```text title="{title}"', *(each.rstrip() for each in output.split("\n")), "```"]
    return "\n".join(shown)


def merged(old: str, new: str) -> str:
    """A file with the definitions of a block: those whose names it already has are replaced, the others are added."""
    old_lines, new_lines = old.split("\n"), new.split("\n")
    places = {node.name: node for node in ast.parse(old).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    added, replaced = [], []
    for node in ast.parse(new).body:
        lines = new_lines[_start(node) : node.end_lineno]
        name = getattr(node, "name", None)
        if name in places:
            replaced.append((places[name], lines))
        else:
            added.append("\n".join(lines))
    for node, lines in sorted(replaced, key=lambda each: -each[0].lineno):
        old_lines[_start(node) : node.end_lineno] = lines
    return "\n\n\n".join(["\n".join(old_lines).rstrip(), *added]) + "\n"


def _start(node: Any) -> int:
    """The number, from 0, of a definition's first line; its decorators are part of it."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) - 1


def run(markdown: str, name: str) -> dict[int, str]:
    """Run the blocks of a page in this process and its directory; what each printed, by its first line."""
    outputs, names = {}, {"__name__": "__main__"}
    for block in blocks(markdown.split("\n")):
        if file := block.options.get("file"):
            path = Path(file)
            path.write_text(merged(path.read_text(), block.text) if path.exists() else block.text, encoding="utf-8")
        outputs[block.first] = _python(block, name, names) if block.language == "python" else _shell(block, name)
    return outputs


def _python(block: Block, name: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            # Its lines have the numbers of the page in a traceback.
            exec(compile("\n" * block.first + block.text, name, "exec"), names)
    except BaseException as error:
        raise PageError(f"{name}, line {block.first}: {printed.getvalue()}{traceback.format_exc()}") from error
    return printed.getvalue()


def _shell(block: Block, name: str) -> str:
    done = subprocess.run(
        ["bash", "-c", block.text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != int(block.options.get("exit", 0)):
        raise PageError(f"{name}, line {block.first}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Run the page on standard input, under the name on the command line; the outputs are written as JSON."""
    # A block imports the files that others have saved.
    sys.path.insert(0, "")
    try:
        outputs = run(sys.stdin.read(), sys.argv[1])
    except PageError as error:
        raise SystemExit(str(error)) from None
    print(json.dumps(outputs))


if __name__ == "__main__":
    main()
