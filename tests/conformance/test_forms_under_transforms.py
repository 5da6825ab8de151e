"""What vmap and second derivatives say of a target: a wrong form in one sentence, a refusal, or a break."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from tests.conformance import judging

DTYPES = {"second_derivative": "float64", "vmap": "float32", "gradient": "float32"}


def judged(framework: str, law: str, function: Callable) -> LawResult:
    options = RunOptions(examples=2, shrink_seconds=0.0, max_steps=5)
    return judging.judged(f"rev_cumsum.{law}", DTYPES[law], options, framework=framework, rev_cumsum=function)


def torch_sum(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def jax_sum(x: jax.Array) -> jax.Array:
    return jnp.flip(jnp.cumsum(jnp.flip(x, -1), -1), -1)


def in_torch(
    backward: Callable = lambda d: d.cumsum(-1), vmap: Callable = lambda x: (torch_sum(x), 0), once: bool = False
) -> Callable:
    """The sum as an ``autograd.Function`` with this backward pass and this vmap rule."""

    def pulled(ctx: Any, d: torch.Tensor) -> Any:
        return backward(d)

    members = {
        "forward": staticmethod(torch_sum),
        "setup_context": staticmethod(lambda ctx, inputs, output: None),
        "backward": staticmethod(torch.autograd.function.once_differentiable(pulled) if once else pulled),
        "vmap": staticmethod(lambda info, dims, x: vmap(x)),
    }
    return type("Planted", (torch.autograd.Function,), members).apply


def in_jax(backward: Callable = lambda d: (jnp.cumsum(d, -1),), vmap: Callable | None = None) -> Callable:
    """The sum with this backward pass and this vmap rule."""
    inner: Any = jax_sum
    if vmap is not None:
        inner = jax.custom_batching.custom_vmap(jax_sum)
        inner.def_vmap(lambda size, mapped, x: vmap(x))
    function = jax.custom_vjp(lambda x: inner(x))
    function.defvjp(lambda x: (inner(x), None), lambda _, d: backward(d))
    return function


def fails_twice(d: Any) -> Any:
    if d.requires_grad:
        raise KeyError("a key that is missing")
    return d.cumsum(-1)


def fails_twice_in_jax(d: Any) -> Any:
    def fails(*_: Any) -> Any:
        raise KeyError("a key that is missing")

    inner = jax.custom_vjp(lambda d: jnp.cumsum(d, -1))
    inner.defvjp(lambda d: (jnp.cumsum(d, -1), None), fails)
    return (inner(d),)


def only_called_back(d: Any) -> Any:
    return (jax.pure_callback(lambda d: d.cumsum(-1), jax.ShapeDtypeStruct(d.shape, d.dtype), d),)


def mapped(x: Any) -> bool:
    functorch: Any = torch._C
    return functorch._functorch.is_batchedtensor(x)


BACKWARDS = {
    "a shorter gradient": (
        "torch",
        in_torch(lambda d: d.cumsum(-1)[..., :1, None]),
        "rev_cumsum returned in its backward pass a gradient with the shape [",
    ),
    "too many gradients": (
        "torch",
        in_torch(lambda d: (d.cumsum(-1), d)),
        "rev_cumsum returned in its backward pass 2 gradients in place of 1",
    ),
    "no tensor": ("torch", in_torch(lambda d: "x"), "rev_cumsum returned in its backward pass a str as a gradient"),
    "a shorter gradient in JAX": (
        "jax",
        in_jax(lambda d: (d[..., :1],)),
        "rev_cumsum returned in its backward pass a gradient of type float",
    ),
    "too many gradients in JAX": (
        "jax",
        in_jax(lambda d: (d, d)),
        "rev_cumsum returned in its backward pass something else than a tuple with one gradient for each argument",
    ),
}


@pytest.mark.parametrize("law", DTYPES)
@pytest.mark.parametrize("planted", BACKWARDS)
def test_a_backward_pass_of_a_wrong_form_is_one_sentence(planted: str, law: str) -> None:
    framework, function, said = BACKWARDS[planted]
    (found,) = judged(framework, law, function).counterexamples
    assert (found.kind.where, found.kind.nature) == ("rev_cumsum", "result")
    assert found.problem.removeprefix("under vmap, ").startswith(said), found.problem


RULES = {
    "no axes": ("torch", in_torch(vmap=torch_sum), "in its vmap rule something else than its outputs and the axis"),
    "another shape": ("torch", in_torch(vmap=lambda x: (torch_sum(x)[..., None], 0)), "y with the shape ["),
    "one element": ("torch", in_torch(vmap=lambda x: (torch_sum(x)[:1], 0)), "y with the shape [1, "),
    "a string": ("torch", in_torch(vmap=lambda x: ("x", 0)), "the string 'x'; its result is y"),
    "a dict": ("torch", lambda x: {"y": x} if mapped(x) else torch_sum(x), "a dict with the keys 'y'; its result"),
    "no axes in JAX": ("jax", in_jax(vmap=lambda x: (jax_sum(x), (True, True))), "in its vmap rule something else"),
    "another shape in JAX": ("jax", in_jax(vmap=lambda x: (jax_sum(x)[..., :1], True)), "y with the shape ["),
    "one element in JAX": ("jax", in_jax(vmap=lambda x: (jax_sum(x)[:1], True)), "y with the shape [1, "),
}


@pytest.mark.parametrize("planted", RULES)
def test_a_result_of_a_wrong_form_under_vmap_is_one_sentence(planted: str) -> None:
    framework, function, said = RULES[planted]
    (found,) = judged(framework, "vmap", function).counterexamples
    assert (found.kind.where, found.kind.nature) == ("rev_cumsum", "result")
    assert found.problem.startswith(f"under vmap, rev_cumsum returned {said}"), found.problem
    assert judged(framework, "gradient", function).status == "passed"


@pytest.mark.parametrize(
    ("framework", "function"),
    [("torch", in_torch(once=True)), ("jax", in_jax(only_called_back))],
    ids=["once_differentiable", "pure_callback"],
)
def test_a_framework_s_own_refusal_of_a_second_derivative_is_one(framework: str, function: Callable) -> None:
    assert judged(framework, "second_derivative", function).status == "passed"


@pytest.mark.parametrize(
    ("framework", "function"),
    [("torch", in_torch(fails_twice)), ("jax", in_jax(fails_twice_in_jax))],
    ids=["torch", "jax"],
)
def test_any_other_exception_of_a_second_derivative_is_a_break(framework: str, function: Callable) -> None:
    result = judged(framework, "second_derivative", function)
    (found,) = result.counterexamples
    assert (found.kind.where, found.kind.nature) == ("KeyError", "exception")
    assert found.problem.startswith("raised KeyError: 'a key that is missing' (test_forms_under_transforms.py:")
    assert judged(framework, "gradient", function).status == "passed"


def test_a_wrong_shape_is_named_before_a_second_derivative_is_asked_for() -> None:
    for framework, function in (("torch", torch_sum), ("jax", jax_sum)):
        (found,) = judged(framework, "second_derivative", lambda x, f=function: f(x)[..., :1]).counterexamples
        assert found.kind.nature == "result" and "rev_cumsum returned y with the shape [" in found.problem
