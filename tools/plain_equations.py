"""Equations of docstrings, plain text there, as LaTeX for the site: ``C_tᵀ q̂_t`` becomes ``C_t^\\top \\hat{q}_t``.

A docstring is read in editors and terminals, so its equations use Unicode and no markup. Only blocks that consist of
equations are converted; other blocks are unchanged.
"""

import html
import re

from tools.mathml import equation

NAMES = {"exp", "log", "max", "min", "tanh"}
WORDS = {"eps", "decay", "gain", "normaliser", "sign"}
PROSE = {"where", "is", "above", "its", "floor", "else"}
SYMBOLS = {
    "Σ": r"\sum", "σ": r"\sigma", "ν": r"\nu", "δ": r"\delta", "·": r"\cdot", "⊙": r"\odot", "−": "-", "≤": r"\le",
    "≥": r"\ge", "⟨": r"\langle", "⟩": r"\rangle", "←": r"\leftarrow", "ᵀ": r"^\top", "²": "^2", "∞": r"\infty",
}  # fmt: skip
MARKS = {"\u0302": r"\hat", "\u0303": r"\tilde"}
TOKEN = re.compile(
    r"(?P<space> +)"
    r"|_(?:\{(?P<long>[^}]*)\}|(?P<short>\w))"
    r"|(?P<word>(?!d[A-Za-z](?![A-Za-z]))[A-Za-z]{2,})"
    r"|(?P<d>d(?=[A-Za-zνδ]))?(?P<letter>[A-Za-zσνδ])(?P<mark>[\u0302\u0303]?)"
    r"|(?P<number>\d+)|(?P<other>.)"
)
GAP = re.compile(r" {4,}")
BLOCK = re.compile(r'<div class="highlight"><pre><span></span><code>(.*?)</code></pre></div>', re.DOTALL)


class EquationError(Exception):
    """A line that is not an equation."""


def latex(text: str) -> str:
    """An equation as LaTeX.

    Raises:
        EquationError: it has no equals sign or arrow, or it has a word or sign that equations do not have.
    """
    if not re.search(r" (=|\+=|←) ", text):
        raise EquationError(text)
    return "".join(_piece(match, text) for match in TOKEN.finditer(text)).replace("+=", r"\;\text{+=}\;")


def _piece(match: re.Match[str], text: str) -> str:
    found = match.groupdict()
    if found["space"]:
        return " "
    if subscript := found["long"] or found["short"]:
        return f"_{{{''.join(_piece(each, text) for each in TOKEN.finditer(subscript))}}}"
    if word := found["word"]:
        return _word(word, text)
    if letter := found["letter"]:
        symbol = SYMBOLS.get(letter, letter)
        mark = MARKS.get(found["mark"])
        return f"{found['d'] or ''}{f'{mark}{{{symbol}}}' if mark else f'{symbol} '}"
    if found["number"]:
        return found["number"]
    if (sign := found["other"]) in SYMBOLS:
        return f"{SYMBOLS[sign]} "
    if sign in "+-*/=()[]|,.'":
        return sign
    raise EquationError(f"{text}: {sign!r}")


def _word(word: str, text: str) -> str:
    if word in NAMES:
        return f"\\{word} "
    if word in WORDS:
        return f"\\mathrm{{{word}}}\\,"
    if word in PROSE:
        return f"\\;\\text{{{word}}}"
    if len(word) == 2 and word[0].islower():
        # Two letters side by side are a product.
        return " ".join(word)
    raise EquationError(f"{text}: {word!r}")


def rendered(page: str) -> str:
    """A page of the API in which docstrings' equations are MathML."""
    return BLOCK.sub(_block, page)


def _block(match: re.Match[str]) -> str:
    lines = [line.strip() for line in html.unescape(match[1]).split("\n") if line.strip()]
    try:
        found = [[equation(latex(each)) for each in GAP.split(line)] for line in lines]
    except EquationError:
        return match[0]
    # Equations of one line stand side by side where there is room.
    rows = ("".join(f'<div class="math">{each}</div>' for each in row) for row in found)
    return "".join(f'<div class="equations">{row}</div>' for row in rows)
