"""What one device of a mesh sees: `split_array_over_mesh`, `stack_params`, `unstack_params`, `fold_rng_over_axis`.

A law asks the adapter to run a function as every device along one axis: a loop with ``axis_index=`` for NumPy, a loop
with a mesh for torch, ``vmap`` over a named axis for JAX.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases import SEEDS, Plan, generator, register
from conformance.dtypes import array
from conformance.laws import law
from conformance.trial import LawError, Trial

AXIS = "model"


@register()
@dataclass(frozen=True)
class MeshCase:
    """An array of ``shape`` on an axis of ``devices`` devices.

    Attributes:
        axis: to split along, or at which to stack; may be negative.
        keep: the one device that keeps its values when stacking, or None for all.
    """

    shape: tuple[int, ...]
    devices: int
    axis: int
    keep: int | None = None
    seed: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.devices

    def describe(self) -> str:
        kept = "" if self.keep is None else f", mask_except={self.keep}"
        return f"shape {list(self.shape)} on {self.devices} devices, axis {self.axis}{kept}, seed={self.seed}"

    def values(self, *salt: int) -> np.ndarray:
        return generator(self.seed, 40, *salt).normal(size=self.shape)


@st.composite
def _splits(draw: Any, plan: Plan) -> MeshCase:
    devices = draw(st.sampled_from((2, 1, 3, 4)))
    shape = [draw(st.sampled_from((1, 2, 3))) for _ in range(draw(st.sampled_from((1, 2, 3))))]
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] *= devices
    return MeshCase(tuple(shape), devices, axis, seed=draw(SEEDS))


@st.composite
def _stacks(draw: Any, plan: Plan) -> MeshCase:
    devices = draw(st.sampled_from((2, 1, 3, 4)))
    shape = tuple(draw(st.sampled_from((1, 2, 3))) for _ in range(draw(st.sampled_from((1, 2, 0, 3)))))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    keep = draw(st.sampled_from((None, *range(devices))))
    return MeshCase(shape, devices, axis, keep, draw(SEEDS))


@law(
    "split_array_over_mesh",
    "The devices' slices, put together, are the array; negative axes count from the last.",
    "concat_d split(x)_d = x",
    name="concatenation",
    cases=_splits,
    strata=("small",),
    dtypes=("float32", "bfloat16"),
    share=0.5,
)
def concatenation(trial: Trial, case: MeshCase) -> None:
    implementation = trial.implementation
    x = array(case.values(), trial.dtype)
    split = implementation.functions["split_array_over_mesh"]

    def device(place: dict[str, Any], x: Any) -> dict[str, Any]:
        return {"part": split(x, AXIS, case.axis, **place)}

    parts = [part["part"] for part in implementation.on_mesh({AXIS: case.devices}, device, [x] * case.devices)]
    for number, part in enumerate(parts):
        if part.dtype != trial.dtype:
            raise LawError(f"slice of device {number}", f"dtype {part.dtype}, expected {trial.dtype}")
    whole = np.concatenate([part.values for part in parts], axis=case.axis)
    if not np.array_equal(whole, x.values):
        raise LawError("slices", "put together are not the array")


@law(
    "split_array_over_mesh",
    "An axis that the mesh axis does not divide, or that the array has not, is a ValueError.",
    "size mod devices ≠ 0 ⇒ ValueError",
    name="bad_calls",
    rows=lambda: [MeshCase((3, 5), 2, 1), MeshCase((4, 4), 2, 2), MeshCase((4, 4), 2, -3)],
    dtypes=("float32",),
)
def split_bad_calls(trial: Trial, case: MeshCase) -> None:
    split = trial.implementation.functions["split_array_over_mesh"]
    x = array(case.values(), trial.dtype)
    try:
        trial.implementation.on_mesh(
            {AXIS: case.devices}, lambda place, x: {"part": split(x, AXIS, case.axis, **place)}, [x] * case.devices
        )
    except ValueError as error:
        if "split_array_over_mesh" not in str(error):
            raise LawError("", f"said {str(error)[:200]!r}; expected a message of split_array_over_mesh") from error
    except Exception as error:
        raise LawError("", f"raised {type(error).__name__}: {str(error)[:200]}; expected ValueError") from error
    else:
        raise LawError("", f"accepted {case.describe()}")


@law(
    "stack_params",
    "Stacking adds an axis of size 1 that is labelled with the mesh axis, at the place asked for; a mask makes all "
    "other devices' shards zero and keeps the dtype; unstacking gives the parameters back.",
    "unstack(stack(p)) = p,  stack(p)_d = p_d·[d = mask_except]",
    name="roundtrip",
    cases=_stacks,
    strata=("small",),
    dtypes=("float32", "bfloat16"),
    needs=("stack_params", "unstack_params"),
    share=0.5,
)
def roundtrip(trial: Trial, case: MeshCase) -> None:
    implementation = trial.implementation
    stack, unstack = (implementation.functions[name] for name in ("stack_params", "unstack_params"))
    shards = [array(case.values(number), trial.dtype) for number in range(case.devices)]
    labels = []

    def device(place: dict[str, Any], value: Any) -> dict[str, Any]:
        stacked = stack({"p": value}, AXIS, axis=case.axis, mask_except=case.keep, **place)
        labels.append(tuple(stacked["p"].names))
        inverse = {name: x for name, x in place.items() if name == "mesh"}
        return {"stacked": stacked["p"].value, "again": unstack(stacked, AXIS, **inverse)["p"]}

    results = implementation.on_mesh({AXIS: case.devices}, device, shards)
    at = case.axis % (len(case.shape) + 1)
    expected_labels = tuple(AXIS if axis == at else None for axis in range(len(case.shape) + 1))
    if any(label != expected_labels for label in labels):
        raise LawError("names", f"are {labels[0]}, expected {expected_labels}")
    for number, (result, shard) in enumerate(zip(results, shards, strict=True)):
        kept = shard.values if case.keep in (None, number) else 0 * shard.values
        for name, expected in (("stacked", np.expand_dims(kept, at)), ("again", kept)):
            if result[name].dtype != trial.dtype:
                raise LawError(f"{name} of device {number}", f"dtype {result[name].dtype}, expected {trial.dtype}")
            if not np.array_equal(result[name].values, expected):
                raise LawError(f"{name} of device {number}", "is not the device's own shard")


@law(
    "fold_rng_over_axis",
    "Every device along the axis has a random state of its own, and has it again when asked again.",
    "fold(rng)_d ≠ fold(rng)_e for d ≠ e",
    name="distinct",
    rows=lambda: [MeshCase((), devices, 0, seed=seed) for devices in (1, 2, 4) for seed in (0, 1)],
    dtypes=("float32",),
)
def distinct(trial: Trial, case: MeshCase) -> None:
    implementation = trial.implementation
    fold = implementation.functions["fold_rng_over_axis"]

    def device(place: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"drawn": implementation.drawn(fold(implementation.rng(case.seed), AXIS, **place))}

    nothing = [array(np.zeros(()), trial.dtype)] * case.devices
    first, again = (
        [r["drawn"].values for r in implementation.on_mesh({AXIS: case.devices}, device, nothing)] for _ in "12"
    )
    if not np.array_equal(first, again):
        raise LawError("", "two calls gave different random states")
    if len({tuple(np.ravel(drawn)) for drawn in first}) != case.devices:
        raise LawError("", "two devices have the same random state")
