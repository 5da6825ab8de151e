"""One device's view of a mesh: `split_array_over_mesh`, `stack_params`, `unstack_params`, `fold_rng_over_axis`.

A law asks the adapter to run a function on every device of a mesh: a loop with ``axis_index=`` for NumPy, a loop with a
mesh for torch, ``vmap`` over named axes for JAX.
"""

import itertools
from functools import partial
from typing import Any

import numpy as np

from conformance.base.dtypes import Array, array
from conformance.laws import SINGLE, SMALL
from conformance.laws.checker import Checker, LawError
from tests.calls.mesh_cases import REPLICAS, MeshCase, splits, stacks
from tests.calls.refusals import register_uses
from tests.calls.registry import law
from tests.calls.sharding_refusals import fold_bad_uses, split_bad_uses, stack_bad_uses, unstack_bad_uses


def _expect(what: str, number: int, result: Any, expected: np.ndarray, checker: Checker) -> None:
    if result.dtype != checker.dtype:
        raise LawError(f"{what} of device {number}", f"dtype {result.dtype}, expected {checker.dtype}")
    if not np.array_equal(result.values, expected):
        raise LawError(f"{what} of device {number}", f"is {result.values.tolist()}, expected {expected.tolist()}")


_NARROW: dict[str, Any] = {"dtypes": ("float32", "bfloat16"), "compiled_dtypes": ("bfloat16",)}
_BOTH = ("stack_params", "unstack_params")


