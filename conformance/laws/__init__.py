"""The laws: one file per operation, and one for those that all operations share.

A law is data: its sentence, its equation, its cases, and the check itself.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from conformance.base.dtypes import FLOATING
from conformance.cases import STRATA
from conformance.operations import ABOUT, LAW_MODULES, OPERATIONS, Operation, Strategy

Kind = Literal["definition", "relation", "contract", "behaviour"]
"""The subject of a law:

- ``definition``: the value or the gradient, compared with the oracle's answer, in any form of call (packed, stepwise).
- ``relation``: two calls of the target, compared with each other.
- ``contract``: decisions of gatespec that others may make differently.
- ``behaviour``: memory, dtypes, determinism, transforms, refusals.
"""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A statement that must hold for one operation.

    Attributes:
        op: the public operation (or family) that it is about.
        name: its name; ``op.name`` is its id.
        kind: its subject (`Kind`).
        sentence: the law in words.
        equation: the law in symbols.
        check: raises `conformance.laws.checker.LawError` if the law does not hold for a case.
        cases: the strategy that draws cases; None if ``rows`` lists them.
        rows: cases that are all tried, for laws about a finite list of calls.
        strata: the sizes on which it is tried.
        usual: the number of rows of the sizes that people use (`conformance.cases._usual`) on which it is tried too.
        dtypes: the dtypes in which it is tried by default.
        compiled_dtypes: the same for targets that compile per shape; None for all of ``dtypes``.
        needs: the public functions that it calls; empty if it calls only ``op``.
        gradient: the operation whose gradient it uses, if any.
        subject: names of features (`conformance.features.feature`) that it is about although other laws can do
            without them: a target that refuses one of these does not serve it.
        share: its share of the number of examples, at most 1.
        forward: whether it is about the function as it is called where no gradient is asked for; other laws may take
            the outputs of a compiled gradient, which costs no compilation of its own.
        skip: returns the reason why it does not apply to an implementation, or None if it does.
        quick: whether it is part of a quick run: a law of value or gradient, which holds of any call.
    """

    op: str
    name: str
    kind: Kind
    sentence: str
    equation: str
    check: Callable[[Any, Any], None]
    cases: Strategy | None = None
    rows: Callable[[], list[Any]] | None = None
    strata: tuple[str, ...] = STRATA
    usual: int = 0
    dtypes: tuple[str, ...] = FLOATING
    compiled_dtypes: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    gradient: str | None = None
    subject: tuple[str, ...] = ()
    share: float = 1.0
    forward: bool = False
    skip: Callable[[Any], str | None] | None = None
    quick: bool = False

    @property
    def id(self) -> str:
        return f"{self.op}.{self.name}"

    @property
    def functions(self) -> tuple[str, ...]:
        """The public functions that it calls."""
        return self.needs or (self.op,)

    def usual_dtypes(self, eager: bool) -> tuple[str, ...]:
        """The dtypes in which it is tried by default on a target that takes new shapes cheaply or compiles them."""
        return self.dtypes if eager or self.compiled_dtypes is None else self.compiled_dtypes

    def __reduce__(self) -> tuple[Callable[[str], "Law"], tuple[str]]:
        """A law is pickled as its id, because checks and strategies are nested functions."""
        return law_of, (self.id,)


_registered: list[Law] = []

EVERY, FEW = 24, 4
"""Numbers of rows of usual sizes: more than there are, and the first, which have the largest value of each size and
every number of packed sequences."""

SMALL, SHORT = ("small",), ("small", "chunk")
"""Strata without the long ones."""

SINGLE, WIDE = ("float32",), ("float64", "float32")
UP_TO_BFLOAT16 = (*WIDE, "bfloat16")
"""Dtypes without those whose rounding adds nothing to what a law tests."""

_USUAL: dict[Kind, dict[str, Any]] = {
    "definition": {},
    "relation": {"strata": SHORT, "dtypes": WIDE, "compiled_dtypes": SINGLE},
    "contract": {"strata": SMALL, "dtypes": WIDE},
    "behaviour": {"strata": SMALL},
}
"""The strata and dtypes on which a law of each kind is tried, unless it names its own."""


def registering(into: list[Law]) -> Callable[..., Callable[[Callable], Callable]]:
    """`law`, for another list of laws."""
    return partial(_register, into)


def _register(
    into: list[Law],
    about: Operation | str,
    kind: Kind,
    *,
    name: str = "",
    sentence: str = "",
    equation: str = "",
    **fields: Any,
) -> Callable[[Callable], Callable]:
    """Register the decorated check as a `Law`.

    The first paragraph of the check's docstring is the law in words, the second one in symbols; ``{op}`` stands for the
    name of the operation. A `functools.partial` of a check has the docstring, and the name, of its function.

    Args:
        about: the operation that the law calls, or the name under which it stands.
        name: the name of the law, if it is not that of the check.
        sentence, equation: the law in words and in symbols, where the docstring does not say it.
        fields: of the `Law`; what is left out is what is usual for its kind. A list of calls is tried in float32 alone.
    """
    op, needs, called = (about, (), about) if isinstance(about, str) else (about.about, (about.name,), about.name)
    usual = {"dtypes": SINGLE} if "rows" in fields else _USUAL[kind]
    fields = {"needs": needs, **usual, **fields}

    def register(check: Callable) -> Callable:
        written = getattr(check, "func", check)
        paragraphs = (written.__doc__ or "").replace("{op}", called).split("\n\n")
        said, symbols, *_ = [*(" ".join(map(str.strip, each.strip().splitlines())) for each in paragraphs), "", ""]
        fields["name"] = name or written.__name__.removeprefix("_")
        into.append(
            Law(op=op, kind=kind, sentence=sentence or said, equation=equation or symbols, check=check, **fields)
        )
        return check

    return register


law = registering(_registered)


def all_laws() -> list[Law]:
    """Every law, in the order of the operations: the value and the gradient of a stated recurrence, an operation's own
    laws, then those that it shares.

    The order does not depend on which module was imported, and registered its laws, first.
    """
    for module in LAW_MODULES:
        importlib.import_module(f"conformance.laws.{module}")
    general = importlib.import_module("conformance.laws.general")
    for op in OPERATIONS:
        general.register(op)
    order = ("_stated_laws", *LAW_MODULES)
    return sorted(_registered, key=lambda law: (ABOUT.index(law.op), _place(_home(law.check), order)))


def law_of(id: str) -> Law:
    """The law with this id."""
    return next(each for each in all_laws() if each.id == id)


def _place(home: str, order: tuple[str, ...]) -> int:
    return min(order.index(home), 1) if home in order else 2


def _home(check: Callable) -> str:
    """The name of the file in which a check is written; the check may be a `functools.partial`."""
    return getattr(check, "func", check).__module__.rpartition(".")[2]
