"""Hooks of mkdocs: the pages that are made when the site is built, and links to files outside ``docs/``.

README is the site's first page and CONTRIBUTING and CHANGELOG are pages too; there is one page of the API for each
package, and those of `tools.site_pages` are drawn from data. Some pages are executed (`tools.executed_pages`). A link
of a page to another file of the repository leads to a copy of that file on the site.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tools.executed_pages import EXECUTED, PageError, executed
from tools.plain_equations import rendered
from tools.site_pages import pages

ROOT = Path(__file__).resolve().parents[1]
PROJECT_PAGES = {"index.md": "README.md", "project/CONTRIBUTING.md": "CONTRIBUTING.md"}
PROJECT_PAGES |= {"project/CHANGELOG.md": "CHANGELOG.md"}
API = ("reference", "torch_impl", "jax_impl")
# What a program that uses the suite would import; the command line is in the guide.
SUITE = (
    "frameworks.implementation",
    "base.options",
    "command.run",
    "failures.replay",
    "tolerance.budget",
    "judge.known_failures",
    "command.test_laws",
)
# Bridges to other packages, with what is shown of them where that is not everything.
BRIDGES: dict[str, tuple[str, ...]] = {
    "torch_impl.interop.mlstm_kernels": (),
    "torch_impl.interop.transformers": (),
    "torch_impl.interop.gru": ("gru_from_weights",),
    "torch_impl.interop.torch_gru": (),
    "torch_impl.interop.onnx": (),
    "jax_impl.interop.mlstm_kernels": (),
    "jax_impl.interop.gru": ("gru_from_weights",),
    "reference.interop.gru": (),
    "torch_impl.interop.slstm": ("slstm_from_weights",),
    "jax_impl.interop.slstm": ("slstm_from_weights",),
    "reference.interop.slstm": (),
}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*(```|~~~)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the files that pages link to."""
    made = {**pages(), **api_pages()}
    made |= {name: (ROOT / source).read_text() for name, source in PROJECT_PAGES.items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for file in list(files.documentation_pages()):
        for target in linked_files(source_of(file.src_uri), made.get(file.src_uri) or file.content_string):
            uri = site_uri(target)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Run the blocks of a page that is executed, and let links of the repository lead to their files on the site."""
    uri = page.file.src_uri
    if uri.startswith(EXECUTED):
        try:
            markdown = executed(markdown, source_of(uri))
        except PageError as error:
            raise PluginError(str(error)) from error
    return with_site_links(markdown, source_of(uri), uri)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Render the equations of docstrings, and end the sentence before a block with one colon, not with two."""
    html = html.replace("::</p>", ":</p>")
    return rendered(html) if page.file.src_uri.startswith("api/") else html


def api_pages() -> dict[str, str]:
    """One page for each package, from its docstrings."""
    made = {f"api/{name}.md": f"# {name}\n\n::: {name}\n" for name in API}
    modules = "\n\n".join(
        f"## conformance.{name}\n\n::: conformance.{name}\n    options:\n      heading_level: 3\n" for name in SUITE
    )
    made["api/jax_impl.md"] += "\n\n## jax_impl.nnx\n\n::: jax_impl.nnx\n    options:\n      heading_level: 3\n"
    made["api/interop.md"] = _bridges()
    says = "The Python interface of the suite; [Judge a kernel](../conformance.md) explains the command line."
    return {**made, "api/conformance.md": f"# conformance\n\n{says}\n\n{modules}"}


def _bridges() -> str:
    """The page of the modules that are imported only when asked for."""
    text = "# interop\n\nImported only when asked for; [Inside other packages](../interop.md) shows them in use."
    for name, members in BRIDGES.items():
        only = f"      members: [{', '.join(members)}]\n" if members else ""
        text += f"\n\n## {name}\n\n::: {name}\n    options:\n      heading_level: 3\n{only}"
    return text


def source_of(uri: str) -> str:
    """The file of the repository that a page of the site is made from."""
    return PROJECT_PAGES.get(uri, f"docs/{uri}")


def site_uri(path: str) -> str:
    """The address of a file of the repository on the site."""
    for uri, source in PROJECT_PAGES.items():
        if path == source:
            return uri
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def linked_files(source: str, markdown: str) -> set[str]:
    """The files outside ``docs/`` that a page links to."""
    matches = (match for line, is_code in lines_of(markdown) if not is_code for match in LINK.finditer(line))
    found = {path for match in matches if (path := target(source, match[2])) is not None}
    return {path for path in found if site_uri(path).startswith("files/")}


def with_site_links(markdown: str, source: str, uri: str) -> str:
    """A page whose links to files of the repository lead to their places on the site."""

    def replaced(match: re.Match[str]) -> str:
        path = target(source, match[2])
        up = "../" * uri.count("/")
        return match[0] if path is None else f"{match[1]}{up}{site_uri(path)}{match[3] or ''})"

    return "\n".join(line if is_code else LINK.sub(replaced, line) for line, is_code in lines_of(markdown))


def lines_of(markdown: str) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it belongs to a block of code."""
    inside = False
    for line in markdown.split("\n"):
        fence = FENCE.match(line) is not None
        yield line, inside or fence
        inside ^= fence


def target(source: str, link: str) -> str | None:
    """The file of the repository that a link in one of its files refers to; None if it refers to no such file."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = (ROOT / source).parent.joinpath(link).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_file() and path.is_relative_to(ROOT) else None
