"""Scripts that try a law again on the stored case, for laws that consist of more than one call."""

import pprint
from pathlib import Path

from conformance.base.dtypes import Array
from conformance.base.exceptions import name_of
from conformance.base.result_form import WrongResultError
from conformance.base.tensors import CODES
from conformance.failures._script import Script, environment, heading, rendered
from conformance.frameworks.implementation import Implementation
from conformance.frameworks.target_imports import absolute, path_lines
from conformance.judge.outcome import Counterexample, Scene
from conformance.laws import Law
from conformance.laws.checker import LawError


def replay_script(implementation: Implementation, law: Law, dtype: str, found: Counterexample, scene: Scene) -> Script:
    """The script; the inputs of every call that the law made are saved next to it."""
    tensors = {}
    for number, record in enumerate(scene.calls):
        call = record.call
        arrays = {**call.arrays, **{f"d_{name}": x for name, x in call.cotangents.items()}}
        tensors |= {f"{number}.{name}": x for name, x in arrays.items() if isinstance(x, Array) and x.dtype in CODES}
    case = pprint.pformat(found.stored, width=110, compact=True, sort_dicts=False)
    lines = rendered(
        "replay",
        preparation=[*environment(), *path_lines(Path(__file__).parents[2])],
        case=case,
        target=absolute(implementation.name),
        law=law.id,
        dtype=dtype,
        framework=implementation.framework,
        device=implementation.device,
        kernel_backend=implementation.kernel_backend,
    )
    marker = f"{law.id} is broken"
    if not isinstance(scene.error, LawError | WrongResultError):
        marker = f"{marker}: raised {name_of(scene.error)}"
    return Script("\n".join([*heading(law, dtype, found), *lines]) + "\n", tensors, marker)
