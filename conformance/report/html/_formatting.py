"""The page's way to write numbers, verdicts and names of any kind: NaN, nothing, or a name of a hundred letters."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from markupsafe import Markup, escape

from conformance.report import TargetReport

SHORT = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True)
class Mark:
    """A verdict as it is shown: by a sign and a word, and additionally by a colour.

    Attributes:
        kind: the CSS class of its colour.
        sign: the text of a cell.
        word: its meaning, which a screen reader speaks.
        many: the same word for several.
    """

    kind: str
    sign: str
    word: str
    many: str


MARKS = {
    "passed": Mark("passed", "✓", "holds", "hold"),
    "failed": Mark("failed", "✗", "broken", "broken"),
    "differs": Mark("known", "≠", "differs from gatespec's contract", "differ from gatespec's contract"),
    "known": Mark("known", "⊘", "known failure", "known failures"),
    "fixed": Mark("fixed", "✓!", "known failure that holds now", "known failures that hold now"),
    "not served": Mark("refused", "∅", "not served", "not served"),
    "not promised": Mark("unpromised", "∖", "not promised", "not promised"),
    "skipped": Mark("skipped", "–", "not tried", "not tried"),
}

_GRAVITY = ("failed", "differs", "known", "fixed", "passed", "not served", "not promised", "skipped")


def mark(status: str) -> Mark:
    return MARKS.get(status) or Mark("skipped", "?", status, status)


def gravest(statuses: list[str]) -> str:
    """The status of a group: broken if one member is, not tried only if all are."""
    return min(statuses, key=lambda status: _GRAVITY.index(status) if status in _GRAVITY else len(_GRAVITY))


def counted(statuses: list[str], status: str) -> str:
    """The number of results with a status, in words: ``3 hold``."""
    count = statuses.count(status)
    return f"{count} {mark(status).word if count == 1 else mark(status).many}"


def number(value: Any) -> str:
    """Two digits, for a quick look: 0.83, 1.2e5, ∞; empty if there is no number."""
    if value is None:
        return ""
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def breakable(name: str) -> Markup:
    """A name that may be broken where its words end, and elsewhere only if the line requires it."""
    parts = [escape(part) for part in re.split(r"(?<=[._/:])", name)]
    return Markup("<wbr>").join(parts)


def apart(one: float, other: float | None) -> tuple[Markup, Markup]:
    """Two numbers with enough digits to tell them apart, with the differing digits marked."""
    if other is None or not (math.isfinite(one) and math.isfinite(other)) or one == other:
        return escape(number(one)), escape(number(other))
    told = f"{one:.3g}", f"{other:.3g}"
    for digits in range(3, 18):
        # Trailing zeros are kept: next to 0.291, 0.290 says more than 0.29.
        told = f"{one:#.{digits}g}".removesuffix("."), f"{other:#.{digits}g}".removesuffix(".")
        if float(told[0]) != float(told[1]):
            break
    first = next((at for at, pair in enumerate(zip(*told, strict=False)) if pair[0] != pair[1]), 0)
    aligned = _places(told[0]) == _places(told[1])
    marked = (_marked(text, first if aligned else 0) for text in told)
    return next(marked), next(marked)


def _places(text: str) -> tuple[int, str]:
    """The position of a number's decimal point and its exponent: digits of two numbers compare if both agree."""
    digits, _, exponent = text.partition("e")
    return len(digits.partition(".")[0]), exponent


def _marked(text: str, first: int) -> Markup:
    """A number with the digits from ``first`` on marked; an exponent does not count."""
    digits, e, exponent = text.partition("e")
    return Markup("{}<mark>{}</mark>{}").format(digits[:first], digits[first:], e + exponent)


def percent(share: float) -> str:
    """A share in percent; a share above zero is never written as 0."""
    if not math.isfinite(share):
        return "–"
    hundredths = 100 * share
    if 0 < hundredths < 0.01:
        return "< 0.01 %"
    return f"{hundredths:.0f} %" if hundredths >= 10 or hundredths == 0 else f"{hundredths:.2g} %"


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def names(reports: list[TargetReport]) -> list[str]:
    """The heading of each target's column: for a file its name, if that is unique; equal names are numbered."""
    short = [PurePath(report.target).name if report.target.endswith(".py") else report.target for report in reports]
    shared = Counter(short)
    told = [full.target if shared[name] > 1 else name for full, name in zip(reports, short, strict=True)]
    again = Counter(told)
    seen: Counter[str] = Counter()
    for at, name in enumerate(told):
        seen[name] += 1
        told[at] = f"{name} ({seen[name]})" if again[name] > 1 else name or "(no name)"
    return told
