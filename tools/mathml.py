"""Equations of the documentation: LaTeX in a ``math`` fence becomes MathML, which browsers show without a script."""

from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **others: Any) -> str:
    """The formatter of ``pymdownx.superfences`` for a ``math`` fence: one equation per paragraph.

    Raises:
        ValueError: the LaTeX cannot be converted to MathML, which stops the build.
    """
    blocks = [block for block in source.split("\n\n") if block.strip()]
    return "".join(f'<div class="{css_class}">{equation(block)}</div>' for block in blocks)


def equation(latex: str) -> str:
    """One displayed equation."""
    text = convert(" ".join(latex.split()), display="block")
    unknown = [node.text for node in ElementTree.fromstring(text).iter() if (node.text or "").startswith("\\")]
    if unknown:
        raise ValueError(f"{', '.join(map(str, unknown))} is not known in the equation {latex!r}")
    return text
