"""The causes of failed laws, found by experiment, and the sentences that state them."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from conformance.base.dtypes import FLOATING
from conformance.cases import from_json, simplicity, to_json
from conformance.diagnosis.cause import NOISE, Cause, Check
from conformance.diagnosis.faults import Fault
from conformance.diagnosis.matrix import RANK
from conformance.judge.outcome import Counterexample, LawResult
from conformance.tolerance.compared import ENDINGS, ArrayOutcome

Pair = tuple[LawResult, Counterexample | None]
"""A failed law, and one of its counterexamples; None if it has none."""


def pairs(result: LawResult) -> list[Pair]:
    return [(result, found) for found in result.counterexamples] or [(result, None)]


def of_fault(
    fault: Fault,
    found: Sequence[Pair],
    shown: Sequence[LawResult] = (),
    *,
    spared: bool = False,
) -> Cause:
    """Return a fault as a cause.

    Args:
        found: the failed laws that it explains.
        shown: failed laws that its own example breaks.
        spared: whether its own example is right in float32 or float64.
    """
    example = fault.example
    checks = _checks([*found, *((result, None) for result in shown)])
    case, dtype, arrays = example.case, example.dtype, example.arrays
    smaller = _smallest(fault, found)
    # A pattern is that of the example.
    if smaller is not None and not fault.patterns and _order(from_json(smaller[1].stored)) < _order(case):
        case, dtype, arrays = from_json(smaller[1].stored), smaller[0].dtype, smaller[1].arrays
    return Cause(
        sentence=sentence(fault, spared=spared),
        ops=(fault.op,),
        kind=fault.aspect,
        formula=None if fault.formula is None else fault.formula.name,
        features=tuple(feature.name for feature in fault.features),
        natures=tuple(sorted(fault.natures)),
        arrays=arrays,
        patterns=fault.patterns,
        problem=example.problem,
        case=case.describe(),
        dtype=dtype,
        stored=to_json(case),
        explains=checks,
        **script_of(_with_case(case, found)),
    )


def _order(case: Any) -> tuple[int, int, int]:
    return case.size, simplicity(case), len(case.describe())


def _smallest(fault: Fault, found: Sequence[Pair]) -> tuple[LawResult, Counterexample] | None:
    """The failed law with the smallest case among those that show the same arrays wrong in the same way."""
    kinds = {array.kind for array in fault.example.arrays if array.nature is not None}
    like = [
        (result, each)
        for result, each in found
        if each is not None and each.stored and kinds and kinds & {array.kind for array in each.arrays}
    ]
    return min(like, key=lambda pair: _order(from_json(pair[1].stored)), default=None)


def sentence(fault: Fault, *, spared: bool = False) -> str:
    """A fault in words.

    Args:
        spared: whether its own example is right in float32 or float64.
    """
    if fault.stale:
        first = "is right on the first call with given shapes, and"
        if fault.example.problem and not fault.example.wrong_arrays:
            return f"{fault.op} {first} on later ones it {fault.example.problem}"
        return f"The {fault.aspect} of {fault.op} {first} wrong on later ones"
    narrow = "float32" not in fault.dtypes and "float64" not in fault.dtypes
    dtypes = f" in {_listed(tuple(each for each in FLOATING if each in fault.dtypes))}" if narrow or spared else ""
    anywhere = " on every call that was tried" if fault.located and not fault.formula else ""
    where = f" {fault.where}" if fault.features else anywhere
    if fault.formula is not None:
        if fault.formula.changes_value and fault.aspect == "value":
            return f"{fault.op} equals {fault.formula.name}{where}{dtypes}"
        name = re.sub("^the (specification|recurrence)", r"that of the \1", fault.formula.name)
        return f"The gradient of {fault.op} equals {name}{where}{dtypes}"
    if fault.example.problem and not fault.example.wrong_arrays:
        problem = fault.example.problem
        # Of a wrong result, the problem ends with what the result is everywhere.
        return f"{fault.op}{where}{dtypes} {problem}" if "; its " in problem else f"{fault.op} {problem}{where}{dtypes}"
    subject = f"The {fault.aspect} of {fault.op}"
    if "nan" in fault.natures and "number" not in fault.natures:
        return f"{subject} is NaN{where}{dtypes}"
    if "infinity" in fault.natures and "number" not in fault.natures:
        return f"{subject} is infinite{where}{dtypes}"
    said = {f"{_plain(name)} {pattern}" for name, pattern in fault.patterns.items()}
    wrong = {array.where for array in fault.example.wrong_arrays}
    if said and set(fault.patterns) == wrong:
        return f"{fault.op}: the {' and the '.join(sorted(said))}{where}{dtypes}"
    return f"{subject} is wrong{where}{dtypes}"


def _plain(name: str) -> str:
    return name if name.startswith("gradient") else f"output {name}"


def merged(causes: Iterable[Cause]) -> list[Cause]:
    """Merge causes of several operations that have the same formula, or the same features and ways to be wrong."""
    found: dict[tuple, Cause] = {}
    for cause in causes:
        key = (
            (cause.kind, cause.formula)
            if cause.formula
            else (cause.kind, cause.features, cause.natures, cause.sentence)
        )
        if cause.formula is None and cause.features and cause.kind != "behaviour":
            key = (cause.kind, cause.features, cause.natures)
        before = found.get(key)
        if before is None:
            found[key] = cause
            continue
        ops = tuple(dict.fromkeys((*before.ops, *cause.ops)))
        said = before.sentence.replace(_listed(before.ops), _listed(ops), 1)
        explains = tuple(dict.fromkeys((*before.explains, *cause.explains)))
        found[key] = replace(before, ops=ops, sentence=said, explains=explains)
    # Roundings come last. Of two causes that explain as much, a formula comes first, then the value's, then what was
    # found first.
    return sorted(
        found.values(),
        key=lambda cause: (_is_noise(cause), -len(cause.explains), cause.formula is None, cause.kind != "value"),
    )


def _is_noise(cause: Cause) -> bool:
    """Whether everything that is wrong is a number with an error below a thousandth."""
    return bool(cause.arrays) and set(cause.natures) == {"number"} and cause.error < NOISE


def _listed(ops: tuple[str, ...]) -> str:
    return ops[0] if len(ops) == 1 else f"{', '.join(ops[:-1])} and {ops[-1]}"


def of_law(results: Sequence[Pair]) -> Cause:
    """The cause of a law whose calls have the right value and gradient, or end the process."""
    first, found = min(results, key=lambda pair: RANK.index(pair[0].dtype) if pair[0].dtype in RANK else len(RANK))
    ops = tuple(dict.fromkeys(result.law.op for result, _ in results))
    if found is None:
        said = f"{_listed(ops)} could not be judged by the law “{first.law.name}”"
        shown: dict[str, Any] = {"problem": first.reason or ""}
    else:
        said = f"{_listed(ops)} breaks the law “{first.law.name}”: {first.law.sentence.rstrip('.')}"
        if found.kind.nature in ENDINGS:
            said = f"A call of {_listed(ops)} ends the process ({found.kind.nature})"
        shown = {name: getattr(found, name) for name in ("arrays", "problem", "case", "stored")}
        shown |= {"natures": (found.kind.nature,), **script_of(found)}
    return Cause(
        sentence=said,
        ops=ops,
        kind="behaviour",
        dtype=first.dtype,
        explains=_checks(results),
        **shown,
    )


def script_of(found: Counterexample | None) -> dict[str, Any]:
    """The script of a counterexample as fields of a cause."""
    return {} if found is None else {name: getattr(found, name) for name in ("script", "script_text", "script_note")}


def key_of_law(result: LawResult, found: Counterexample | None) -> tuple:
    """A key that is equal for two results if they are reported as one cause, although no experiment connects them."""
    if found is None:
        return (result.law.name, result.reason)
    if found.kind.nature in ENDINGS:
        return (result.law.op, found.kind.nature)
    return (result.law.name, found.kind.nature)


def _checks(results: Iterable[tuple[LawResult, Any]]) -> tuple[Check, ...]:
    return tuple(dict.fromkeys(Check(law=result.law.id, dtype=result.dtype) for result, _ in results))


def _with_case(case: Any, found: Iterable[Pair]) -> Counterexample | None:
    """The counterexample with a script that is nearest to a case: the same case, or else the smallest one, noted."""
    stored = to_json(case)
    scripted = [each for _, each in found if each is not None and each.script]
    exact = [each for each in scripted if each.stored == stored]
    if exact or not scripted:
        return next(iter(exact), None)
    other = scripted[0]
    return replace(other, script_note="; ".join(filter(None, (other.script_note, f"its case is {other.case}"))))


def share(x: float) -> str:
    """A share in per cent, with enough digits to distinguish it from 0 and from 100."""
    if math.isinf(x):
        return "∞"
    percent = 100 * x
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.0e} %"


MANY_TIMES = 100.0
"""Errors beyond so many times an array's largest value say that next to nothing is expected: no share tells more."""


def _off(array: ArrayOutcome) -> str:
    """The largest error of an array, as a share of its largest value or, if that is all but 0, as a number."""
    if array.error < MANY_TIMES or not math.isfinite(array.distance):
        return f"{share(array.error)} off"
    largest = array.distance / array.error
    return f"off by {array.distance:.2g} where {f'at most {largest:.2g}' if largest else '0'} is expected"


def array_line(judged: Sequence[ArrayOutcome]) -> str:
    """All arrays in one line: ``h ✓ · gradient of q 0.7 % (12 % of its elements)``."""
    said = []
    for array in judged:
        if array.nature is None:
            said.append(f"{array.where} ✓")
        elif array.nature in ("number", "infinity"):
            said.append(f"{array.where} {_off(array)} in {share(array.wrong)} of its elements")
        else:
            said.append(f"{array.where} {'NaN' if array.nature == 'nan' else array.nature}")
    return " · ".join(said)
