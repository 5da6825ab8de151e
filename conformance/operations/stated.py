"""A stated recurrence as an operation, and files that state some."""

import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.exceptions import UsageError, text_of
from conformance.cases import GATES as OF_TWO_GATES
from conformance.cases import LONG_STEPS, RecurrenceCases
from conformance.cases._recurrence import OPTION
from conformance.operations._one_step import OneStep
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Option, Output, Role, Strategy
from conformance.specification.recurrence import Given, Recurrence


def operation_of(stated: Recurrence, **more: Any) -> Operation:
    """The operation that follows from a recurrence.

    Args:
        more: fields of the record that say more than follows.
    """
    cases = RecurrenceCases(stated)
    in_tuple = stated.state_tuple is not None
    arguments = [_argument(name, given, stated.wide_gates, in_tuple) for name, given in stated.arguments.items()]
    if stated.packs:
        arguments.append(Argument(name="cu_seqlens", shape="B+1", role="index", passed="keyword", optional=True))
    outputs = [
        Output(
            name=name,
            shape=shape,
            role="state" if name in stated.states else "value",
            cotangent=None if in_tuple and name in stated.states else f"d{name}",
            log_scale=stated.log_scales.get(name),
        )
        for name, shape in stated.shapes.items()
    ]
    small = cases.kind(B=2, S=5, state=bool(stated.states), seed=11)
    packed = replace(small, B=3, S=0, lengths=(3, 0, 4), seed=12)
    regimes = OF_TWO_GATES if stated.stabilised else ()
    narrow = {letter: 1 if letter == "N" else 2 for letter in cases.letters}
    options = more.get("options") or tuple(Option(name=name, default=of[0]) for name, of in stated.options.items())
    portable = {option.name for option in options if option.portable}
    others = [
        *({"S": S} for S in (0, 1)),
        *({OPTION + name: each} for name in stated.options if name in portable for each in stated.options[name][1:]),
        *({"left_out": (name,)} for name, given in stated.inputs.items() if given.optional),
        *([{"N": 4, "serves": cases.serves}] if stated.grouped else []),
        {"S": 13, "gates": "saturated"},
        {**narrow, "S": LONG_STEPS, "B": 1, "gates": "remembering", "cotangents": "one step"},
        {"S": 7, "gates": "extreme", "scale": 0.1},
        {"S": 13, "state": False, "cotangents": "output only"},
        *({"S": 9, "gates": gates, "empty": gates == "closed"} for gates in regimes),
    ]
    strategies: dict[str, Strategy] = {"dense": cases.dense, "cut": cases.halved}
    if stated.packs:
        strategies["packed"] = cases.packed
    if stated.gradient_options:
        none = {OPTION + name: stated.options[name][0] for name in stated.gradient_options}
        strategies |= {"gradient": partial(cases.dense, **none), "packed gradient": partial(cases.packed, **none)}
    fields: dict[str, Any] = {
        "options": options,
        "usual": True,
        "cases": strategies,
        "immaterial": {"layout": "contiguous", "room": None, "cut": 0.0},
        "rows": (small, packed) if stated.packs else (small,),
        "vector_cases": (small, *(replace(small, **each) for each in others), *((packed,) if stated.packs else ())),
        "never_0": tuple(letter for letter in cases.letters if letter not in "BS"),
        "extremes": cases.extremes if any(given.unbounded for given in stated.arguments.values()) else None,
    }
    return Operation(
        name=stated.name,
        about=stated.name,
        arguments=tuple(arguments),
        outputs=tuple(outputs),
        returns=(*stated.outputs, tuple(stated.states)) if in_tuple else stated.results,
        state=stated.state_tuple,
        state_switch=stated.state_switch or None,
        value=partial(oracle.value_of, stated),
        gradient=partial(oracle.gradient_of, stated),
        stated=cases,
        **{**fields, **more},
    )


