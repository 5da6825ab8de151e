"""Which laws are tried on a target, and in which dtypes."""

from conformance.dtypes import FLOATING
from conformance.implementation import Implementation, UsageError
from conformance.laws import Law, all_laws
from conformance.options import RunOptions


def selected(options: RunOptions) -> list[Law]:
    """The laws that the options keep.

    Raises:
        UsageError: a name is unknown, or nothing is left.
    """
    laws = all_laws()
    ops = list(dict.fromkeys(law.op for law in laws))
    for op in options.ops:
        if op not in ops:
            raise UsageError(f"there is no law about {op!r}; name one of {', '.join(ops)} after --op")
    known = {law.name for law in laws} | {law.id for law in laws}
    for name in options.laws:
        if name not in known:
            raise UsageError(f"there is no law {name!r}; `python -m conformance laws` lists the names for --law")
    kept = [
        law
        for law in laws
        if (not options.ops or law.op in options.ops)
        and (not options.laws or law.name in options.laws or law.id in options.laws)
        and (law.quick or not options.quick)
    ]
    if not kept and options.quick:
        raise UsageError("no law that --op and --law keep is part of a quick run; leave out --quick")
    if not kept:
        raise UsageError(
            f"no law is named {' or '.join(options.laws)} among those about {' or '.join(options.ops)}; "
            "`python -m conformance laws` lists them"
        )
    return kept


def agenda(implementation: Implementation, options: RunOptions) -> list[tuple[Law, str]]:
    """Every law with every dtype in which it is to be tried."""
    pairs = []
    for law in selected(options):
        usual = law.usual_dtypes(implementation.eager)
        if options.quick and not options.dtypes:
            usual = tuple(dtype for dtype in usual if dtype == "float32")
        # A target that compiles is tried in fewer dtypes unless more are asked for; none is asked for that a law does
        # not hold in (exact eighths, compositions of calls, the text of an error).
        kept = [dtype for dtype in FLOATING if dtype in options.dtypes and dtype in law.dtypes]
        dtypes = kept if options.dtypes else [dtype for dtype in FLOATING if dtype in usual]
        pairs += [(law, dtype) for dtype in dtypes]
    return pairs


def why_not(implementation: Implementation, law: Law, dtype: str) -> str | None:
    """Why a law does not apply to a target, None where it does."""
    absent = [name for name in law.functions if name not in implementation.functions]
    if absent:
        return f"absent: {', '.join(absent)}"
    return (
        implementation.cannot(dtype)
        or (law.gradient and implementation.no_gradient(law.gradient))
        or (law.skip and law.skip(implementation))
        or None
    )
