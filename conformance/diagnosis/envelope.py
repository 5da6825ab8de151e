"""The envelope: features × dtype, each cell right, wrong, not served or not tried."""

from collections.abc import Iterable, Mapping, Sequence

from conformance.base.dtypes import FLOATING
from conformance.diagnosis.cause import Cell, Envelope, Row
from conformance.diagnosis.faults import Fault
from conformance.diagnosis.matrix import PLAIN
from conformance.features import features_of
from conformance.formulas.judged import NOT_SERVED, RIGHT, WRONG, Judged
from conformance.judge.outcome import LawResult
from conformance.operations import Operation

NOT_TRIED = "not tried"

NAMED = 5
"""Number of features that the sentence about an envelope names if they were not tried."""

ASPECTS = ("value", "gradient")
"""The laws whose cases are counted by their features."""

Counts = Mapping[str, Mapping[str, int]]
"""Of one dtype: by ``value`` or ``gradient``, the cases with each feature that held; under an empty name, all."""


def envelope(
    operation: Operation,
    held: Sequence[LawResult],
    dtypes: Iterable[str],
    cells: Mapping[str, Mapping[str, list[Judged]]] | None = None,
    faults: Iterable[Fault] = (),
    untried: Sequence[str] = (),
) -> Envelope:
    """The envelope of an operation, found by experiment or, where there was none, from the cases of laws that held.

    Args:
        held: the results in the dtypes in which all laws held.
        dtypes: the dtypes of the run.
        cells: the calls that were judged, by feature and dtype; None if there were no experiments.
        faults: the faults that were found.
        untried: features that would have been tried if there had been more time.
    """
    counts: dict[str, dict[str, Mapping[str, int]]] = {}
    for result in held:
        if result.law.name in ASPECTS:
            counts.setdefault(result.dtype, {})[result.law.name] = result.features
    wanted = [dtype for dtype in FLOATING if dtype in set(dtypes)]
    plain = "a call of the simplest kind: one sequence, one head, moderate gates, no states, no options"
    features = features_of(operation)
    rows = []
    for name, sentence in [(PLAIN, plain), *((feature.name, feature.sentence) for feature in features)]:
        trials = (cells or {}).get(name, {})
        found = {
            dtype: _counted(name, counts[dtype])
            if dtype in counts and not trials.get(dtype)
            else cell(trials.get(dtype))
            for dtype in wanted
        }
        if trials or name in untried or (cells is None and any(each.cases for each in found.values())):
            rows.append(Row(feature=name, sentence=sentence, cells=found))
    phrases = {feature.name: feature.where for feature in features}
    return Envelope(op=operation.about, rows=tuple(rows), summary=_summary(rows, tuple(faults), phrases, untried))


def cell(trials: Sequence[Judged] | None) -> Cell:
    """The verdict on several calls: wrong if any is wrong, not served if all are refused."""
    if not trials:
        return Cell(value=NOT_TRIED, gradient=NOT_TRIED)
    arrays = [array for judged in trials for array in judged.arrays]
    wrong = sum(array.nature is not None for array in arrays)
    return Cell(
        value=_worst(judged.value for judged in trials),
        gradient=_worst(judged.gradient for judged in trials if judged.gradient is not None),
        cases=len(trials),
        held=len(arrays) - wrong,
        wrong=wrong,
        note=next((judged.problem for judged in trials if judged.problem), ""),
    )


def _worst(statuses: Iterable[str]) -> str:
    found = set(statuses)
    return next((status for status in (WRONG, RIGHT, NOT_SERVED) if status in found), "")


def _counted(name: str, counts: Counts) -> Cell:
    """The cell of a feature in a dtype, from the number of cases that held."""
    key = "" if name == PLAIN else name
    of_value, of_gradient = (counts.get(aspect, {}).get(key, 0) for aspect in ASPECTS)
    return Cell(
        value=RIGHT if of_value else NOT_TRIED,
        gradient="" if "gradient" not in counts else RIGHT if of_gradient else NOT_TRIED,
        cases=of_value + of_gradient,
    )


def of_results(operation: Operation, results: Sequence[LawResult]) -> Envelope | None:
    """The envelope of an operation whose laws about value and gradient held or were not tried."""
    of_op = [result for result in results if result.law.op == operation.about and result.law.name in ASPECTS]
    if not of_op or any(result.status == "failed" for result in of_op):
        return None
    found = envelope(operation, of_op, {result.dtype for result in of_op})
    return found if found.rows else None


def _summary(rows: Iterable[Row], faults: tuple[Fault, ...], phrases: Mapping[str, str], untried: Sequence[str]) -> str:
    """The envelope in a few sentences, given `Feature.where` by the name of the feature."""
    statuses = {
        row.feature: {cell.value for cell in row.cells.values()} | {cell.gradient for cell in row.cells.values()}
        for row in rows
    }
    if not statuses:
        return "Nothing was tried."
    wrong = [name for name, found in statuses.items() if WRONG in found]
    refused = [name for name, found in statuses.items() if NOT_SERVED in found and WRONG not in found]
    right = [name for name, found in statuses.items() if RIGHT in found and name not in (*wrong, *refused)]
    places = list(dict.fromkeys(_where(fault) for fault in faults if fault.where))
    said = []
    if PLAIN in wrong:
        said.append("Wrong on the plainest call." if len(right) < 2 else "Wrong on the plainest call and elsewhere.")
    elif not wrong:
        told = f"Right wherever one feature was tried; wrong {', and '.join(places)}."
        said.append(told if places else "Right wherever it was tried." if right else "No call was served.")
    else:
        named = {feature.name for fault in faults for feature in fault.features}
        if not places or not all(fault.features for fault in faults):
            places += [phrases.get(name, name) for name in wrong if name not in named]
        said.append(f"Right on plain calls; wrong {', and '.join(places)}.")
    if refused:
        said.append(f"Not served: {', '.join(refused)}.")
    if untried:
        told = [*untried] if len(untried) <= NAMED else [*untried[: NAMED - 1], f"{len(untried) - NAMED + 1} more"]
        said.append(f"Not tried for lack of time: {', '.join(told)}.")
    return " ".join(said)


def _where(fault: Fault) -> str:
    return f"in the gradient {fault.where}" if fault.aspect == "gradient" else fault.where
