"""The parts of `make docs`: equations, pages drawn from data, links that follow files, and the check of links."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools.{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_an_equation_becomes_mathml() -> None:
    pytest.importorskip("latex2mathml")
    mathml = load("mathml")
    html = mathml.fence("h = \\frac{C}{n}\n\nm = \\max(a, b)", "math", "math", {}, None)
    assert html.count('<div class="math"><math') == 2 and "<mfrac>" in html
    with pytest.raises(ValueError, match="fract"):
        mathml.equation("h = \\fract{C}{n}")


def test_pages_show_what_the_data_files_hold() -> None:
    pages = load("site_pages").pages()
    score = json.loads((ROOT / "tests/suite/mutants/score.json").read_text())["specification"]
    assert f"**{score['caught']} of {score['mutants']} faults are caught**" in pages["measured/score.md"]
    assert pages["measured/score.md"].count("| `") >= score["mutants"]
    calibration = json.loads((ROOT / "tests/suite/calibration/results.json").read_text())
    assert all(f"## {name}\n" in pages["measured/calibration.md"] for name in calibration)
    cases = {row["case"] for row in json.loads((ROOT / "benchmarks/results/cpu.json").read_text())["rows"]}
    assert all(f"## {case}\n" in pages["measured/benchmarks.md"] for case in cases)


def test_links_lead_to_the_files_places_on_the_site() -> None:
    pytest.importorskip("mkdocs")
    load("site_pages")
    site = load("docs_site")
    text = "[a](docs/spec.md#mlstm) ![b](docs/figures/overview.svg) [c](Makefile) [d](https://example.org) [e](no.md)"
    assert site.with_site_links(text, "README.md", "index.md") == (
        "[a](spec.md#mlstm) ![b](figures/overview.svg) [c](files/Makefile) [d](https://example.org) [e](no.md)"
    )
    code = "```sh\n[a](docs/spec.md)\n```\n[a](../README.md)"
    assert site.with_site_links(code, "docs/spec.md", "spec.md") == "```sh\n[a](docs/spec.md)\n```\n[a](index.md)"
    assert site.linked_files("README.md", text) == {"Makefile"}


def test_every_bridge_has_its_place_in_the_api() -> None:
    pytest.importorskip("mkdocs")
    load("site_pages")
    site = load("docs_site")
    page = site.api_pages()["api/interop.md"]
    # Bridges that a user calls: the other modules of these folders serve them.
    shared = {"__init__", "head_first", "gru_checkpoints", "gru_frameworks", "gru_weights", "slstm_weights"}
    shared |= {"kernel_registries", "transformers_gated_delta", "transformers_xlstm"}
    files = [path for name in site.API for path in (ROOT / name / "interop").glob("*.py") if path.stem not in shared]
    assert files and {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files} == set(site.BRIDGES)
    assert all(f"::: {name}\n" in page for name in site.BRIDGES)


def test_every_module_of_the_api_can_be_imported() -> None:
    pytest.importorskip("mkdocs")
    load("site_pages")
    text = "\n".join(load("docs_site").api_pages().values())
    # A package without its framework is not imported here.
    modules = re.findall(r"^::: (conformance\S*)", text, re.MULTILINE)
    assert len(modules) > 5
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="b.html#here">', None),
        ('<a href="b.html#there">', "links to b.html#there, and that page has no such name"),
        ('<a href="c.html">', "links to c.html, which is not there"),
        ('<img src="no.svg">', "links to no.svg, which is not there"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ('<a href="https://example.org/">', None),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, body: str, said: str | None) -> None:
    (tmp_path / "index.html").write_text(body)
    (tmp_path / "b.html").write_text('<p id="here">')
    found = load("check_site").broken(tmp_path)
    assert found == ([] if said is None else [f"index.html {said}"])
