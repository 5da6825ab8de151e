"""A calibration as it is kept: which cases, which versions, which formula, and what came of every variant.

The result that stands in the repository is `COMMITTED`. It says for which constants and for which formula it holds, so
that neither can change without a new measurement: the formula is known by a hash of the code of the modules that say
how large a budget is, imports, comments and docstrings left out, and of the operation's other right spellings.
"""

import ast
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import conformance
from conformance.rows import correct
from conformance.tolerance import budget
from tests.suite.calibration.scoring import Score
from tests.suite.calibration.subjects import Subject

COMMITTED = Path(__file__).with_name("results.json")

_ROUNDED = ("oracle/_deviations.py", "specification/rounded.py", "specification/traced.py")
_MLSTM = (*_ROUNDED, "oracle/_mlstm.py", "oracle/_large.py", "rows/taped.py")
_STATED = (*_ROUNDED, "oracle/_recurrence.py")
_FORMULA = {
    "mlstm": _MLSTM,
    "mlstm_step": _MLSTM,
    "mlstm_fwbw_custom_grad": (*_MLSTM, "oracle/_fwbw.py"),
    "gru": _STATED,
    "slstm": _STATED,
    "slstm_step": _STATED,
}
_SAME_ROWS = {"mlstm_step": "mlstm", "mlstm_fwbw_custom_grad": "mlstm", "slstm_step": "slstm"}
"""Operations whose tolerances come from the rows of another one."""


def constants() -> dict[str, float]:
    """The constants of the budget as they are now."""
    return {"KAPPA": budget.KAPPA, "OMEGA": budget.OMEGA, "DRAWS": budget.DRAWS}


@cache
def formula(op: str, also: tuple[str, ...] = ()) -> str:
    """A hash of what says how large an operation's budget is, as it stood when this process first asked.

    Args:
        also: modules beside the operation's own (`Subject.modules`).
    """
    package = Path(conformance.__file__).parent
    digest = hashlib.sha256()
    modules = _FORMULA.get(op, ("oracle/_sums.py",))
    for module in ("tolerance/budget.py", *modules, *also):
        digest.update(code_of(package / module).encode())
    for row in correct.ROWS:
        if row.op == _SAME_ROWS.get(op, op):
            digest.update(row.digest.encode())
    return digest.hexdigest()[:16]


def code_of(path: Path) -> str:
    """A module without its imports, comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _says_nothing(part)]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(tree)


def _says_nothing(node: ast.stmt) -> bool:
    """Whether a statement is an import or a text: where a name comes from does not change the formula."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "hypothesis", "torch", "jax")},
    }


def facts(subject: Subject, cases: int, seed: int) -> dict[str, Any]:
    """The conditions for which a measurement holds."""
    return {"seed": seed, "cases": cases, "constants": constants(), "formula": formula(subject.op, subject.modules)}


def add(kept: dict[str, Any], subject: Subject, scores: Iterable[Score], cases: int, seed: int) -> None:
    """Add what was measured, and drop what was measured under other conditions."""
    same = kept.get(subject.name, {})
    now = facts(subject, cases, seed)
    measured = same["variants"] if {name: same.get(name) for name in now} == now else {}
    measured = {**measured, **{score.variant: _of_variant(score) for score in scores}}
    variants = {name: measured[name] for name in subject.variants if name in measured}
    kept[subject.name] = {**now, "versions": versions(), "variants": variants}


def missing(kept: dict[str, Any], subject: Subject, cases: int, seed: int) -> list[str]:
    """The variants of which there is no measurement of so many cases with the constants and the formula of now."""
    of, now = kept.get(subject.name, {}), facts(subject, cases, seed)
    if {name: of.get(name) for name in now} != now:
        return list(subject.variants)
    return [name for name in subject.variants if name not in of["variants"]]


def _of_variant(score: Score) -> dict[str, Any]:
    def short(ratios: dict[str, float]) -> dict[str, float]:
        return {name: float(f"{ratio:.3g}") for name, ratio in ratios.items()}

    return {
        "cases": score.cases,
        "false_alarms": score.false_alarms,
        "worst": float(f"{score.worst_ratio:.3g}"),
        "unrounded": float(f"{max(score.unrounded, default=0.0):.3g}"),
        "worst_by_dtype": short(score.by_dtype(score.worst)),
        "unrounded_by_dtype": short(score.by_dtype(score.unrounded)),
        "quantiles": short(score.quantiles()),
    }


def load(path: Path) -> dict[str, Any]:
    """A kept calibration by operation; empty where there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(path: Path, kept: dict[str, Any]) -> None:
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
