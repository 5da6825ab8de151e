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

SIZES = ("S", "B", "T", "N", "K", "V", "H")
FINITE = {
    "f finite": ("forget gates of -inf", "forget gates of +inf", "infinite gates"),
    "i finite": ("input gates of -inf",),
    "gates finite": ("forget gates of -inf", "forget gates of +inf", "input gates of -inf", "infinite gates"),
}
"""Names of two words, and the features that they exclude."""

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
        if self.op not in (None, operation.about):
            return True
        tree = _parsed(self.text)
        try:
            return all(bool(_evaluated(tree, facts)) for facts in _facts_of(operation, case, dtype, _names(tree)))
        except (KeyError, AttributeError, *_WITHOUT_MEANING):
            # The operation has no such name.
            return True

    @functools.cached_property
    def sizes(self) -> frozenset[str]:
        """The sizes that it names; T, the number of all tokens, depends on S and B."""
        named = _names(_parsed(self.text))
        return frozenset(named & set(SIZES)) | ({"S", "B"} if "T" in named else set())


@dataclass(frozen=True)
class Promises:
    """All promises of a run."""

    all: tuple[Promise, ...] = ()

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
    names = _names(tree)
    if not names:
        raise UsageError(f"--promise {text!r} names nothing of a call; write something like 'S % 64 == 0'")
    wanted = [BY_LAWS[op]] if op else list(BY_LAWS.values())
    offered = set().union(*(names_in(operation) for operation in wanted)) | set(FLOATING)
    unknown = sorted(names - offered)
    if unknown:
        spoken = sorted({name.replace("__", " ") for name in offered - set(FLOATING)})
        raise UsageError(f"--promise {text!r}: unknown name {unknown[0]!r}; the names are {', '.join(spoken)}")
    for name in sorted(frozenset[str]().union(*map(_names, _comparisons(tree)))):
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
            for facts in _facts_of(operation, case, FLOATING[0], _names(node)):
                try:
                    _evaluated(node, facts, strictly=True)
                except KeyError:
                    break
                except _WITHOUT_MEANING as error:
                    reason = str(error)
                    if any(facts[name] is None for name in _names(node)):
                        return None
                else:
                    return None
    return reason


def excluding(feature: Feature) -> str:
    """The promise that excludes a feature."""
    return feature.promise or f"not {identifier(feature.name)}"


def identifier(feature: str) -> str:
    """The name of a feature in a promise."""
    spelt = feature.replace("-inf", "minus_inf").replace("+inf", "plus_inf")
    return re.sub(r"\W+", "_", spelt).strip("_")


def _names(tree: ast.AST) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _facts_of(operation: Operation, case: Any, dtype: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """The values of names for a case; for a packed case, one entry for each length among its sequences.

    Names that the operation does not have are left out.
    """
    known = {**_sizes(case), **_options(operation, case), "dtype": dtype, **{each: each for each in FLOATING}}
    features = features_of(operation)
    for name in names:
        words = name.replace("__", " ")
        excluded = [each for each in features if each.name in FINITE.get(words, ())]
        if excluded:
            known[name] = not any(feature.present(case) for feature in excluded)
        for feature in features:
            if identifier(feature.name) == name and name not in known:
                known[name] = feature.present(case)
    lengths = getattr(of_mlstm(case), "lengths", None)
    return [known] if lengths is None else [{**known, "S": S} for S in sorted(set(lengths)) or [0]]


def of_mlstm(case: Any) -> Any:
    return getattr(case, "inner", case)


def _sizes(case: Any) -> dict[str, Any]:
    own = of_mlstm(case)
    lengths = getattr(own, "lengths", None)
    found = {name: getattr(own, name) for name in SIZES if isinstance(getattr(own, name, None), int)}
    if lengths is not None:
        found |= {"B": len(lengths), "T": sum(lengths)}
    elif "B" in found:
        found["T"] = found["B"] * found["S"]
    return found


def _options(operation: Operation, case: Any) -> dict[str, Any]:
    """The options on which a promise may depend, each with its default where the case does not give it."""
    options = [option for option in operation.options if option.portable]
    # A case of a law's own need not be a call of the operation.
    given = case.options() if hasattr(case, "options") else {}
    found = {option.name: given.get(option.name, option.default) for option in options}
    config = found.pop(operation.curried or "", None)
    return {**found, **(config or {})}


def numbers_in(operation: Operation) -> set[str]:
    """The names of sizes and options, which a promise about an operation may compare."""
    case = described(operation).plain(0)
    return {*_sizes(case), *_options(operation, case), "dtype"}


def names_in(operation: Operation) -> set[str]:
    """Every name that may occur in a promise about an operation."""
    features = {feature.name for feature in features_of(operation)}
    finite = {words.replace(" ", "__") for words, ruled_out in FINITE.items() if features & set(ruled_out)}
    return {*numbers_in(operation), *finite, *map(identifier, features)}


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