@law("split_array_over_mesh", "definition", cases=splits, strata=SMALL, quick=True, **_NARROW)
def concatenation(checker: Checker, case: MeshCase) -> None:
    """The devices' slices, concatenated, are the array, with the first of two mesh axes varying slowest; negative axes
    count from the last; no slice shares memory with the array, and the slice does not vary along other mesh axes.

    concat_d split(x)_d = x
    """
    implementation = checker.implementation
    x = array(case.values(), checker.dtype)
    split, shared = implementation.functions["split_array_over_mesh"], []

    def device(place: dict[str, Any], x: Any) -> dict[str, Any]:
        part = split(x, case.axis_name, case.axis, **place)
        shared.append(implementation.overlap(x, part))
        return {"part": part}

    parts = implementation.on_mesh(case.axes, device, [x] * (case.total * case.replicas))
    expected = np.split(x.values, case.total, axis=case.axis)
    for number, part in enumerate(parts):
        _expect("slice", number, part["part"], expected[number // case.replicas], checker)
    if any(shared):
        raise LawError("slices", "share memory with the array")


def _shards(checker: Checker, case: MeshCase) -> list[Array]:
    return [array(case.values(number), checker.dtype) for number in range(case.total * case.replicas)]


def _inverse(place: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `unstack_params`, which does not depend on where it runs."""
    return {name: x for name, x in place.items() if name == "mesh"}


@law("stack_params", "definition", cases=stacks, strata=SMALL, needs=_BOTH, quick=True, **_NARROW)
def roundtrip(checker: Checker, case: MeshCase) -> None:
    """Stacking adds an axis of size 1 that is labelled with the mesh axis, at the given position; a mask makes all
    other devices' shards zero and keeps the dtype; unstacking gives the parameters back; nothing shares memory.

    unstack(stack(p)) = p,  stack(p)_d = p_d·[d = mask_except]
    """
    implementation, labels = checker.implementation, []
    stack, unstack = (implementation.functions[name] for name in _BOTH)

    def device(place: dict[str, Any], value: Any) -> dict[str, Any]:
        stacked = stack({"p": value}, case.axis_name, axis=case.axis, mask_except=case.keep, **place)
        box = stacked["p"]
        labels.append(tuple(box.names))
        if len(labels[-1]) != len(case.shape) + 1:
            return {"stacked": box.value}
        again = unstack(stacked, case.axis_name, **_inverse(place))["p"]
        pairs = itertools.combinations((value, box.value, again), 2)
        if any(implementation.overlap(*pair) for pair in pairs):
            raise LawError("parameters", "share memory with those that were stacked, or unstacked")
        return {"stacked": box.value, "again": again}

    shards = _shards(checker, case)
    results = implementation.on_mesh(case.axes, device, shards)
    at = case.axis % (len(case.shape) + 1)
    wanted = tuple(case.axis_name if axis == at else None for axis in range(len(case.shape) + 1))
    if any(label != wanted for label in labels):
        raise LawError("names", f"are {labels[0]}, expected {wanted}")
    for number, (result, shard) in enumerate(zip(results, shards, strict=True)):
        kept = shard.values if case.keep in (None, number // case.replicas) else 0 * shard.values
        _expect("stacked", number, result["stacked"], np.expand_dims(kept, at), checker)
        _expect("unstacked", number, result["again"], kept, checker)


@law("stack_params", "definition", cases=stacks, strata=SMALL, dtypes=SINGLE, needs=_BOTH, share=0.5)
def two_axes(checker: Checker, case: MeshCase) -> None:
    """A parameter that is sharded over one axis can be stacked over another; its own label moves with its dimension,
    and unstacking either leaves the other.

    unstack_a(stack_b(stack_a(p))) = stack_b(p)
    """
    implementation = checker.implementation
    stack, unstack = (implementation.functions[name] for name in _BOTH)
    labels: list[tuple] = []

    def device(place: dict[str, Any], value: Any) -> dict[str, Any]:
        once = stack({"p": value}, REPLICAS, **place)
        twice = stack(once, case.axis_name, axis=case.axis, **place)
        inverse = _inverse(place)
        both = twice["p"]
        over = (case.axis_name, REPLICAS)
        back, other = (unstack(twice, name, **inverse)["p"] for name in over)
        labels.append(tuple(tuple(box.names) for box in (both, back, other)))
        whole = unstack({"p": back}, REPLICAS, **inverse)["p"]
        return {"twice": both.value, "back": back.value, "other": other.value, "whole": whole}

    shards = _shards(checker, case)
    results = implementation.on_mesh(case.axes, device, shards)
    once = [REPLICAS, *[None] * len(case.shape)]
    at = case.axis % (len(once) + 1)
    twice = [*once[:at], case.axis_name, *once[at:]]
    wanted = tuple(map(tuple, (twice, once, [name for name in twice if name != REPLICAS])))
    if any(label != wanted for label in labels):
        raise LawError("names", f"are {labels[0]}, expected {wanted}")
    for number, (result, shard) in enumerate(zip(results, shards, strict=True)):
        values = shard.values[None]
        twice_at = np.expand_dims(values, at)
        own = twice.index(REPLICAS)
        _expect("stacked twice", number, result["twice"], twice_at, checker)
        _expect("unstacked over the second", number, result["back"], values, checker)
        _expect("unstacked over the first", number, result["other"], np.squeeze(twice_at, own), checker)
        _expect("unstacked over both", number, result["whole"], shard.values, checker)


@law(
    "fold_rng_over_axis",
    "definition",
    rows=lambda: [MeshCase((), devices, 0, replicas=2) for devices in ((1,), (4,), (2, 3))],
)
def distinct(checker: Checker, case: MeshCase) -> None:
    """Every device along the axis, and every seed, has its own random state, the same in every call; it does not vary
    along other mesh axes.

    fold(rng)_d = fold(rng′)_e ⇔ (rng, d) = (rng′, e)
    """
    implementation = checker.implementation
    fold = implementation.functions["fold_rng_over_axis"]

    def device(seed: int, place: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"drawn": implementation.drawn(fold(implementation.rng(seed), case.axis_name, **place))}

    def drawn(seed: int) -> list[tuple]:
        nothing = [array(np.zeros(()), checker.dtype)] * (case.total * case.replicas)
        results = implementation.on_mesh(case.axes, partial(device, seed), nothing)
        return [tuple(np.ravel(result["drawn"].values).tolist()) for result in results]

    seen = {}
    seeds = range(3)
    for seed in seeds:
        states = drawn(seed)
        if seed == seeds[-1] and states != drawn(seed):
            raise LawError("", "two calls gave different random states")
        for number, state in enumerate(states):
            owner = seed, number // case.replicas
            if seen.setdefault(state, owner) != owner:
                raise LawError("", f"(seed, device) {seen[state]} and {owner} have the same random state")
    if len(seen) != len(seeds) * case.total:
        raise LawError("", "random states vary along another mesh axis")


for _rows, *_needs in (
    (split_bad_uses, "split_array_over_mesh"),
    (stack_bad_uses, "stack_params"),
    (unstack_bad_uses, "unstack_params", "stack_params"),
    (fold_bad_uses, "fold_rng_over_axis"),
):
    register_uses(
        _needs[0],
        "An invalid call raises the reference's error: an axis that does not exist or does not divide, a mask of no "
        "device, a parameter that is not an array.",
        _rows,
        needs=tuple(_needs),
    )