def step_of(whole: Operation, name: str, options: Sequence[str], names: Mapping[str, str]) -> Operation:
    """The record of one step of a recurrence, a function whose arrays are all given.

    Args:
        name: of the function.
        options: the names of those that a step has too.
        names: what a step calls the states that it takes, by the argument of whole sequences.
    """
    assert whole.stated is not None
    cases, of_step = whole.stated, tuple(option for option in whole.options if option.name in options)
    others = {OPTION + each: of[0] for each, of in cases.recurrence.options.items() if each not in options}
    fixed: dict[str, Any] = {"left_out": (), "state": True, **others}
    alone = {"B": 2, "S": 1, "lengths": None, **fixed}
    return OneStep(whole, of_step, lambda case, dtype: replace(case, **fixed).arrays(dtype), names).record(
        name=name,
        about=name,
        cases={
            "dense": partial(cases.dense, S=1, **fixed),
            "steps": partial(cases.dense, layout="contiguous", **fixed),
        },
        rows=(replace(whole.rows[0], **alone),),
        vector_cases=tuple(dict.fromkeys(replace(case, **alone) for case in whole.vector_cases)),
        extremes=None if whole.extremes is None else partial(cases.extremes, S=1, **fixed),
    )


def _argument(name: str, given: Given, wide_gates: bool, in_tuple: bool) -> Argument:
    by_keyword = given.role == "state" or given.optional
    role: Role = "state" if given.role == "state" else "gate" if given.gates and wide_gates else "value"
    return Argument(
        name=name,
        shape=given.shape,
        role=role,
        passed="tuple" if in_tuple and given.role == "state" else "keyword" if by_keyword else "position",
        optional=given.optional,
        continues=given.final or None,
    )


def read(path: Path) -> list[Operation]:
    """The recurrences that a file states, each checked (`check`).

    Raises:
        UsageError: it cannot be imported, states none, or one of them is not right.
    """
    found = [x for x in vars(_imported(path)).values() if isinstance(x, Recurrence)]
    if not found:
        raise UsageError(f"--spec {path} states no recurrence; it defines a `Recurrence` of conformance.specification")
    operations = []
    for stated in dict.fromkeys(found):
        try:
            operation = operation_of(stated)
            check(operation)
        except Exception as error:
            raise UsageError(f"--spec {path}: {stated.name}: {_line(path, error)}{text_of(error)}") from error
        operations.append(operation)
    return operations


