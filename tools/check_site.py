"""Check the links of the built documentation site: `tools/check_site.py build/site`.

Every link, picture, script and style must lead to a file of the site, and every fragment to a name on that page. What
a page loads must come with the site; links to other sites are not followed.
"""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows the page.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
FOLLOWED = {("a", "href")}


@dataclass
class Page(HTMLParser):
    """The names and links of a page.

    Attributes:
        names: its anchors.
        links: (whether a browser loads it by itself, address).
    """

    names: set[str] = field(default_factory=set)
    links: list[tuple[bool, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        # The address under which a page is known elsewhere loads nothing.
        loads = given.get("rel") not in ("canonical", "prev", "next")
        self.names |= {given[name] for name in ("id", "name") if name in given}
        for name, value in given.items():
            if (tag, name) in LOADED or (tag, name) in FOLLOWED:
                self.links.append(((tag, name) in LOADED and loads, value))


def read(path: Path) -> Page:
    """A page of the site."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(site: Path) -> list[str]:
    """A sentence for every broken link, and for everything that is loaded from another site."""
    # The page of errors is served at any address, so its links are absolute.
    paths = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    pages = {path.resolve(): read(path) for path in paths}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for loads, address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if loads and parts.scheme != "data":
                    found.append(f"{where} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{where} links to {address}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                found.append(f"{where} links to {address}, and that page has no such name")
    return found


def main() -> None:
    """Check the site that the command line names."""
    site = Path(sys.argv[1])
    found = broken(site)
    for sentence in found:
        print(f"check_site: {sentence}", file=sys.stderr)
    if found or not any(site.glob("*.html")):
        raise SystemExit(1)
    print(f"{site}: every link leads somewhere, and nothing is loaded from elsewhere")


if __name__ == "__main__":
    main()
