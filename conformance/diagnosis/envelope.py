"""The envelope: features × dtype, each cell right, wrong, not served, not promised or not tried."""

from collections.abc import Iterable, Mapping, Sequence

from conformance.base.dtypes import FLOATING
from conformance.diagnosis.cause import Cell, Envelope, Row
from conformance.diagnosis.exploration import PLAIN
from conformance.diagnosis.fault import Fault
from conformance.features import features_of
from conformance.features.promises import excluding
from conformance.formulas.judged import NOT_PROMISED, NOT_SERVED, RIGHT, WRONG, Judged
from conformance.judge.outcome import LawResult
from conformance.operations import BY_LAWS, Operation

NOT_TRIED = "not tried"

NAMED = 5
"""Number of features that the sentence about an envelope names if they were not tried."""

ASPECTS = ("value", "gradient")
"""The laws whose cases are counted by their features."""

Counts = Mapping[str, Mapping[str, int]]


def cell(trials: Iterable[Judged]) -> Cell:
    """The verdict on several calls: wrong if any is wrong, not served if all are refused."""
    trials = tuple(trials)
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
    return next((status for status in (WRONG, RIGHT, NOT_SERVED, NOT_PROMISED) if status in found), "")


def of_trials(
    operation: Operation,
    table: Mapping[str, Mapping[str, list[Judged]]],
    counts: Mapping[str, Counts],
    dtypes: Iterable[str],
    faults: Iterable[Fault],
    untried: Sequence[str] = (),
) -> Envelope:
    """The envelope found by experiment, or, where there was no time for one, by laws that held.

    Args:
        untried: features that would have been tried if there had been more time.
        table: the calls that were judged, by feature and dtype.
        counts: as for `of_counts`, for dtypes in which all laws held.
        dtypes: the dtypes of the run.
    """
    wanted = [dtype for dtype in FLOATING if dtype in set(dtypes)]
    rows = []
    for name, sentence in _rows(operation):
        trials = table.get(name, {})
        if trials or name in untried:
            cells = {
                dtype: cell(trials.get(dtype, ()))
                if trials.get(dtype) or dtype not in counts
                else _counted(name, counts[dtype])
                for dtype in wanted
            }
            rows.append(Row(feature=name, sentence=sentence, cells=cells))
    phrases = {feature.name: feature.where for feature in features_of(operation)}
    return Envelope(op=operation.about, rows=tuple(rows), summary=summary(rows, tuple(faults), phrases, untried))


def of_counts(operation: Operation, counts: Mapping[str, Counts]) -> Envelope:
    """The envelope of an operation whose laws of value and gradient all held: the features of their cases.

    Args:
        counts: by dtype, then ``value`` or ``gradient``: the number of cases with each feature that held; under an
            empty name, of all cases that held.
    """
    rows = []
    for name, sentence in _rows(operation):
        cells = {dtype: _counted(name, counts[dtype]) for dtype in FLOATING if dtype in counts}
        if any(each.cases for each in cells.values()):
            rows.append(Row(feature=name, sentence=sentence, cells=cells))
    return Envelope(op=operation.about, rows=tuple(rows), summary=summary(rows))


def of_results(operation: Operation, results: Sequence[LawResult]) -> Envelope | None:
    """The envelope of an operation whose laws about value and gradient held or were not tried."""
    of_op = [result for result in results if result.law.op == operation.about and result.law.name in ASPECTS]
    if not of_op or any(result.status == "failed" for result in of_op):
        return None
    found = of_counts(operation, counts_of(of_op))
    return found if found.rows else None


def counts_of(results: Sequence[LawResult]) -> dict[str, dict[str, Mapping[str, int]]]:
    """By dtype and law, the number of cases with each feature for which the laws about value and gradient held."""
    counts: dict[str, dict[str, Mapping[str, int]]] = {}
    for result in results:
        if result.law.name in ASPECTS:
            counts.setdefault(result.dtype, {})[result.law.name] = result.features
    return counts


def _counted(name: str, counts: Counts) -> Cell:
    """The cell of a feature in a dtype, from the number of cases that held."""
    key = "" if name == PLAIN else name
    of_value, of_gradient = (counts.get(aspect, {}).get(key, 0) for aspect in ("value", "gradient"))
    return Cell(
        value=RIGHT if of_value else NOT_TRIED,
        gradient="" if "gradient" not in counts else RIGHT if of_gradient else NOT_TRIED,
        cases=of_value + of_gradient,
    )


def _rows(operation: Operation) -> list[tuple[str, str]]:
    plain = "a call of the simplest kind: one sequence, one head, moderate gates, no states, no options"
    return [(PLAIN, plain), *((feature.name, feature.sentence) for feature in features_of(operation))]


def suggested(envelope: Envelope) -> list[str]:
    """The promises that exclude calls that are wrong or not served; none if even a plain call is wrong."""
    features = {feature.name: feature for feature in features_of(BY_LAWS[envelope.op])}
    bad = [row.feature for row in envelope.rows if _bad(row)]
    if PLAIN in bad:
        return []
    # What rules out a wider feature rules out the narrower ones too.
    widest = [name for name in bad if not set(features[name].implies) & set(bad)]
    return list(dict.fromkeys(excluding(features[name]) for name in widest))


def _bad(row: Row) -> bool:
    statuses = {status for cell in row.cells.values() for status in (cell.value, cell.gradient)}
    return bool(statuses & {WRONG, NOT_SERVED})


def summary(
    rows: Iterable[Row],
    faults: tuple[Fault, ...] = (),
    phrases: Mapping[str, str] | None = None,
    untried: Sequence[str] = (),
) -> str:
    """The envelope in a few sentences.

    Args:
        faults: the faults that were found.
        phrases: `Feature.where` by the name of the feature.
        untried: features that would have been tried if there had been more time.
    """
    rows = tuple(rows)
    statuses = {
        row.feature: {cell.value for cell in row.cells.values()} | {cell.gradient for cell in row.cells.values()}
        for row in rows
    }
    if not statuses:
        return "Nothing was tried."
    wrong = [name for name, found in statuses.items() if WRONG in found]
    refused = [name for name, found in statuses.items() if NOT_SERVED in found and WRONG not in found]
    promised = [name for name, found in statuses.items() if "not promised" in found]
    right = [name for name, found in statuses.items() if RIGHT in found and name not in (*wrong, *refused)]
    said = []
    if PLAIN in wrong:
        said.append("Wrong on the plainest call." if len(right) < 2 else "Wrong on the plainest call and elsewhere.")
    elif not wrong:
        said.append("Right wherever it was tried." if right else "No call was served.")
    else:
        named = {feature.name for fault in faults for feature in fault.features}
        unnamed = [(phrases or {}).get(name, name) for name in wrong if name not in named]
        places = list(dict.fromkeys(_where(fault) for fault in faults if fault.features))
        if not places or not all(fault.features for fault in faults):
            places += unnamed
        said.append(f"Right on plain calls; wrong {', and '.join(places)}.")
    if refused:
        said.append(f"Not served: {', '.join(refused)}.")
    if promised:
        said.append(f"Not promised: {', '.join(promised)}.")
    if untried:
        told = [*untried] if len(untried) <= NAMED else [*untried[: NAMED - 1], f"{len(untried) - NAMED + 1} more"]
        said.append(f"Not tried for lack of time: {', '.join(told)}.")
    return " ".join(said)


def _where(fault: Fault) -> str:
    return f"in the gradient {fault.where}" if fault.aspect == "gradient" else fault.where
