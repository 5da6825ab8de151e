"""The records of the operations say what the three packages take, and what the cases and the reference give."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.call import Call
from conformance.base.dtypes import FLOATING, Array, accumulation
from conformance.laws import all_laws
from conformance.operations import (
    ABOUT,
    FILES,
    HELPERS,
    LAW_MODULES,
    LOG_SCALE,
    OPERATIONS,
    RECORDS,
    Argument,
    Operation,
    functions,
)
from conformance.operations import Output as Returned
from tests.house.test_packaging import EXTRA_KEYWORDS

SPECIFIED = {"simple_gla", "gla", "kimi_delta_attention"}
"""Operations that are specified and not implemented yet."""
WITH_SIGNATURES = [operation for operation in OPERATIONS.values() if operation.curried is None]
GATE_DTYPES = {"float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32")}


def package(name: str) -> Any:
    return reference if name == "reference" else pytest.importorskip(name)


def every_call(operation: Operation, dtype: str) -> list[Call]:
    small = [case for case in (*operation.rows, *operation.vector_cases, *operation.stepless) if case.steps <= 40]
    return [operation.call_of(case, dtype) for case in small]


def parameters_of(operation: Operation) -> dict[str, Any]:
    """The parameters that the record says there are: defaults by name, ``inspect.Parameter.empty`` for none."""
    none = inspect.Parameter.empty
    said: dict[str, Any] = {}
    for argument in operation.arguments:
        if argument.passed == "tuple":
            assert operation.state is not None
            said[operation.state.name] = None if argument.optional else none
        else:
            said[argument.name] = None if argument.optional else none
    return said | {option.name: option.default for option in operation.options}


@pytest.mark.parametrize("name", ["reference", "torch_impl", "jax_impl"])
@pytest.mark.parametrize("operation", WITH_SIGNATURES, ids=lambda operation: operation.name)
def test_a_record_names_the_parameters_of_the_three_packages(operation: Operation, name: str) -> None:
    if name != "reference" and operation.name in SPECIFIED:
        assert not hasattr(package(name), operation.name), "it is implemented: take it out of the list"
        return
    parameters = inspect.signature(getattr(package(name), operation.name)).parameters
    said = parameters_of(operation)
    positional = [argument.name for argument in operation.arguments if argument.passed == "position"]
    assert list(parameters)[: len(positional)] == positional
    extra = EXTRA_KEYWORDS[name].get(operation.name, ())
    assert {name: each.default for name, each in parameters.items() if name not in extra} == said
    for argument in positional:
        assert parameters[argument].kind is not inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("operation", WITH_SIGNATURES, ids=lambda operation: operation.name)
def test_a_record_names_the_parameters_of_the_reference_s_backward(operation: Operation) -> None:
    parameters = inspect.signature(getattr(reference, operation.backward_name)).parameters
    cotangents = {output.cotangent for output in operation.outputs if output.cotangent is not None}
    cotangents |= set() if operation.state is None else {operation.state.cotangent}
    options = {option.name for option in operation.options if option.changes_value}
    needed = (parameters_of(operation).keys() - {option.name for option in operation.options}) | options | cotangents
    assert needed <= parameters.keys()
    assert parameters.keys() - needed <= {option.name for option in operation.options}


@pytest.mark.parametrize("name", ["reference", "torch_impl", "jax_impl"])
def test_every_public_name_is_there(name: str) -> None:
    offered = set(package(name).__all__)
    forms = {"mlstm_recurrent", "mlstm_parallel", "mlstm_chunkwise", "mlstm_sharded", "mlstm_sharded_backward"}
    assert set(OPERATIONS) - (SPECIFIED if name != "reference" else set()) <= offered
    # JAX's is Flax's own.
    elsewhere = {"Partitioned"} if name == "jax_impl" else set()
    assert set(HELPERS) - forms - elsewhere <= offered
    if name == "reference":
        backwards = {record.backward_name for record in OPERATIONS.values()} & set(functions())
        assert forms | backwards <= offered


def test_names_are_given_once() -> None:
    names = [record.name for record in RECORDS]
    assert len(set(names)) == len(names)
    assert set(ABOUT) <= {*names, "fwbw"}


def test_the_name_of_a_scaled_state_means_the_same_in_every_operation() -> None:
    for operation in OPERATIONS.values():
        assert {output.name: LOG_SCALE.get(output.name) for output in operation.outputs} == {
            output.name: output.log_scale for output in operation.outputs
        }


def test_laws_of_recurrences_follow_from_steps_and_states() -> None:
    for name in ("split_and_carry", "packing_sum"):
        stated = {each.name for each in OPERATIONS.values() if each.stated is not None and each.recurs}
        assert {law.op for law in all_laws() if law.name == name} == {"mlstm", *stated}


def bound(operation: Operation, arrays: Mapping[str, Array], said: tuple[Argument | Returned, ...]) -> dict[str, int]:
    """The size of each letter; fails where two arrays disagree about it."""
    sizes: dict[str, int] = {}
    packed = "cu_seqlens" in arrays
    for each in said:
        if each.name not in arrays:
            continue
        letters, shape = each.shape.split(), arrays[each.name].shape
        if packed and letters[:2] == ["B", "S"]:
            letters = ["T", *letters[2:]]
        if letters[0] == "...":
            letters = [*(f"lead {axis}" for axis in range(len(shape) - len(letters) + 1)), *letters[1:]]
        if operation.name == "mlstm_fwbw_custom_grad" and each.name in ("i", "f") and len(shape) == 3:
            letters = [*letters, "1"]
        assert len(letters) == len(shape), f"{each.name} has shape {shape}, and the record says {each.shape}"
        for letter, size in zip(letters, shape, strict=True):
            number = {"1": 1, "B+1": sizes.get("B", size - 1) + 1}.get(letter, size)
            assert size == number and sizes.setdefault(letter, size) == size, f"{each.name}: {letter} is {size}"
    return sizes


def expected_dtypes(role: str, dtype: str) -> tuple[str, ...]:
    gates = GATE_DTYPES.get(dtype, (dtype,))
    return {"value": (dtype,), "gate": gates, "state": (accumulation(dtype),), "index": ("int32", "int64")}[role]


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_arrays_and_cotangents_have_the_shapes_and_dtypes_of_the_record(operation: Operation, dtype: str) -> None:
    for call in every_call(operation, dtype):
        bound(operation, call.arrays | call.cotangents, (*operation.arguments, *operation.outputs))
        assert set(call.arrays) <= {argument.name for argument in operation.arguments}
        needed = {argument.name for argument in operation.arguments if not argument.optional}
        assert needed <= set(call.arrays)
        for each in (*operation.arguments, *operation.outputs):
            array = (call.arrays | call.cotangents).get(each.name)
            assert array is None or array.dtype in expected_dtypes(each.role, dtype), each.name


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_results_and_gradients_of_the_reference_have_the_shapes_of_the_record(operation: Operation) -> None:
    backward = getattr(reference, operation.backward_name)
    for call in every_call(operation, "float64"):
        arrays = {name: x.values for name, x in call.arrays.items()}
        cotangents = {name: x.values for name, x in call.cotangents.items()}
        with np.errstate(all="ignore"):
            outputs = operation.call(getattr(reference, operation.name), arrays, call.options)
            gradients = operation.differentiate(backward, arrays, call.options, cotangents)
        returned = {name: Array(x, "float64") for name, x in outputs.items()}
        bound(operation, call.arrays | returned, (*operation.arguments, *operation.outputs))
        assert list(outputs) == list(call.cotangents)
        for name in call.primals:
            assert np.shape(gradients[name]) == arrays[name].shape, name


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_the_smallest_call_is_answered(operation: Operation) -> None:
    arrays = {name: x.values for name, x in operation.smallest("float64").items()}
    options = {} if operation.curried is None else {operation.curried: {}}
    outputs = operation.call(getattr(reference, operation.name), arrays, options)
    assert all(np.isfinite(x).all() for x in outputs.values())


@pytest.mark.parametrize("name", sorted({record.name for record in RECORDS if isinstance(record, Operation)}))
def test_laws_stand_in_a_file_of_the_record_s_name(name: str) -> None:
    (home,) = [file.__name__.rpartition(".")[2] for file in FILES if OPERATIONS[name] in file.RECORDS]
    if OPERATIONS[name].stated is not None:
        assert OPERATIONS[name].packs or OPERATIONS[name].one_step or home not in LAW_MODULES
        return
    assert importlib.import_module(f"conformance.laws.{home}").__doc__
