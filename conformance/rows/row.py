"""A changed line of the specification as data: which piece of its syntax is replaced, and by what."""

import ast
import copy
import hashlib
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """A change of the specification: a fault, or another way to write what is right.

    Syntax is compared, not text: a row survives a reformatting of the specification and of itself.

    Attributes:
        op: the operation whose laws judge it.
        name: what is changed, in words; no two rows of one operation share it.
        module: the file of `reference`, ``_mlstm.py``.
        function: the function (or method, ``Call.packing``) inside which the change is made; "" for the module itself.
        replace: an expression, or consecutive statements, that stand in that function exactly once, so that a row
            that no longer fits is noticed.
        by: what stands there instead; "" removes the statements.
        rounds: whether it only loses digits. It is told by the direction and the size of the error; ``np.float32``
            stands for the dtype in which a target computes.
    """

    op: str
    name: str
    module: str
    function: str
    replace: str
    by: str
    rounds: bool = False

    @property
    def taped(self) -> bool:
        """Whether only a tape can follow it."""
        return "np.stop_gradient" in self.by

    @property
    def of_gradient(self) -> bool:
        """Whether it leaves the value as it is."""
        return "backward" in self.function or self.taped

    @property
    def digest(self) -> str:
        """Tells whether a score was measured on this very change; formatting does not count."""
        syntax = (repr([_dumped(node) for node in _parsed(text)]) for text in (self.replace, self.by))
        return hashlib.sha256("\0".join((self.op, self.module, self.function, *syntax)).encode()).hexdigest()[:12]

    def applied(self, text: str) -> str:
        """The module's source with the change in it.

        Raises:
            ValueError: what the row replaces does not stand exactly once in its function.
        """
        tree = ast.parse(text)
        return _spliced(text, tree, self.change(tree))

    def change(self, tree: ast.Module) -> ast.AST:
        """Make the change in the module's syntax.

        Returns:
            The function or module in which it was made.

        Raises:
            ValueError: what the row replaces does not stand exactly once in its function.
        """
        scope = _function(tree, self.function)
        if scope is None:
            raise ValueError(f"row {self.name!r}: {self.module} has no function {self.function}")
        old, new = _parsed(self.replace), _parsed(self.by)
        if _is_expression(old) and _is_expression(new):
            found = _replace_expressions(scope, old[0].value, new[0].value)
        else:
            found = _replace_statements(scope, old, new)
        if found != 1:
            where = f"{self.function} of {self.module}" if self.function else self.module
            raise ValueError(f"row {self.name!r}: what it replaces stands {found} times in {where}")
        return scope


def _spliced(text: str, tree: ast.Module, scope: ast.AST) -> str:
    """The source with the function or class anew in which a change was made."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and any(each is scope for each in ast.walk(node)):
            lines = text.splitlines(keepends=True)
            first = min(each.lineno for each in (node, *node.decorator_list))
            return "".join([*lines[: first - 1], f"{ast.unparse(node)}\n", *lines[node.end_lineno :]])
    return ast.unparse(tree)


def changes(text: str) -> tuple[Row, ...]:
    """Faults that are written like a difference between two files.

    Args:
        text: lines ``@ operation module function`` say where the faults below them are made. A fault is its name, what
            is replaced after ``-``, and what stands there instead after ``+``, where ``...`` alone is what is replaced.
            The name of one that rounds stands after ``~``.
    """
    found, place = [], ("", "", "")
    for block in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        name, *lines = block.splitlines()
        if name.startswith("@"):
            op, module, *function = name[2:].split()
            place = op, module, "".join(function)
            continue
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        new = re.sub(r"^( *)\.\.\.$", lambda indent, old=old: textwrap.indent(old, indent[1]), new, flags=re.MULTILINE)
        op, module, function = place
        rounds = name.startswith("~ ")
        name = name.removeprefix("~ ")
        found.append(Row(op=op, name=name, module=module, function=function, replace=old, by=new, rounds=rounds))
    return tuple(found)


def _parsed(source: str) -> list[Any]:
    return ast.parse(textwrap.dedent(source).strip()).body


def _dumped(node: ast.stmt) -> str:
    """The syntax in full: from Python 3.13 on, empty fields would be left out."""
    return ast.dump(node, show_empty=True) if sys.version_info >= (3, 13) else ast.dump(node)


def _is_expression(statements: list[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


class _WithoutContext(ast.NodeTransformer):
    """An expression is the same whether it is read or assigned to."""

    def visit_Store(self, node: ast.Store) -> ast.Load:
        return ast.Load()

    def visit_Del(self, node: ast.Del) -> ast.Load:
        return ast.Load()


def _key(node: ast.AST) -> str:
    return ast.dump(_WithoutContext().visit(copy.deepcopy(node)))


def _function(tree: ast.Module, name: str) -> ast.AST | None:
    """The definition of a function by its dotted name; the module itself for ""."""
    scope: ast.AST = tree
    for part in filter(None, name.split(".")):
        nested = (node for node in _within(scope) if isinstance(node, ast.FunctionDef | ast.ClassDef))
        named = [node for node in nested if node.name == part]
        if not named:
            return None
        # Its overloads come before the definition that runs.
        scope = named[-1]
    return scope


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, those of functions and classes inside it excepted."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _within(node)


def _replace_expressions(scope: ast.AST, old: ast.expr, new: ast.expr) -> int:
    wanted, found = _key(old), 0

    class Replace(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            nonlocal found
            if type(node) is type(old) and _key(node) == wanted:
                found += 1
                changed = copy.deepcopy(new)
                if hasattr(changed, "ctx") and hasattr(node, "ctx"):
                    changed.ctx = node.ctx  # pyright: ignore[reportAttributeAccessIssue]
                return changed
            return super().generic_visit(node)

    Replace().generic_visit(scope)
    return found


def _replace_statements(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> int:
    wanted, found = [_key(node) for node in old], 0
    for node in ast.walk(scope):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if not isinstance(body, list):
                continue
            starts = [
                at
                for at in range(len(body) - len(old) + 1)
                if type(body[at]) is type(old[0]) and [_key(each) for each in body[at : at + len(old)]] == wanted
            ]
            for at in reversed(starts):
                body[at : at + len(old)] = copy.deepcopy(new)
                found += 1
            if starts and field == "body" and not body:
                body.append(ast.Pass())
    return found
