"""Promises: conditions that callers of a target must meet, such as ``f finite`` or ``S % 64 == 0``.

A promise is an expression over the names of a call. Only cases that keep all promises are drawn; other calls are
reported as not promised, and never as passed. Names:

- sizes: ``S`` (of every sequence), ``B``, ``T`` (all tokens), ``N``, ``K``, ``V``, ``H``, as the operation has them;
- options: ``chunk_size``, ``eps``, ``gradient_clipping``, and ``dtype``, which is compared with ``float32`` and the
  other dtypes;
- ``f finite``, ``i finite``, ``gates finite``;
- every feature, with ``_`` for what is not a letter or a digit: ``packed``, ``initial_state``, ``state_cotangents`` …;
  a feature is true or false, and is not compared

They are combined with ``and``, ``or``, ``not``, comparisons, ``in`` and arithmetic. A promise with a name that an
operation does not have does not apply to that operation. ``mlstm: S % 64 == 0`` applies to one operation only. They are
given on the command line or in a file (`conformance.judge.expectations`).
"""

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import UsageError
from conformance.features import described, features_of
from conformance.features.facts import FINITE, SIZES, AbsentError, facts_of, identifier, names_in, numbers_in, of_mlstm
from conformance.features.feature import Feature, avoiding
from conformance.operations import BY_LAWS, Operation

_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda x, y: x in y,
    ast.NotIn: lambda x, y: x not in y,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_WITHOUT_MEANING = (TypeError, ZeroDivisionError)
"""Raised where a call has no such number: an option that is left out is None, which is neither small nor large.

A comparison without a meaning excludes no call; one that has no meaning for any call is refused.
"""

FARTHEST = 130
"""A size is changed by at most this much to keep a promise."""


@dataclass(frozen=True)
class Promise:
    """One promise.

    Attributes:
        text: the promise as it was written.
        op: the operation that it applies to; None for all.
    """

    text: str
    op: str | None = None

    def __str__(self) -> str:
        return self.text if self.op is None else f"{self.op}: {self.text}"

    def holds(self, operation: Operation, case: Any, dtype: str) -> bool:
        """Whether a case of an operation keeps the promise; cases that it does not apply to always do."""
        return not self._applies(operation) or self._true_of(facts_of(operation, case, dtype))

    @functools.cached_property
    def sizes(self) -> frozenset[str]:
        """The sizes that it names; T, the number of all tokens, depends on S and B."""
        named = {node.id for node in ast.walk(_parsed(self.text)) if isinstance(node, ast.Name)}
        return frozenset(named & set(SIZES)) | ({"S", "B"} if "T" in named else set())

    def _applies(self, operation: Operation) -> bool:
        return self.op in (None, operation.about)

    def _true_of(self, facts: Iterable[Mapping[str, Any]]) -> bool:
        tree = _parsed(self.text)
        try:
            return all(bool(_evaluated(tree, each)) for each in facts)
        except (AbsentError, AttributeError, *_WITHOUT_MEANING):
            return True


@dataclass(frozen=True)
class Promises:
    """All promises of a run."""

    all: tuple[Promise, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.all)

    def hold(self, operation: Operation, case: Any, dtype: str) -> bool:
        return all(promise.holds(operation, case, dtype) for promise in self.all)

    def kept(self, operation: Operation, case: Any, dtype: str) -> Any | None:
        """The case, changed as little as necessary to keep all promises; None if no such case was found."""
        for promise in (*self.all, *self.all):
            if promise.holds(operation, case, dtype):
                continue
            kept = [each for each in self.all if each.holds(operation, case, dtype)]
            nearest = None
            for each in _near(operation, case, promise.sizes):
                if not promise.holds(operation, each, dtype):
                    continue
                nearest = each if nearest is None else nearest
                # One that breaks no other promise, if there is one.
                if all(other.holds(operation, each, dtype) for other in kept):
                    nearest = each
                    break
            case = case if nearest is None else nearest
        return case if self.hold(operation, case, dtype) else None


def parsed(text: str) -> Promise:
    """Parse a promise as it is written on the command line.

    Raises:
        UsageError: the text is not an expression of this language, or has a name that no operation has.
    """
    op, _, rest = text.rpartition(":")
    op, rest = op.strip(), rest.strip()
    if op and op not in BY_LAWS:
        raise UsageError(f"--promise {text!r}: there is no operation {op!r}; name one of {', '.join(BY_LAWS)}")
    tree = _parsed(rest)
    for node in ast.walk(tree):
        _allowed(node, text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if not names:
        raise UsageError(f"--promise {text!r} names nothing of a call; write something like 'S % 64 == 0'")
    wanted = [BY_LAWS[op]] if op else list(BY_LAWS.values())
    offered = set().union(*(names_in(operation) for operation in wanted)) | set(FLOATING)
    unknown = sorted(names - offered)
    if unknown:
        spoken = sorted({name.replace("__", " ") for name in offered - set(FLOATING)})
        raise UsageError(f"--promise {text!r}: unknown name {unknown[0]!r}; the names are {', '.join(spoken)}")
    compared = {node.id for of in _comparisons(tree) for node in ast.walk(of) if isinstance(node, ast.Name)}
    for name in sorted(compared):
        if not any(name in numbers_in(operation) for operation in wanted) and name not in FLOATING:
            raise UsageError(f"--promise {text!r}: {name!r} is true or false; write {name!r} or 'not {name}'")
    for node in _comparisons(tree):
        reason = _why_meaningless(node, wanted)
        if reason is not None:
            raise UsageError(f"--promise {text!r}: '{ast.unparse(node)}' has no meaning for any call ({reason})")
    return Promise(rest, op or None)


def _comparisons(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.BinOp))


