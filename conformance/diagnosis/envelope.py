"""The envelope: features × dtype, each cell right, wrong, not served, not promised or not tried."""

from collections.abc import Iterable, Mapping

from conformance.diagnosis.cause import Cell, Envelope, Row
from conformance.diagnosis.faults import PLAIN, Fault
from conformance.diagnosis.judged import NOT_PROMISED, NOT_SERVED, RIGHT, WRONG, Judged
from conformance.diagnosis.promises import excluding
from conformance.dtypes import FLOATING
from conformance.operations import OPERATIONS, Operation

NOT_TRIED = "not tried"


def cell(trials: Iterable[Judged]) -> Cell:
    """The verdict on several calls: wrong if any is wrong, not served if all are refused."""
    trials = tuple(trials)
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
    dtypes: Iterable[str],
    faults: Iterable[Fault],
) -> Envelope:
    """The envelope that was found by experiment.

    Args:
        table: the calls that were judged, by feature and dtype.
        dtypes: the dtypes of the run.
    """
    wanted = [dtype for dtype in FLOATING if dtype in set(dtypes)]
    nothing = Cell(value=NOT_TRIED, gradient=NOT_TRIED)
    rows = []
    for name, sentence in _rows(operation):
        trials = table.get(name, {})
        if trials:
            cells = {dtype: cell(trials[dtype]) if dtype in trials else nothing for dtype in wanted}
            rows.append(Row(feature=name, sentence=sentence, cells=cells))
    return Envelope(op=operation.about, rows=tuple(rows), summary=summary(rows, tuple(faults)))


def of_counts(operation: Operation, counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Envelope:
    """The envelope of an operation whose value and gradient laws all held: the features of the cases that did.

    Args:
        counts: by dtype, then ``value`` or ``gradient``, how many cases held that had a feature; under an empty name
            all that held.
    """
    rows = []
    for name, sentence in _rows(operation):
        key = "" if name == PLAIN else name
        cells = {}
        for dtype in (each for each in FLOATING if each in counts):
            of_value, of_gradient = (counts[dtype].get(aspect, {}) for aspect in ("value", "gradient"))
            cells[dtype] = Cell(
                value=RIGHT if of_value.get(key) else NOT_TRIED,
                gradient="" if "gradient" not in counts[dtype] else RIGHT if of_gradient.get(key) else NOT_TRIED,
                cases=of_value.get(key, 0) + of_gradient.get(key, 0),
            )
        if any(each.cases for each in cells.values()):
            rows.append(Row(feature=name, sentence=sentence, cells=cells))
    return Envelope(op=operation.about, rows=tuple(rows), summary=summary(rows, ()))


def _rows(operation: Operation) -> list[tuple[str, str]]:
    plain = "a call of the simplest kind: one sequence, one head, moderate gates, no states, no options"
    return [(PLAIN, plain), *((feature.name, feature.sentence) for feature in operation.features)]


def suggested(envelope: Envelope) -> list[str]:
    """The promises that rule out what is wrong or is not served; none where even a plain call is wrong."""
    operation = next(each for each in OPERATIONS.values() if each.about == envelope.op)
    features = {feature.name: feature for feature in operation.features}
    bad = [row.feature for row in envelope.rows if _bad(row)]
    if PLAIN in bad:
        return []
    return list(dict.fromkeys(excluding(features[name]) for name in bad))


def _bad(row: Row) -> bool:
    statuses = {status for cell in row.cells.values() for status in (cell.value, cell.gradient)}
    return bool(statuses & {WRONG, NOT_SERVED})


def summary(rows: Iterable[Row], faults: tuple[Fault, ...]) -> str:
    """The envelope in a sentence."""
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
        phrases = list(dict.fromkeys(_where(fault) for fault in faults)) or [" and ".join(wrong)]
        said.append(f"Right on plain calls; wrong {', and '.join(phrases)}.")
    if refused:
        said.append(f"Not served: {', '.join(refused)}.")
    if promised:
        said.append(f"Not promised: {', '.join(promised)}.")
    return " ".join(said)


def _where(fault: Fault) -> str:
    where = " and ".join(feature.phrase for feature in fault.features) or "on some calls"
    return f"in the gradient {where}" if fault.aspect == "gradient" else where
