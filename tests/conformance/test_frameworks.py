"""The adapters: what JAX's does to a function, and where arrays lie."""

from typing import Any

import numpy as np
import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from tests.conformance import judging


def judged(law: str, function: Any, dtype: str = "float32") -> LawResult:
    return judging.judged(law, dtype, RunOptions(examples=4), framework="jax", rev_cumsum=function)


@pytest.fixture(scope="module")
def right():
    jnp = pytest.importorskip("jax.numpy")
    return lambda x: jnp.flip(jnp.cumsum(jnp.flip(x, -1), -1), -1)


@pytest.mark.parametrize(
    "law", ["compile", "vmap", "checkpoint", "determinism", "sharding", "sharding_by_explicit_axes"]
)
def test_a_right_jax_function_keeps_every_law(right, law):
    result = judged(f"rev_cumsum.{law}", right)
    assert (result.status, result.reason) == ("passed", None)


def test_planted_faults_in_jax(right):
    import jax

    traces = [0]

    def right_when_first_traced(x: Any) -> Any:
        traces[0] += 1
        return right(x) if traces[0] == 1 else 2 * right(x)

    calls = [0]

    def different_each_time(x: Any) -> Any:
        def noise() -> np.ndarray:
            calls[0] += 1
            return np.asarray(calls[0] * 1e-7, x.dtype)

        return right(x) * (1 + jax.pure_callback(noise, jax.ShapeDtypeStruct((), x.dtype)))

    @jax.custom_batching.custom_vmap
    def maps_wrongly(x: Any) -> Any:
        return right(x)

    @maps_wrongly.def_vmap
    def _(size: int, batched: Any, x: Any) -> Any:
        return right(x[::-1]), True

    def doubled_where_sharded(x: Any) -> Any:
        return right(x) * (2 if any(jax.typeof(x).sharding.spec) else 1)

    for law in ("checkpoint", "compile", "sharding"):
        # These compare two traces of the function with each other.
        traces[0] = 0
        assert judged(f"rev_cumsum.{law}", right_when_first_traced).status == "failed"
    assert judged("rev_cumsum.determinism", different_each_time).status == "failed"
    assert judged("rev_cumsum.vmap", maps_wrongly).status == "failed"
    # The suite's contract asks for explicit axes; others may do without.
    assert judged("rev_cumsum.sharding_by_explicit_axes", doubled_where_sharded).status == "differs"


def test_a_wrong_value_of_sharded_jax_arrays_stands_where_the_gradient_is_refused(right: Any) -> None:
    import jax

    def refuses(*_: Any) -> Any:
        raise NotImplementedError("only the value is served")

    def without_gradient(value: Any) -> Any:
        function = jax.custom_vjp(value)
        function.defvjp(lambda x: (value(x), None), refuses)
        return function

    wrong = without_gradient(lambda x: right(x) * (2 if any(jax.typeof(x).sharding.spec) else 1))
    found = judged("rev_cumsum.sharding_by_explicit_axes", wrong)
    assert found.status == "differs" and found.reason is not None and found.reason.startswith("y: at ")
    found = judged("rev_cumsum.sharding_by_explicit_axes", without_gradient(right))
    assert found.status == "not served" and "only the value is served" in str(found.reason)


def test_one_device_is_a_reason_why_nothing_is_sharded(monkeypatch):
    from conformance.frameworks.jax import JaxImplementation, adapter

    target = adapter("planted", {}, "cpu")
    monkeypatch.setattr(JaxImplementation, "_devices", lambda self: [None])
    flag = "XLA_FLAGS=--xla_force_host_platform_device_count=4"
    assert target.lacks("sharding") == f"JAX sees one device; {flag} shows several"
    assert target.lacks("checkpoint") is None


def test_a_second_derivative_in_jax_is_right_or_refused_but_never_detached(right):
    import jax

    def with_rule(backward: Any) -> Any:
        function = jax.custom_vjp(right)
        function.defvjp(lambda x: (right(x), None), lambda _, dy: (backward(dy),))
        return function

    def refuses(dy: Any) -> Any:
        inner = jax.custom_vjp(lambda d: d.cumsum(-1))
        inner.defvjp(lambda d: (d.cumsum(-1), None), _no_second)
        return inner(dy)

    def _no_second(_: Any, __: Any) -> Any:
        raise NotImplementedError("second derivatives are not available")

    for backward in (lambda dy: dy.cumsum(-1), refuses):
        assert judged("rev_cumsum.second_derivative", with_rule(backward), "float64").status == "passed"
    detached = with_rule(lambda dy: jax.lax.stop_gradient(dy).cumsum(-1))
    broken = judged("rev_cumsum.second_derivative", detached, "float64")
    assert broken.status == "failed" and "second derivative by cotangent of y" in str(broken.reason)