def _imported(path: Path) -> ModuleType:
    name = f"stated_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}; --spec names one that states a recurrence")
    if spec is None or spec.loader is None:
        raise UsageError(f"--spec {path} is no file of Python; its name ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--spec {path} cannot be imported: {_line(path, error)}{text_of(error)}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _line(path: Path, error: BaseException) -> str:
    """``line 12: `` where an error passed through a line of the file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve() or frame.filename == str(path)]
    return f"line {own[-1]}: " if own else ""


TRIED = 1e-6
"""The change of an array by which finite differences are taken."""
EQUAL = 1e-9
"""How far the values of a spelling may be off."""
AGREED = 1e-4
"""How far they may be off, in units of the largest element of a gradient."""
OVERFLOWS = (
    "on arrays of about 1000, where the results are finite: something overflows, or a slope is infinite, as that of a "
    "square root at 0; σ is `sigmoid` of conformance.specification, log(1 + exp(x)) is np.logaddexp(0, x)"
)


def check(operation: Operation) -> None:
    """Try a stated recurrence: its results have their shapes, it rounds, and its gradients are those of the value.

    Raises:
        ValueError: one of these is not so.
    """
    assert operation.stated is not None
    stated = operation.stated.recurrence
    for case in (*operation.rows, replace(operation.rows[0], scale=1e3, gates="saturated")):
        call = operation.call_of(case, "float64")
        arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
        results = stated.called(stated.right[0](), arrays, call.options)
        for name, x in results.items():
            if np.shape(x) != cotangents[name].shape:
                raise ValueError(f"{name} has shape {list(np.shape(x))}; expected {list(cotangents[name].shape)}")
            if case.scale <= 1 and not np.isfinite(x).all():
                raise ValueError(f"{name} is not finite on arrays of about 1; `length` bounds vectors that let it grow")
        _expect_causal(stated, arrays, call.options, results)
        for spelling, version in zip(stated.spellings, stated.right[1:], strict=True):
            for name, x in stated.called(version(), arrays, call.options).items():
                if np.shape(x) != np.shape(results[name]) or not np.allclose(x, results[name], rtol=EQUAL, atol=EQUAL):
                    raise ValueError(f"{name} of the spelling {spelling!r} is not that of the step")
        if case.scale > 1 and all(np.isfinite(x).all() for x in results.values()):
            _expect_no_nan(stated, arrays, call.options, cotangents, OVERFLOWS)
        if case.scale > 1:
            continue
        expected = operation.gradient(arrays, call.options, cotangents, oracle.PRECISE)
        tape = oracle.by_tape(stated, stated.right[0](), arrays, call.options, cotangents)
        for name, x in expected.values.items():
            np.asarray(expected.slack[name])
            direction = np.random.default_rng(0).normal(size=x.shape)
            measured = _slope(stated, arrays, call.options, cotangents, {name: direction})
            for whose, of in (("the tape", tape[name]), ("`backward`", x)):
                off = abs(measured - float((of * direction).sum()))
                if not off <= AGREED * (1 + float(np.abs(tape[name]).max(initial=0.0))):
                    raise ValueError(f"the gradient of {name} by {whose} is not that of the value: off by {off:.1g}")
    unbounded = [name for name, given in stated.arguments.items() if given.unbounded]
    ends = (
        f"for {' and '.join(unbounded)} of ±∞ or about ±10,000; kernels are judged there, unless "
        "`gate(shape, low, high)` bounds it"
    )
    for seed in range(3) if operation.extremes is not None else ():
        call = operation.call_of(replace(operation.rows[0], gates="extreme", seed=seed), "float64")
        _expect_no_nan(stated, oracle.values(call.arrays), call.options, oracle.values(call.cotangents), ends)


def _expect_no_nan(
    stated: Recurrence, arrays: oracle.Values, options: Mapping[str, Any], cotangents: oracle.Values, said: str
) -> None:
    """Raise `ValueError`, which says where, if a result or a gradient is NaN."""
    with np.errstate(all="ignore"):
        results = stated.called(stated.right[0](), arrays, options)
        gradients = oracle.by_tape(stated, stated.right[0](), arrays, options, cotangents)
    for name, x in (*results.items(), *((f"the gradient of {name}", x) for name, x in gradients.items())):
        if np.isnan(x).any():
            raise ValueError(f"{name} is NaN {said}")


def _expect_causal(
    stated: Recurrence, arrays: oracle.Values, options: Mapping[str, Any], results: oracle.Values
) -> None:
    """Raise `ValueError` if an output depends on a later step."""
    later = {name: x.copy() for name, x in arrays.items()}
    for name, given in stated.inputs.items():
        if given.stepped and name in later:
            later[name][-1 if "cu_seqlens" in arrays else np.s_[:, -1]] = 0.5
    changed = stated.called(stated.right[0](), later, options)
    for name in stated.outputs:
        before = np.s_[:-1] if "cu_seqlens" in arrays else np.s_[:, :-1]
        if not np.array_equal(changed[name][before], results[name][before], equal_nan=True):
            raise ValueError(f"{name} depends on arrays of a later step")


def _slope(
    stated: Recurrence,
    arrays: oracle.Values,
    options: Mapping[str, Any],
    cotangents: oracle.Values,
    directions: oracle.Values,
) -> float:
    """The slope of Σ ⟨cotangent, result⟩ along some directions, by finite differences."""
    ends = []
    for change in (TRIED, -TRIED):
        moved = {**arrays, **{name: arrays[name] + change * along for name, along in directions.items()}}
        results = stated.called(stated.right[0](), moved, options)
        ends.append(sum(float((results[name] * d).sum()) for name, d in cotangents.items()))
    return (ends[0] - ends[1]) / (2 * TRIED)
