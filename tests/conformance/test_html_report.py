"""The HTML report in a real browser: on a phone and a desk, in the light and in the dark, with all of it unfolded."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import reference
from conformance.cli import main

ROOT = Path(reference.__file__).resolve().parents[1]
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZES = {"phone": (360, 740), "desk": (1280, 900)}
SUMS = """
import numpy as np

def _summed(x, off):
    S = x.shape[-1]
    return x @ np.tril(np.ones((S, S)), -off)

def rev_cumsum_off(x):
    return _summed(x, 1)

def rev_cumsum_off_backward(x, *, dy):
    return {"x": dy @ np.triu(np.ones((x.shape[-1],) * 2), 1)}

def rev_cumsum_backward(x, *, dy):
    return {"x": np.cumsum(dy, axis=-1, dtype=np.float64)}
"""
SOUND = (
    SUMS
    + """
from reference import mlstm, mlstm_backward

def rev_cumsum(x):
    return _summed(x, 0)
"""
)
BROKEN = (
    SUMS
    + """
def rev_cumsum(x):
    return _summed(x, 0)[..., ::-1]
"""
)
RUN = "--op rev_cumsum --op rev_cumsum_off --op mlstm --law value --law gradient"
LESS = "--dtype float64 --dtype float32 --examples 4 --max-steps 64"

UNFOLD = "() => document.querySelectorAll('details').forEach(details => { details.open = true; })"
CONTRAST = """
() => {
  const channel = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] !== 0) throw new Error('a ground that lets another through: ' + at.className);
    }
    throw new Error('no ground');
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const words = walker.currentNode.textContent.trim();
    if (!words || element.closest('title, desc, style') || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const drawn = element instanceof SVGElement;
    const [a, b] = [luminance(parse(drawn ? style.fill : style.color)), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, words.slice(0, 40)]);
  }
  return found;
}
"""
OUTSIDE = """
() => {
  const scrolls = element => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  const boxed = element => {
    for (let at = element.parentElement; at; at = at.parentElement) if (scrolls(at)) return true;
    return false;
  };
  return [...document.querySelectorAll('body *')]
    .filter(element => element.getClientRects().length && !element.closest('.unseen') && !boxed(element))
    .filter(element => element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
    .map(element => element.outerHTML.slice(0, 80));
}
"""


@dataclass
class Seen:
    """A page as a reader has it before them, and whatever it asked for or complained of."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def chromium() -> str:
    """The path of a browser; skips the test where there is none, unless one is required."""
    found = subprocess.run(["bash", str(ROOT / "tools" / "find_chromium.sh")], capture_output=True, text=True)
    if found.returncode == 0:
        return found.stdout.strip()
    way_out = "no Chromium was found: make browser, or CHROMIUM=/path/to/chromium"
    if os.environ.get("GATESPEC_REQUIRE_BROWSER") == "1":
        pytest.fail(f"GATESPEC_REQUIRE_BROWSER=1, but {way_out}")
    pytest.skip(way_out)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, in a container, has no sandbox; the one page that is opened was written by this test.
        instance = playwright.chromium.launch(executable_path=path, args=list(FLAGS), chromium_sandbox=False)
        yield instance
        instance.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run that judges a sound target and a broken one together."""
    home = tmp_path_factory.mktemp("report")
    for name, text in {"sound": SOUND, "broken": BROKEN}.items():
        (home / f"{name}.py").write_text(text)
    paths = [word for kind in ("html", "json") for word in (f"--{kind}", str(home / f"report.{kind}"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        command = ["run", "sound.py", "broken.py", *RUN.split(), *LESS.split(), *paths]
        result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 1, result.output
    return home / "report.html"


@pytest.fixture
def look(browser: Any, report: Path) -> Iterator[Any]:
    """Opens the report at a size and in a colour scheme; whatever it asks of the network is noted."""
    contexts = []

    def open_(size: str = "desk", scheme: str = "light") -> Seen:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        seen = Seen(context.new_page())
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.goto(report.as_uri())
        return seen

    yield open_
    for context in contexts:
        context.close()


def is_dark(page: Any) -> bool:
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")) < 3 * 128


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_and_is_legible(look: Any, report: Path, tmp_path: Path, size: str, scheme: str) -> None:
    seen = look(size, scheme)
    page = seen.page
    page.screenshot(path=tmp_path / f"{size}-{scheme}.png", full_page=True)
    assert (tmp_path / f"{size}-{scheme}.png").stat().st_size > 10_000
    page.evaluate(UNFOLD)
    width = SIZES[size][0]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert page.evaluate(OUTSIDE) == []
    texts = page.evaluate(CONTRAST)
    assert len(texts) > 80
    assert [(round(ratio, 2), words) for ratio, words in texts if ratio < 4.5] == []
    assert is_dark(page) == (scheme == "dark")
    assert seen.complaints == []
    assert seen.requests == [report.as_uri()], "the page is one file"
    assert page.locator("script").count() == 0


def test_the_table_holds_every_result_that_was_tried(look: Any, report: Path) -> None:
    page = look().page
    page.evaluate(UNFOLD)
    targets = json.loads(report.with_suffix(".json").read_text())
    assert len(targets) == 2
    signs = {"passed": "✓", "failed": "✗"}
    for number, target in enumerate(targets, 1):
        section = page.locator(f"section[aria-labelledby=target-{number}]")
        for law in target["laws"]:
            cell = section.locator(f'td[title^="{law["id"]} in {law["dtype"]}: "]')
            if law["status"] == "skipped":
                assert cell.count() == 0, law["id"]
                continue
            assert cell.count() == 1 and cell.is_visible(), law["id"]
            assert signs[law["status"]] in cell.inner_text()


def test_the_head_counts_what_was_tried_and_a_cause_names_its_arrays(look: Any, report: Path) -> None:
    page = look().page
    laws = [law for target in json.loads(report.with_suffix(".json").read_text()) for law in target["laws"]]
    tried = sum(law["status"] != "skipped" for law in laws)
    broken = sum(law["status"] == "failed" for law in laws)
    assert 0 < broken < tried < len(laws)
    assert page.locator("h1").inner_text() == f"✗ {broken} of {tried} checks broken"
    assert page.locator("li.cause dt", has_text="arrays").count() == page.locator("li.cause").count() > 0
    assert re.search(r"^y \d+ % off", page.locator("li.cause dt:text-is('arrays') + dd").first.inner_text())
