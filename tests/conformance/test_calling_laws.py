"""The laws about the calls that programs make are broken by functions with just the fault that each is about."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import reference
import torch_impl
from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from tests.conformance import judging


def judged(law: str, framework: str = "torch", **functions: Any) -> LawResult:
    (op,) = (name for name in functions if not name.endswith("_backward"))
    options = RunOptions(examples=8, shrink_seconds=0.0, max_steps=70)
    return judging.judged(f"{op}.{law}", options=options, framework=framework, **functions)


def kept_by_identity(function: Callable) -> Callable:
    """What was computed from a packing is kept as long as the same object is given."""
    kept: list[Any] = [None, None]

    def call(*arrays: Any, cu_seqlens: Any = None, **options: Any) -> Any:
        if cu_seqlens is None:
            return function(*arrays, **options)
        if kept[0] is not cu_seqlens:
            kept[:] = cu_seqlens, cu_seqlens.clone() if torch.is_tensor(cu_seqlens) else cu_seqlens.copy()
        return function(*arrays, cu_seqlens=kept[1], **options)

    return call


def weights_kept_by_identity(*arrays: Any, _kept: dict[int, Any] = {}, **options: Any) -> Any:  # noqa: B006
    """Weights that are transposed once, and found again by where they lie in memory."""
    weight = arrays[1]
    if torch.is_grad_enabled():
        return torch_impl.gru(*arrays, **options)
    kept = _kept.setdefault(weight.data_ptr(), (weight, weight.clone()))
    return torch_impl.gru(arrays[0], kept[1] if kept[0] is weight else weight, *arrays[2:], **options)


def beyond_the_end(x: torch.Tensor) -> torch.Tensor:
    """A sum over steps that reads one element behind the array, times 0."""
    whole = x.contiguous()
    y = whole.flip(-1).cumsum(-1).flip(-1)
    if whole.untyped_storage().nbytes() // whole.element_size() <= whole.storage_offset() + whole.numel():
        return y
    after = torch.as_strided(whole.detach(), (1,), (1,), whole.storage_offset() + whole.numel())
    return y + 0 * after


def between_rows(x: torch.Tensor) -> torch.Tensor:
    """A sum over steps that reads one element behind each row, times 0, if rows are apart."""
    y = x.flip(-1).cumsum(-1).flip(-1)
    if x.ndim < 2 or x.stride(-2) <= x.shape[-1] or not x.numel():
        return y
    after = torch.as_strided(x.detach(), x.shape[:-1], x.stride()[:-1], x.storage_offset() + x.shape[-1])
    return y + 0 * after[..., None]


class _Once(torch.autograd.Function):
    """The gradient of a second backward pass is 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.passes = 0
        return x.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
        ctx.passes += 1
        return d.cumsum(-1) if ctx.passes == 1 else torch.zeros_like(d)


class _OneBuffer(_Once):
    """A second backward pass writes its gradient over that of the first."""

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
        ctx.passes += 1
        ctx.gradient = torch.empty_like(d) if ctx.passes == 1 else ctx.gradient
        return ctx.gradient.copy_(d.cumsum(-1))


