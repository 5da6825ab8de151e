"""Scripts that make one call of the target in its own framework and check one array, without this suite."""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.base.dtypes import FLOATING, Array, array
from conformance.base.exceptions import name_of
from conformance.base.result_form import WrongResultError
from conformance.base.tensors import CODES
from conformance.failures._script import (
    Script,
    assigned,
    environment,
    heading,
    literal,
    output_names,
    rendered,
    written_backward,
    written_call,
    written_gradient,
    written_result,
)
from conformance.failures._target_source import bound_names, target_lines
from conformance.frameworks.implementation import Implementation
from conformance.judge.outcome import Counterexample, Scene
from conformance.laws import Law
from conformance.laws.checker import LawError
from conformance.laws.comparison import CallRecord, Comparison
from conformance.operations import OPERATIONS

_OF = "gradient of "
_LAYOUTS = {
    "torch": {
        "strided": "torch.stack([x, x], -1).flatten(-2)[..., ::2]",
        "transposed": "x.mT.contiguous().mT",
        "broadcast": "x[:1].expand_as(x)",
    },
    "numpy": {
        "strided": "np.repeat(x, 2, axis=-1)[..., ::2]",
        "reversed": "np.flip(np.flip(x).copy())",
        "transposed": "x.swapaxes(-1, -2).copy().swapaxes(-1, -2)",
        "broadcast": "np.broadcast_to(x[:1], x.shape)",
    },
    "jax": {},
}


@dataclass(frozen=True, kw_only=True)
class WrittenCall:
    """The call that a script makes, as text.

    Attributes:
        record: the arguments that the target was given.
        floating, whole: the arrays that have a gradient, and the others.
        text: the call.
        unpacked, outputs: the left side of its assignment, and the names in it.
        backward: the call of its backward, for a NumPy target.
    """

    record: CallRecord
    floating: tuple[str, ...]
    whole: tuple[str, ...]
    text: str
    unpacked: str
    outputs: list[str]
    backward: str


def single_call_script(
    implementation: Implementation, law: Law, dtype: str, found: Counterexample, scene: Scene
) -> Script | None:
    """The script; None if what broke the law is not one array of one call, or if the target returned no such array."""
    record = _call_that_broke(scene)
    if record is None or record.call.operation not in OPERATIONS or isinstance(scene.error, WrongResultError):
        return None
    evidence = getattr(scene.error, "comparison", None)
    try:
        tensors, inputs, call = _written(implementation, record)
        where = _where(record, evidence)
        of = where.removeprefix(_OF) if where.startswith(_OF) else None
        making = rendered(
            "call",
            call=call,
            kind=record.kind,
            framework=implementation.framework,
            got=f"got = {where}\n" if where and of is None else "",
            of=of,
            gradient=partial(written_gradient, OPERATIONS[record.call.operation]),
        )
        if isinstance(evidence, Comparison):
            tensors |= {"expected": _wide(evidence.expected), "allowed": _wide(evidence.allowed)}
            if evidence.m is not None:
                tensors["expected_m"] = _wide(evidence.m)
        names = [record.call.operation]
        if implementation.framework == "numpy" and call.backward and "gradients" in "\n".join(making):
            names = [name for name in (*names, f"{record.call.operation}_backward") if name in implementation.functions]
        rest = [
            'saved = load_file(Path(__file__).with_suffix(".safetensors"))',
            *inputs,
            *making,
            *rendered(
                "check",
                law=law.id,
                where=found.where,
                evidence=evidence,
                kind=type(evidence).__name__,
                framework=implementation.framework,
            ),
        ]
        libraries = _libraries(implementation, tensors)
        target = target_lines(implementation.name, names, [*libraries, *rest])
    except (KeyError, ValueError):
        return None
    tuples = _tuples(call, target)
    libraries[1:1] = ["from collections import namedtuple"] if tuples else []
    lines = [*heading(law, dtype, found), *libraries, *target, "", *tuples, *rest]
    return Script("\n".join(lines) + "\n", tensors, _marker(law, scene))


def _marker(law: Law, scene: Scene) -> str:
    if isinstance(scene.error, LawError):
        return f"{law.id} is broken"
    return name_of(scene.error)


def _call_that_broke(scene: Scene) -> CallRecord | None:
    if not isinstance(scene.error, LawError):
        # The target raised, so the last call has not returned.
        return scene.calls[-1] if scene.calls and scene.calls[-1].results is None else None
    evidence = scene.error.comparison
    if evidence is None or (isinstance(evidence, Comparison) and not evidence.alone):
        return None
    for record in scene.calls:
        if any(each is evidence.got for each in (record.results or {}).values()):
            return record
    return None


