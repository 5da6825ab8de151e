"""A result that does not have the form of the operation's result is reported in one sentence, and breaks the law."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from click.testing import CliRunner

import jax_impl
import reference
import torch_impl
from conformance.base.options import RunOptions
from conformance.cli import main
from conformance.judge.outcome import LawResult
from conformance.operations import OPERATIONS
from tests.conformance import judging

PACKAGES = {"numpy": reference, "torch": torch_impl, "jax": jax_impl}
BACKWARDS = ("gru_backward", "mlstm_backward", "rev_cumsum_backward")


def judged(framework: str, law: str, change: Callable[[Any], Any], only: str | None = None) -> LawResult:
    """The result of a law on a package whose results, or only those of one function, are changed."""
    package = PACKAGES[framework]

    def changed(name: str) -> Any:
        function = getattr(package, name)
        if only not in (None, name):
            return function
        if OPERATIONS[name.removesuffix("_backward")].curried is not None:
            return lambda config: lambda *arrays, **given: change(function(config)(*arrays, **given))
        return lambda *arrays, **given: change(function(*arrays, **given))

    offered = [name for name in OPERATIONS if hasattr(package, name)]
    names = [*offered, *BACKWARDS] if framework == "numpy" else offered
    options = RunOptions(examples=2, shrink_seconds=0.0, max_steps=5)
    return judging.judged(law, "float32", options, framework=framework, **{name: changed(name) for name in names})


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


WRONG = {
    "None": lambda result: None,
    "a dict with the keys 'h'": lambda result: {"h": result},
    "the string 'wrong'": lambda result: "wrong",
    "the number 1.5": lambda result: 1.5,
    "an empty tuple": lambda result: (),
    "of complex": lambda result: (first(result) + 0j, *result[1:]) if isinstance(result, tuple) else result + 0j,
    "with the shape": lambda result: (
        (first(result)[..., :0], *result[1:]) if isinstance(result, tuple) else result[..., :0]
    ),
}


@pytest.mark.parametrize("said", WRONG)
@pytest.mark.parametrize(
    "law", [f"{each.about}.gradient" for each in OPERATIONS.values() if hasattr(torch_impl, each.name)]
)
def test_every_operation_s_wrong_result_is_one_sentence(law: str, said: str) -> None:
    (found,) = judged("torch", law, WRONG[said]).counterexamples
    name = next(each.name for each in OPERATIONS.values() if f"{each.about}.gradient" == law)
    assert (found.kind.where, found.kind.nature) == (name, "result")
    assert found.problem.startswith(f"{name} ") and said in found.problem and "; its " in found.problem


@pytest.mark.parametrize("said", WRONG)
@pytest.mark.parametrize(("framework", "name"), [("numpy", "gru"), ("jax", "mlstm_step")])
def test_other_frameworks_say_the_same(framework: str, name: str, said: str) -> None:
    law = f"{name}.value" if framework == "numpy" else f"{name}.gradient"
    (found,) = judged(framework, law, WRONG[said], only=name).counterexamples
    if framework == "numpy" and "shape" in said:
        assert (found.kind.where, found.kind.nature) == ("y", "shape"), "no cotangent says what the shape should be"
    else:
        assert (found.kind.where, found.kind.nature) == (name, "result") and said in found.problem


def test_the_sentence_says_what_came_back_and_what_the_result_is() -> None:
    found = judged("torch", "gru.value", lambda result: (result[0], None)).counterexample
    assert found is not None and found.problem == (
        "gru returned (a torch.Tensor, None); its result is (y, state), where each is a torch.Tensor of real numbers"
    )
    found = judged("torch", "rev_cumsum.value", lambda y: [y]).counterexample
    assert found is not None and found.problem == (
        "rev_cumsum returned [a torch.Tensor]; its result is y, a torch.Tensor of real numbers"
    )
    found = judged("torch", "mlstm.value", lambda result: torch.zeros(2)).counterexample
    assert found is not None and found.problem == (
        "mlstm with return_state=True returned a torch.Tensor; its result is (h, (C, n, m)), where each is a "
        "torch.Tensor of real numbers"
    )


@pytest.mark.parametrize("law", ["gru.packings", "mlstm.packings"])
def test_a_list_counts_as_the_tuple_of_its_elements(law: str) -> None:
    def listed(result: Any) -> Any:
        return [listed(part) for part in result] if isinstance(result, tuple) else result

    assert judged("torch", law, listed).status == "passed"


@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda gradients: None, "returned None; its result is a dict of gradients by argument name"),
        (lambda gradients: list(gradients.values()), "its result is a dict of gradients by argument name"),
        (lambda gradients: dict.fromkeys(gradients, "x"), "as the gradient of"),
    ],
)
def test_a_backward_of_another_form_is_named(name: str, change: Callable[[Any], Any], said: str) -> None:
    law = f"{name.removesuffix('_backward')}.gradient"
    (found,) = judged("numpy", law, change, only=name).counterexamples
    assert (found.kind.where, found.kind.nature) == (name, "result") and said in found.problem


def test_no_law_takes_a_wrong_result_for_a_refusal() -> None:
    """The law about second derivatives is satisfied by an exception, but not by one of the suite's own."""
    assert judged("torch", "gru.second_derivative", lambda result: None).status == "failed"


def test_an_integer_result_has_no_gradient_in_jax() -> None:
    result = judged("jax", "rev_cumsum.gradient", lambda y: y.astype(jnp.int32))
    assert {each.kind.nature for each in result.counterexamples} == {"number"}


def test_the_command_ends_with_the_sentence_and_status_1(tmp_path: Path) -> None:
    path = tmp_path / "target.py"
    path.write_text("import numpy\n\ndef rev_cumsum(x):\n    return {'y': x}\n")
    arguments = ["--law", "rev_cumsum.value", "--dtype", "float64", "--examples", "2", "--jobs", "1"]
    done = CliRunner().invoke(main, ["run", str(path), *arguments, "--failures", str(tmp_path / "failures")])
    assert done.exit_code == 1
    sentence = "returned a dict with the keys 'y'; its result is y, a numpy.ndarray of real numbers"
    assert f"1. rev_cumsum on every call that was tried {sentence}" in " ".join(done.output.split())
    assert "Error" not in done.output and "ran once and failed again" in done.output