class _OnlyTogether(torch.autograd.Function):
    """The gradient of the forget gates is computed with that of the input gates alone."""

    @staticmethod
    def forward(ctx: Any, i: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(i, f)
        return torch_impl.dtilde_matrix(i, f)

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            di, df = torch.autograd.grad(torch_impl.dtilde_matrix(*leaves), leaves, d)
        return di, df if ctx.needs_input_grad[0] else torch.zeros_like(df)


def doubled_if_shared(i: Any, f: Any) -> Any:
    return torch_impl.dtilde_matrix(2 * i if i is f else i, f)


class _NotSummed(torch.autograd.Function):
    """The gradient of an array that is both arguments is that of the first."""

    @staticmethod
    def forward(ctx: Any, i: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        ctx.same = i.data_ptr() == f.data_ptr()
        ctx.save_for_backward(i, f)
        return torch_impl.dtilde_matrix(i, f)

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            di, df = torch.autograd.grad(torch_impl.dtilde_matrix(*leaves), leaves, d)
        return di, torch.zeros_like(df) if ctx.same else df


def of_int32_alone(*arrays: Any, cu_seqlens: Any = None, **options: Any) -> Any:
    """Every packing is read as if its elements had four bytes."""
    if cu_seqlens is not None and cu_seqlens.dtype == torch.int64:
        cu_seqlens = cu_seqlens.contiguous().view(torch.int32)[: len(cu_seqlens)].cummax(0).values
        cu_seqlens[-1] = arrays[0].shape[0]
    return torch_impl.gru(*arrays, cu_seqlens=cu_seqlens, **options)


PLANTED = {
    "a packing kept by identity": ("overwritten_arrays", {"mlstm": kept_by_identity(torch_impl.mlstm)}),
    "weights kept by identity": ("overwritten_arrays", {"gru": weights_kept_by_identity}),
    "reads beyond the end": ("surroundings", {"rev_cumsum": beyond_the_end}),
    "reads between rows": ("surroundings", {"rev_cumsum": between_rows}),
    "nothing the second time": ("second_backward_pass", {"rev_cumsum": _Once.apply}),
    "the first is overwritten": ("second_backward_pass", {"rev_cumsum": _OneBuffer.apply}),
    "a gradient with another alone": ("frozen_arguments", {"dtilde_matrix": _OnlyTogether.apply}),
    "twice the value": ("one_array_for_several", {"dtilde_matrix": doubled_if_shared}),
    "not the sum of gradients": ("one_array_for_several", {"dtilde_matrix": _NotSummed.apply}),
    "int64 read as int32": ("cu_seqlens_of_int64", {"gru": of_int32_alone}),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_breaks_its_law(planted: str) -> None:
    law, functions = PLANTED[planted]
    assert judged(law, **functions).status == "failed"
    right = judged(law, **{op: getattr(torch_impl, op) for op in functions})
    assert (right.status, right.reason) == ("passed", None)


@pytest.mark.parametrize("planted", PLANTED)
def test_no_other_law_sees_these_faults(planted: str) -> None:
    _, functions = PLANTED[planted]
    for law in ("value", "gradient"):
        assert judged(law, **functions).status == "passed"


def _with_backward(function: Callable) -> dict[str, Callable]:
    return {"mlstm": function, "mlstm_backward": reference.mlstm_backward}


def test_numpy_targets_with_such_faults() -> None:
    numpy = {
        "overwritten_arrays": _with_backward(kept_by_identity(reference.mlstm)),
        "one_array_for_several": _with_backward(lambda q, k, *x, **o: reference.mlstm((1 + (q is k)) * q, k, *x, **o)),
        "cu_seqlens_of_int64": _with_backward(_of_int32_in_numpy),
    }
    for law, functions in numpy.items():
        assert judged(law, "numpy", **functions).status == "failed", law
        assert judged(law, "numpy", **_with_backward(reference.mlstm)).status == "passed", law


def _of_int32_in_numpy(*arrays: Any, cu_seqlens: Any = None, **options: Any) -> Any:
    if cu_seqlens is not None and cu_seqlens.dtype == np.int64:
        cu_seqlens = np.concatenate([cu_seqlens[:1], cu_seqlens[:-2], cu_seqlens[-1:]])
    return reference.mlstm(*arrays, cu_seqlens=cu_seqlens, **options)


def in_jax(backward: Callable) -> Callable:
    """`dtilde_matrix` of JAX with this backward pass, of the gradients and whether each is asked for."""

    def plain(i: Any, f: Any) -> Any:
        cum = jnp.cumsum(jax.nn.log_sigmoid(f[..., 0]), -1)
        kept = jnp.tril(jnp.ones((f.shape[-2],) * 2, bool))
        return jnp.where(kept, cum[..., :, None] - cum[..., None, :] + jnp.swapaxes(i, -1, -2), -jnp.inf)

    function = jax.custom_vjp(plain)

    def forward(i: Any, f: Any) -> Any:
        return plain(i.value, f.value), (i.value, f.value, (i.perturbed, f.perturbed))

    def pulled(kept: Any, d: Any) -> Any:
        i, f, asked = kept
        return backward(jax.vjp(plain, i, f)[1](d), asked)

    function.defvjp(forward, pulled, symbolic_zeros=True)
    return function


def test_jax_targets_with_such_faults() -> None:
    def together(gradients: Any, asked: Any) -> Any:
        return gradients[0], gradients[1] if asked[0] else 0 * gradients[1]

    planted = {
        "frozen_arguments": in_jax(together),
        "one_array_for_several": lambda i, f: in_jax(lambda g, _: g)(2 * i if i is f else i, f),
    }
    for law, function in planted.items():
        assert judged(law, "jax", dtilde_matrix=in_jax(lambda gradients, _: gradients)).status == "passed", law
        assert judged(law, "jax", dtilde_matrix=function).status == "failed", law


def test_a_second_pullback_in_jax() -> None:
    def function(x: Any) -> Any:
        passes: list[int] = []

        def pulled(_: Any, d: Any) -> Any:
            passes.append(1)
            return (jnp.cumsum(d, -1) * (len(passes) == 1),)

        summed = jax.custom_vjp(lambda x: jnp.flip(jnp.cumsum(jnp.flip(x, -1), -1), -1))
        summed.defvjp(lambda x: (jnp.flip(jnp.cumsum(jnp.flip(x, -1), -1), -1), None), pulled)
        return summed(x)

    assert judged("second_backward_pass", "jax", rev_cumsum=function).status == "failed"
    assert judged("gradient", "jax", rev_cumsum=function).status == "passed"


def test_arrays_of_these_layouts_hold_their_values_and_nothing_but_nan_around_them() -> None:
    from conformance.base.dtypes import array
    from conformance.frameworks import numpy as of_numpy
    from conformance.frameworks import torch as of_torch

    x = np.arange(6.0).reshape(2, 3)
    for layout, own in (("surrounded", (3, 1)), ("rows apart", (5, 1))):
        got = of_torch.adapter("any", {}, "cpu").native(array(x, "float32", layout))
        assert got.tolist() == x.tolist() and got.stride() == own
        buffer = torch.as_strided(got, (got.untyped_storage().nbytes() // 4,), (1,), 0)
        assert buffer.isfinite().sum() == x.size
        of_integers = of_torch.adapter("any", {}, "cpu").native(array([0, 3], "int32", layout))
        assert of_integers.tolist() == [0, 3]
        inside = of_numpy.adapter("any", {}, "cpu").native(array(x, "float32", layout))
        assert inside.tolist() == x.tolist() and inside.strides == tuple(4 * n for n in own)
        assert inside.base is not None and np.isfinite(inside.base).sum() == x.size