def _where(record: CallRecord, evidence: Any) -> str:
    """The result to check; empty if the call itself matters, or its gradient if one was requested."""
    if evidence is None:
        return _OF if record.kind == "vjp" else ""
    return next(name for name, each in (record.results or {}).items() if each is evidence.got)


def _wide(values: np.ndarray) -> Array:
    return array(values, "float64")


def _written(implementation: Implementation, record: CallRecord) -> tuple[dict[str, Array], list[str], WrittenCall]:
    """The arrays to save, the lines that load them, and the call.

    Raises:
        KeyError, ValueError: an array or an option cannot be written down.
    """
    tensors: dict[str, Array] = {}
    options = {name: literal(value, name, tensors) for name, value in record.call.options.items()}
    spare = list(tensors)
    given: dict[str, Any] = {}
    lines, laid = [], []
    for name, x in record.call.arrays.items():
        if not isinstance(x, Array):
            given[name] = x
            if x is not None:
                lines.append(f"{name} = {literal(x, name, tensors)}")
            continue
        if x.dtype not in CODES:
            raise ValueError(f"an array of {x.dtype} cannot be saved")
        given[name] = x
        tensors[name] = replace(x, layout="contiguous")
        if _layout(x) != "contiguous":
            lines.append(f"{name} = laid({name})")
            laid.append(_LAYOUTS[implementation.framework][_layout(x)])
    if len(set(laid)) > 1:
        raise ValueError("arrays in several layouts")
    cotangents = _cotangents(record)
    tensors |= cotangents
    place = (
        f'.to("{implementation.device}")'
        if implementation.framework == "torch" and implementation.device != "cpu"
        else ""
    )
    load = assigned([*(n for n in given if isinstance(given[n], Array)), *spare, *cotangents], place)
    if laid:
        load += ["", "", "def laid(x):", f"    return {laid[0]}", "", ""]
    arrays = {name: x for name, x in given.items() if isinstance(x, Array)}
    floating = tuple(name for name, x in arrays.items() if x.dtype in FLOATING)
    operation = OPERATIONS[record.call.operation]
    unpacked = written_result(operation, record.call.options)
    named = [name for name, x in given.items() if x is not None]
    backward = ""
    if implementation.framework == "numpy":
        function = implementation.functions.get(f"{operation.name}_backward")
        known = [name.removeprefix("d_") for name in cotangents]
        backward = written_backward(operation, named, options, known, function) if known else ""
    whole = tuple(name for name in arrays if name not in floating)
    text = written_call(operation, named, options, record.call.options)
    outputs = output_names(operation, record.call.options)
    call = WrittenCall(
        record=record,
        floating=floating,
        whole=whole,
        text=text,
        unpacked=unpacked,
        outputs=outputs,
        backward=backward,
    )
    return tensors, [*load, *lines], call


def _layout(x: Array) -> str:
    least = {"contiguous": 0, "transposed": 2}.get(x.layout, 1)
    return x.layout if x.values.ndim >= least else "contiguous"


def _cotangents(record: CallRecord) -> dict[str, Array]:
    """The cotangents in the dtypes of their outputs, if those were returned, with zeros for omitted ones.

    Raises:
        ValueError: an output has a dtype in which no cotangent can be saved.
    """
    results = {name: y for name, y in (record.results or {}).items() if not name.startswith(_OF)}
    if record.kind not in ("vjp", "outputs"):
        return {}
    if odd := {y.dtype for y in results.values()} - CODES.keys():
        raise ValueError(f"an array of {min(odd)} cannot be saved")
    given = {
        name: array(x.values, results[name].dtype if name in results else x.dtype)
        for name, x in record.call.cotangents.items()
    }
    zeros = {name: array(np.zeros(y.shape), y.dtype) for name, y in results.items() if name not in given}
    return {f"d_{name}": x for name, x in {**given, **zeros}.items()}


def _tuples(call: WrittenCall, target: list[str]) -> list[str]:
    """The tuple of states that the call takes, unless the target's source defines it."""
    state = OPERATIONS[call.record.call.operation].state
    if state is None:
        return []
    name, bound = state.type.__name__, bound_names(ast.parse("\n".join(target)))
    if f"{name}(" not in call.text + call.backward or name in bound:
        return []
    return [f'{name} = namedtuple("{name}", "{" ".join(inspect.signature(state.type).parameters)}")']


def _libraries(implementation: Implementation, tensors: Mapping[str, Array]) -> list[str]:
    """The head of a script: its imports apart from the target, and the settings of the framework."""
    dtypes = [x.dtype for x in tensors.values()]
    head = rendered("head", framework=implementation.framework, device=implementation.device, dtypes=dtypes)
    return [*head, *environment()]
