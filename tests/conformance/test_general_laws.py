"""Each law that all operations share is broken by a function that has just the fault it is about, and by no other."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.options import RunOptions
from conformance.frameworks.numpy import NumPyImplementation
from tests.conformance import judging

torch = pytest.importorskip("torch")


judged = partial(judging.judged, options=RunOptions(examples=8, contract=True))


def right(x: Any) -> Any:
    if not torch.is_tensor(x):
        raise TypeError
    return x.flip(-1).cumsum(-1).flip(-1)


class _Backward(torch.autograd.Function):
    """A reverse sum with its backward pass written out, from which the planted ones differ."""

    @staticmethod
    def forward(x: Any) -> Any:
        return right(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy.cumsum(-1)


class _Detached(_Backward):
    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy.detach().cumsum(-1)


class _Refusing(_Backward):
    backward = staticmethod(torch.autograd.function.once_differentiable(_Backward.backward))


class _OfAutogradAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return right(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy.cumsum(-1)


class _MapsInReverse(_Backward):
    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        return right(x.movedim(in_dims[0], 0).flip(0)), 0


def assumes_its_strides(x: Any) -> Any:
    return right(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()))


def writes_to_its_input(x: Any) -> Any:
    y = right(x)
    with torch.no_grad():
        x.mul_(2)
    return y


def leaves_a_hole(x: Any) -> Any:
    y = torch.empty_like(x)
    y[..., :1] = right(x)[..., :1]
    return torch.where(torch.arange(x.shape[-1]) < 1, y, right(x)) + 0 * y


def depends_on_the_day() -> Any:
    calls = [0]

    def function(x: Any) -> Any:
        calls[0] += 1
        return right(x) * (1 + (calls[0] % 3 == 0) * torch.finfo(x.dtype).eps)

    return function


def asks_for_a_value(x: Any) -> Any:
    return right(x) if bool((x == x).all()) else x


def loses_its_gradient_when_compiled(x: Any) -> Any:
    return right(x.detach() if torch.compiler.is_compiling() else x)


def keeps_something_between_passes() -> Any:
    passes = [0]

    def function(x: Any) -> Any:
        passes[0] += 1
        return right(x * torch.full_like(x, 1.0 if passes[0] % 2 else 2.0))

    return function


def widens(x: Any) -> Any:
    return right(x.double())


def divides_by_its_size(x: Any) -> Any:
    return right(x) * (x.shape[-1] // x.shape[-1])


def forgets_that_there_is_nothing(x: Any) -> Any:
    return right(x) if x.numel() else x.new_zeros(1)


PLANTED = {
    "memory, by strides": ("memory", assumes_its_strides),
    "memory, by writing": ("memory", writes_to_its_input),
    "dtypes": ("dtypes", widens),
    "uninitialised": ("uninitialised", leaves_a_hole),
    "sizes_of_0, by dividing": ("sizes_of_0", divides_by_its_size),
    "sizes_of_0, by shape": ("sizes_of_0", forgets_that_there_is_nothing),
    "determinism": ("determinism", depends_on_the_day()),
    "compile, in one piece": ("compile", asks_for_a_value),
    "compile, whole": ("compile", loses_its_gradient_when_compiled),
    "compile_gradient": ("compile_gradient", loses_its_gradient_when_compiled),
    "functional": ("functional", _OfAutogradAlone.apply),
    "vmap, at all": ("vmap", asks_for_a_value),
    "vmap, rightly": ("vmap", _MapsInReverse.apply),
    "checkpoint": ("checkpoint", keeps_something_between_passes()),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_breaks_its_law(planted):
    law, function = PLANTED[planted]
    assert judged(f"rev_cumsum.{law}", rev_cumsum=function).status == "failed"


@pytest.mark.parametrize("law", dict.fromkeys(law for law, _ in PLANTED.values()))
def test_a_right_function_keeps_every_law(law):
    result = judged(f"rev_cumsum.{law}", rev_cumsum=right)
    assert (result.status, result.reason) == ("passed", None)


def test_a_second_derivative_is_right_or_refused_but_never_detached():
    for function, status in ((right, "passed"), (_Backward.apply, "passed"), (_Refusing.apply, "passed")):
        assert judged("rev_cumsum.second_derivative", "float64", rev_cumsum=function).status == status
    broken = judged("rev_cumsum.second_derivative", "float64", rev_cumsum=_Detached.apply)
    assert broken.status == "failed" and "second derivative by cotangent of y" in str(broken.reason)


def test_a_call_that_is_refused_says_nothing_about_its_second_derivative():
    def refusing(x: Any) -> Any:
        raise NotImplementedError("not this one")

    result = judged("rev_cumsum.second_derivative", "float64", rev_cumsum=refusing)
    assert result.status == "not served" and "not this one" in str(result.reason)


def test_poison_goes_away_again():
    from conformance.frameworks.torch import adapter

    with adapter("any", {}, "cpu").poisoned():
        assert torch.empty(3).isnan().all() and torch.empty_like(torch.ones(2)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    with NumPyImplementation("any", {}).poisoned():
        assert np.isnan(np.empty((2, 2))).all() and np.isnan(np.empty_like(np.ones(2))).all()
    assert np.empty(2).shape == (2,) and np.empty.__module__ == "numpy"


def test_a_numpy_target_that_leaves_a_hole_or_rolls_dice():
    rng = np.random.default_rng(0)

    def hole(x: Any) -> Any:
        y = np.empty(x.shape)
        y[..., 1:] = reference.rev_cumsum(x)[..., 1:]
        return y

    def dice(x: Any) -> Any:
        return reference.rev_cumsum(x) * (1 + 2**-52 * (rng.random() < 0.1))

    for law, function in (("uninitialised", hole), ("determinism", dice)):
        assert judging.judged(f"rev_cumsum.{law}", framework="numpy", rev_cumsum=function).status == "failed"
