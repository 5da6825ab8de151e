"""The data about an operation, each stated once: `Operation`, and the small records that it consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import STRATA, RecurrenceCases
from conformance.oracle import Values
from conformance.specification.recurrence import StateTuple
from conformance.tolerance.budget import Expected, Precision

Arrays = Mapping[str, Array]
Options = Mapping[str, Any]
Strategy = Callable[..., st.SearchStrategy]
"""Draws cases within `Limits`; some take fields that are fixed, by keyword."""
Role = Literal["value", "gate", "state", "index"]


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An array that an operation takes.

    Attributes:
        name: its name in laws, cases and test vectors; if it is an argument of its own, also the argument's name.
        shape: letters of the specification, separated by blanks; ``...`` for any leading axes. With ``cu_seqlens``, the
            two axes ``B S`` of a dense call are the one axis ``T``.
        role: determines its dtype: that of the call's values, that or float32 (``gate``), the accumulation dtype
            (``state``), or an integer dtype (``index``).
        passed: by position, by keyword, or within the tuple of states (see `StateTuple`).
        optional: whether a call may omit it; optional positional arrays are given or omitted together.
        continues: the final state from which a later call continues by this argument.
    """

    name: str
    shape: str
    role: Role = "value"
    passed: Literal["position", "keyword", "tuple"] = "position"
    optional: bool = False
    continues: str | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.shape.split())


@dataclass(frozen=True, kw_only=True)
class Output:
    """An array that an operation returns.

    Attributes:
        name: the name of the output and of its cotangent.
        shape, role: as in `Argument`.
        cotangent: the keyword by which a target's own backward takes its cotangent; None if it is part of a tuple.
        log_scale: the state that is the logarithm of its unit: it stands for itself times exp of that state, and is
            compared in the units of its correct value.
    """

    name: str
    shape: str
    role: Role = "value"
    cotangent: str | None = None
    log_scale: str | None = None


@dataclass(frozen=True, kw_only=True)
class Option:
    """An argument that is not an array.

    Attributes:
        default: the value that a call without the option means.
        changes_value: whether results may depend on it; if not, a target's own backward need not take it.
        portable: whether it has a meaning in other languages, so that test vectors name it.
        refused: values that a valid dense call must not have, each by what is wrong with it.
        sentence: a clause that is true of calls that give it, ``a bound is given``: they then have a feature with the
            name of the option; empty if the features of the operation say it.
        example: its value in a call to which that feature is added.
    """

    name: str
    default: Any = None
    changes_value: bool = True
    portable: bool = True
    refused: Mapping[str, Any] = field(default_factory=dict)
    sentence: str = ""
    example: Any = None


MAX_SEQLEN = Option(
    name="max_seqlen",
    changes_value=False,
    portable=False,
    refused={"`max_seqlen` without `cu_seqlens`": 3},
)
BACKEND = Option(
    name="kernel_backend",
    changes_value=False,
    portable=False,
    refused={"an unknown kernel backend": "no such backend", "a number for a kernel backend": 3},
)


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The call of a target's own backward pass, if the target does not differentiate through its framework.

    Its arguments are those of the call, then the cotangents by keyword.

    Attributes:
        method: a method of the object that the curried function returns; None if the backward is a separate function,
            ``X_backward``.
        in_order: whether gradients come as a tuple in the order of the arguments; otherwise as a dict by name.
    """

    method: str | None = None
    in_order: bool = False


def make_call(operation: str, case: Any, dtype: str) -> Call:
    """The call that a case describes, for cases that describe it completely."""
    return Call(
        operation=operation,
        arrays=case.arrays(dtype),
        options=case.options(),
        cotangents=case.cotangent_arrays(dtype),
        steps=case.steps,
    )


def no_cut_slack(precision: Precision, arrays: Arrays, results: Arrays) -> Values:
    return {}


@dataclass(frozen=True, kw_only=True)
class Public:
    """A public function or layer.

    Attributes:
        name: its public name.
        about: the name of its laws, by which ``--op`` selects them; empty if it has no laws of its own.
        helpers: public types that it takes or returns, and alternative forms of it, which a target need not have.
        stated: its cases, if it is a stated recurrence: all its laws follow from its record.
    """

    name: str
    about: str
    helpers: tuple[str, ...] = ()
    stated: RecurrenceCases | None = None


@dataclass(frozen=True, kw_only=True)
class Record(Public):
    """All data of an operation that maps named arrays to named arrays; `Operation` adds what follows from it.

    Attributes:
        arguments, outputs: in the order of the call and of its result.
        returns: the structure of the result: the names of the outputs, with a tuple for those that are returned in one.
        options: in the order in which a call names them.
        state: the argument that holds the arrays passed within a tuple.
        state_switch: the option that says whether final states are returned; without such an option they always are.
        switched_on: the value of the state switch if a case does not give one.
        curried: the option of a first call that returns the function of the arrays.
        backward: how a target's own backward is called.
        cases: strategies that draw cases, by name; ``dense`` and, where it takes ``cu_seqlens``, ``packed``. Three more
            where they differ: ``gradient`` and ``packed gradient``, cases whose gradient the definition alone
            determines, and ``cut``, cases that are cut at a share ``cut`` of their steps, for targets that compile per
            shape. One step has ``steps`` too, sequences that are computed step by step.
        make_call: makes the call of the operation with this name that a case stands for, in a dtype.
        value, gradient: the oracle's answer for the arrays of a call, dense or packed.
        immaterial: the fields of a case on which no value depends, each with one value that stands for all.
        rows: a few small cases, the first of them dense, for laws that are expensive to try.
        vector_cases: the cases of test vectors, the most ordinary first: lengths that may cause errors (0, 1, odd,
            prime, beyond the end of a chunk, over a thousand), every regime of gates, every kind of state and of
            option.
        never_0: the sizes that must be at least 1.
        extremes: cases with extreme gates; None if there are no gates.
        strata: the sizes on which the shared laws are tried.
        usual: whether its cases can have the sizes that people use (`conformance.cases._usual`).
        cut_slack: the additional error that the gradient of a cut sequence may have beyond the uncut one's tolerance,
            given its precision, its arrays, and the states at the cut with their gradients.
        one_step: of one step of a recurrence, what it has of whole sequences (`OneStep`).
    """

    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    returns: tuple[str | tuple[str, ...], ...]
    cases: Mapping[str, Strategy]
    value: Callable[[Values, Options, Precision], Expected]
    gradient: Callable[[Values, Options, Values, Precision], Expected]
    rows: tuple[Any, ...]
    vector_cases: tuple[Any, ...]
    options: tuple[Option, ...] = ()
    state: StateTuple | None = None
    state_switch: str | None = None
    switched_on: bool = True
    curried: str | None = None
    backward: Backward = Backward()
    make_call: Callable[[str, Any, str], Call] = make_call
    immaterial: Mapping[str, Any] = field(default_factory=dict)
    never_0: tuple[str, ...] = ()
    extremes: Strategy | None = None
    strata: tuple[str, ...] = STRATA
    usual: bool = False
    cut_slack: Callable[[Precision, Arrays, Arrays], Values] = no_cut_slack
    one_step: Any = None
