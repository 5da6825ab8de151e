"""The choice of laws, dtypes and number of cases for a target."""

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import UsageError
from conformance.base.options import (
    EXAMPLES,
    INTERPRETED_EXAMPLES,
    INTERPRETED_STEPS,
    INTERPRETERS,
    MAX_STEPS,
    QUICK_EXAMPLES,
    RunOptions,
    time_limit,
)
from conformance.frameworks.implementation import Implementation
from conformance.judge.known_failures import read
from conformance.laws import Law, all_laws
from conformance.operations import OPERATIONS, add_specification

if TYPE_CHECKING:
    from conformance.frameworks.targets import TargetInfo


def options_of(
    *,
    known_failures: Path | None = None,
    examples: int | None = None,
    max_steps: int | None = None,
    timeout: float | None = None,
    quick: bool = False,
    sizes: str | None = None,
    spec: Path | None = None,
    ops: tuple[str, ...] = (),
    **given: Any,
) -> RunOptions:
    """The options of a run; those that were not given depend on the circumstances.

    Args:
        known_failures: the file of known failures.
        sizes: ``B=2,S=4096,K=128``: the sizes of all calls; None for those that the suite chooses.
        timeout: seconds that one case may take; None for the default, which is shorter in a quick run.
        spec: a file that states recurrences.
        quick, ops, given: other fields of `RunOptions`.

    Raises:
        UsageError: a name is unknown, no law is left, or a file cannot be read.
    """
    stated = () if spec is None else tuple(add_specification(spec))
    options = RunOptions(
        spec=spec,
        ops=tuple(ops) or stated,
        known_failures=() if known_failures is None else read("known-failures", known_failures),
        timeout=time_limit(timeout, quick=quick, sizes=sizes is not None),
        quick=quick,
        sizes={} if sizes is None else _sizes(sizes),
        **given,
    )
    slow = interpreted(options.kernel_backend, options.device)
    few = INTERPRETED_EXAMPLES if slow else QUICK_EXAMPLES if options.quick else EXAMPLES
    options = replace(
        options,
        examples=examples or few,
        max_steps=max_steps or options.sizes.get("S") or (INTERPRETED_STEPS if slow else MAX_STEPS),
    )
    selected(options)
    return options


SIZES = ("B", "S", "N", "K", "V", "H", "chunk_size")


def _sizes(text: str) -> dict[str, int]:
    """The sizes that ``--sizes`` names.

    Raises:
        UsageError: it is not a list of known sizes, each with a number of at least 1.
    """
    own = (record.stated.letters for record in OPERATIONS.values() if record.stated is not None)
    known = dict.fromkeys((*SIZES, *chain.from_iterable(own)))
    found = {}
    for part in text.split(","):
        name, _, number = (each.strip() for each in part.partition("="))
        if name not in known or name in found or not number.isdigit() or not int(number):
            raise UsageError(
                f"--sizes {text!r}: {part.strip()!r} is not one of {', '.join(known)} with a number of at least 1, "
                "each once; give for example --sizes B=2,S=4096,N=16,K=128,V=256"
            )
        found[name] = int(number)
    return found


def interpreted(kernel_backend: str | None, device: str) -> bool:
    """Whether the requested kernel backend runs under its interpreter here."""
    return device == "cpu" and os.environ.get(INTERPRETERS.get(kernel_backend or "", ""), "") not in ("", "0")


def selected(options: RunOptions) -> list[Law]:
    """The laws that the options select.

    Raises:
        UsageError: a name is unknown, or no law is left.
    """
    laws = all_laws()
    ops = list(dict.fromkeys(law.op for law in laws))
    for op in options.ops:
        if op not in ops:
            raise UsageError(f"there is no law about {op!r}; name one of {', '.join(ops)} after --op")
    known = {law.name for law in laws} | {law.id for law in laws}
    for name in options.laws:
        if name not in known:
            raise UsageError(f"there is no law {name!r}; `gatespec laws` lists the names for --law")
    kept = [
        law
        for law in laws
        if (not options.ops or law.op in options.ops)
        and (not options.laws or law.name in options.laws or law.id in options.laws)
        and (law.quick or not options.quick)
        and (law.usual or not options.sizes)
        and not (options.only == "gradients" and (law.forward or law.rows is not None))
    ]
    if not kept and options.sizes:
        raise UsageError("no law that --op and --law keep is tried at chosen sizes; leave out --sizes")
    if not kept and options.quick:
        raise UsageError("no law that --op and --law keep is part of a quick run; leave out --quick")
    if not kept and options.only:
        raise UsageError(f"no law that --op and --law keep is about {options.only}; leave out --only")
    if not kept:
        raise UsageError(
            f"no law is named {' or '.join(options.laws)} among those about {' or '.join(options.ops)}; "
            "`gatespec laws` lists them"
        )
    return kept


def agenda(implementation: "Implementation | TargetInfo", options: RunOptions) -> list[tuple[Law, str]]:
    """Every law with every dtype in which it is to be tried."""
    pairs = []
    for law in selected(options):
        usual = law.usual_dtypes(implementation.eager)
        if (options.quick or options.sizes) and not options.dtypes:
            usual = tuple(dtype for dtype in usual if dtype == "float32")
        # A target that compiles is tried in fewer dtypes unless more are requested; a law is never tried in a dtype in
        # which it does not hold (exact eighths, compositions of calls, the text of an error).
        kept = [dtype for dtype in FLOATING if dtype in options.dtypes and dtype in law.dtypes]
        dtypes = kept if options.dtypes else [dtype for dtype in FLOATING if dtype in usual]
        pairs += [(law, dtype) for dtype in dtypes]
    return pairs


def why_not(implementation: Implementation, law: Law, dtype: str) -> str | None:
    """The reason why a law does not apply to a target; None if it does."""
    absent = [name for name in law.functions if name not in implementation.functions]
    if absent:
        return f"absent: {', '.join(absent)}"
    return (
        implementation.cannot(dtype)
        or (law.gradient and implementation.no_gradient(law.gradient))
        or (law.skip and law.skip(implementation))
        or None
    )