def _why_meaningless(node: ast.AST, operations: Iterable[Operation]) -> str | None:
    """The exception that a comparison raises for calls of every kind; None if it has a meaning for some, or is absent.

    An operand that is None says nothing, since the option may be given in other calls.
    """
    reason = None
    for operation in operations:
        plain = described(operation).plain(0)
        for case in (plain, *(feature.added(plain) for feature in features_of(operation))):
            for facts in facts_of(operation, case, FLOATING[0]):
                try:
                    _evaluated(node, facts, strictly=True)
                except AbsentError:
                    break
                except _WITHOUT_MEANING as error:
                    reason = str(error)
                    if _has_none(node, facts):
                        return None
                else:
                    return None
    return reason


def _has_none(node: ast.AST, facts: Mapping[str, Any]) -> bool:
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id not in FLOATING]
    return any(facts[name] is None for name in names)


def excluding(feature: Feature) -> str:
    """The promise that excludes a feature."""
    return feature.promise or f"not {identifier(feature.name)}"


@functools.cache
def _parsed(text: str) -> ast.expr:
    spelt = text
    for words in FINITE:
        first, second = words.split()
        spelt = re.sub(rf"\b{first}\s+{second}\b", f"{first}__{second}", spelt)
    try:
        return ast.parse(spelt.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"--promise {text!r} is not an expression; write something like 'f finite', 'S % 64 == 0', 'not packed'"
        ) from error


_NODES = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.BinOp, ast.Name, ast.Load)


def _allowed(node: ast.AST, text: str) -> None:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | None)
    if not constant and not isinstance(node, (*_NODES, *_COMPARISONS, *_ARITHMETIC, ast.Tuple, ast.List)):
        raise UsageError(
            f"--promise {text!r} has a {type(node).__name__}; there are names, numbers, and, or, not, in, comparisons, "
            "+ - * // and %"
        )


def _evaluated(node: ast.AST, facts: Mapping[str, Any], *, strictly: bool = False) -> Any:
    """The value of an expression; a comparison without a meaning is true, or raises if ``strictly``."""

    def value(of: ast.AST) -> Any:
        return _evaluated(of, facts, strictly=strictly)

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in FLOATING:
            return node.id
        if node.id not in facts:
            raise AbsentError(node.id)
        return facts[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return [value(each) for each in node.elts]
    if isinstance(node, ast.BoolOp):
        together = all if isinstance(node.op, ast.And) else any
        return together(bool(value(each)) for each in node.values)
    if isinstance(node, ast.UnaryOp):
        return not value(node.operand) if isinstance(node.op, ast.Not) else -value(node.operand)
    if isinstance(node, ast.BinOp):
        return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.Compare):
        try:
            values = [value(each) for each in (node.left, *node.comparators)]
            pairs = zip(values, node.ops, values[1:], strict=False)
            compared = [_COMPARISONS[type(op)](x, y) for x, op, y in pairs]
            return all(compared)
        except _WITHOUT_MEANING:
            if strictly:
                raise
            return True
    raise TypeError(f"{ast.unparse(node)} is no expression of a promise")


def _near(operation: Operation, case: Any, sizes: frozenset[str]) -> Iterator[Any]:
    """Similar cases, nearest first: without a feature, with an added feature, or with another value of ``sizes``."""
    present = [feature for feature in features_of(operation) if feature.present(case)]
    for feature in present:
        yield feature.without(case)
    yield avoiding(
        case, ("forget gates of -inf", "forget gates of +inf", "input gates of -inf"), features_of(operation)
    )
    own = of_mlstm(case)
    packed = getattr(own, "lengths", None) if "S" in sizes else None
    resizable = [name for name in _resizable(own) if name in sizes]
    for step in range(1, FARTHEST) if resizable or packed else ():
        for change in (step, -step):
            for size in resizable:
                if getattr(own, size) + change >= 0:
                    yield _with_own(case, replace(own, **{size: getattr(own, size) + change}))
            if packed:
                yield _with_own(case, replace(own, lengths=tuple(max(S + change, 0) for S in packed)))
    # Sizes and lengths together, rounded up to what chunks are likely to be.
    for chunk in (16, 32, 64, 128):
        if packed:
            yield _with_own(case, replace(own, lengths=tuple(-(-S // chunk) * chunk for S in packed)))
        rounded = {size: -(-getattr(own, size) // chunk) * chunk for size in ("K", "V") if size in resizable}
        if rounded:
            yield _with_own(case, replace(own, **rounded))
    for feature in features_of(operation):
        if feature not in present:
            yield feature.added(case)


def _resizable(own: Any) -> list[str]:
    named = {field.name for field in fields(own)}
    sizes = [name for name in ("S", "K", "V", "H", "N", "B") if name in named]
    return [name for name in sizes if not (getattr(own, "lengths", None) is not None and name in ("S", "B"))]


def _with_own(case: Any, own: Any) -> Any:
    return replace(case, inner=own) if hasattr(case, "inner") else own
