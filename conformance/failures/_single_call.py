"""Scripts that make one call of the target in its own framework and check one array, without this suite."""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import replace
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
from conformance.judge.outcome import Found
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


def single_call_script(implementation: Implementation, law: Law, dtype: str, found: Found) -> Script | None:
    """The script; None if what broke the law is not one array of one call, or if the target returned no such array."""
    record = _call_that_broke(found)
    if record is None or record.call.operation not in OPERATIONS or isinstance(found.error, WrongResultError):
        return None
    evidence = getattr(found.error, "comparison", None)
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
            wide = {"expected": evidence.expected, "allowed": evidence.allowed, "expected_m": evidence.m}
            tensors |= {name: array(values, "float64") for name, values in wide.items() if values is not None}
        names = [record.call.operation]
        if implementation.framework == "numpy" and call["backward"] and "gradients" in "\n".join(making):
            names = [name for name in (*names, f"{record.call.operation}_backward") if name in implementation.functions]
        rest = [
            'saved = load_file(Path(__file__).with_suffix(".safetensors"))',
            *inputs,
            *making,
            *rendered(
                "check",
                law=law.id,
                where=found.counterexample.where,
                evidence=evidence,
                kind=type(evidence).__name__,
                framework=implementation.framework,
            ),
        ]
        dtypes = [x.dtype for x in tensors.values()]
        libraries = rendered("head", framework=implementation.framework, device=implementation.device, dtypes=dtypes)
        libraries += environment()
        target = target_lines(implementation.name, names, [*libraries, *rest])
    except (KeyError, ValueError):
        return None
    tuples = _tuples(record, call, target)
    libraries[1:1] = ["from collections import namedtuple"] if tuples else []
    lines = [*heading(law, dtype, found.counterexample), *libraries, *target, "", *tuples, *rest]
    marker = f"{law.id} is broken" if isinstance(found.error, LawError) else name_of(found.error)
    return Script("\n".join(lines) + "\n", tensors, marker)


def _call_that_broke(found: Found) -> CallRecord | None:
    if not isinstance(found.error, LawError):
        # The target raised, so the last call has not returned.
        return found.calls[-1] if found.calls and found.calls[-1].results is None else None
    evidence = found.error.comparison
    if evidence is None or (isinstance(evidence, Comparison) and not evidence.alone):
        return None
    for record in found.calls:
        if any(each is evidence.got for each in (record.results or {}).values()):
            return record
    return None


def _where(record: CallRecord, evidence: Any) -> str:
    """The result to check; empty if the call itself matters, or its gradient if one was requested."""
    if evidence is None:
        return _OF if record.kind == "vjp" else ""
    return next(name for name, each in (record.results or {}).items() if each is evidence.got)


def _written(implementation: Implementation, record: CallRecord) -> tuple[dict[str, Array], list[str], dict[str, Any]]:
    """The arrays to save, the lines that load them, and what the template of a call is given.

    Raises:
        KeyError, ValueError: an array or an option cannot be written down.
    """
    operation, said, framework = OPERATIONS[record.call.operation], record.call.options, implementation.framework
    tensors: dict[str, Array] = {}
    options = {name: literal(value, name, tensors) for name, value in said.items()}
    spare = list(tensors)
    arrays = {name: x for name, x in record.call.arrays.items() if isinstance(x, Array)}
    others = {name: x for name, x in record.call.arrays.items() if x is not None and name not in arrays}
    if odd := {x.dtype for x in arrays.values()} - CODES.keys():
        raise ValueError(f"an array of {min(odd)} cannot be saved")
    lines = [f"{name} = {literal(x, name, tensors)}" for name, x in others.items()]
    laid = {name: _LAYOUTS[framework][_layout(x)] for name, x in arrays.items() if _layout(x) != "contiguous"}
    if len(set(laid.values())) > 1:
        raise ValueError("arrays in several layouts")
    tensors |= {name: replace(x, layout="contiguous") for name, x in arrays.items()}
    lines += [f"{name} = laid({name})" for name in laid]
    cotangents = _cotangents(record)
    tensors |= cotangents
    elsewhere = framework == "torch" and implementation.device != "cpu"
    load = assigned([*arrays, *spare, *cotangents], f'.to("{implementation.device}")' if elsewhere else "")
    if laid:
        load += ["", "", "def laid(x):", f"    return {next(iter(laid.values()))}", "", ""]
    floating = [name for name, x in arrays.items() if x.dtype in FLOATING]
    named = [name for name, x in record.call.arrays.items() if x is not None]
    backward = ""
    if framework == "numpy" and cotangents:
        function = implementation.functions.get(f"{operation.name}_backward")
        known = [name.removeprefix("d_") for name in cotangents]
        backward = written_backward(operation, named, options, known, function)
    call = {
        "floating": floating,
        "whole": [name for name in arrays if name not in floating],
        "text": written_call(operation, named, options, said),
        "unpacked": written_result(operation, said),
        "outputs": output_names(operation, said),
        "backward": backward,
    }
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


def _tuples(record: CallRecord, call: Mapping[str, Any], target: list[str]) -> list[str]:
    """The tuple of states that the call takes, unless the target's source defines it."""
    state = OPERATIONS[record.call.operation].state
    if state is None:
        return []
    name, bound = state.type.__name__, bound_names(ast.parse("\n".join(target)))
    if f"{name}(" not in call["text"] + call["backward"] or name in bound:
        return []
    return [f'{name} = namedtuple("{name}", "{" ".join(inspect.signature(state.type).parameters)}")']
