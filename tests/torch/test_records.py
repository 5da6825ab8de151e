"""Everything that follows from a record's fields; a new residual needs only one new field."""

from typing import Annotated, NamedTuple

import pytest
import torch
from torch import Tensor

from torch_impl._differentiable import Implementation, Operation
from torch_impl._gru import autograd as gru
from torch_impl._mlstm import autograd as mlstm
from torch_impl._records import ACCUMULATED, VALUES, Axes, fields, head_axes, names_by_option, schema


def test_a_field_says_what_it_is_to_a_schema() -> None:
    assert schema(mlstm.Arguments) == (
        "Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? C, Tensor? n, Tensor? m, Tensor? cu_seqlens, "
        "int chunk_size, float eps, bool stabilize_correctly, bool return_state, str backend"
    )
    assert schema(gru.Arguments).endswith("Tensor? cu_seqlens, float? gradient_clipping, bool reset_after, str backend")


def test_tensors_come_before_options() -> None:
    class Mixed(NamedTuple):
        eps: float
        x: Tensor

    with pytest.raises(AssertionError, match="Mixed: tensors come before options"):
        fields(Mixed)


def test_the_axis_of_heads_follows_the_layout() -> None:
    assert head_axes(mlstm.Arguments, False) == (2, 2, 2, 2, 2, 1, 1, 1, *(None,) * 6)
    assert head_axes(mlstm.Arguments, True) == (1, 1, 1, 1, 1, 1, 1, 1, *(None,) * 6)
    assert head_axes(gru.Arguments, True) == (1, 0, 1, 0, 1, 0, 1, 0, None, None, None, None)


@pytest.mark.parametrize(
    ("axes", "dense", "packed"),
    [
        (Axes("B S N L", memory="B N S L"), (2, 7, 3, 4), (14, 3, 4)),
        (Axes("B chunks N L L", memory="chunks B N L L"), (2, 5, 3, 4, 4), None),
        (Axes("N B+S V+1"), (3, 9, 6), None),
        (Axes("B blocks N"), (2, 6, 3), (6, 3)),
    ],
)
def test_an_empty_tensor_lies_as_its_axes_say(axes: Axes, dense: tuple[int, ...], packed: tuple[int, ...]) -> None:
    sizes = {"B": 2, "S": 7, "T": 14, "N": 3, "V": 5, "L": 4, "chunks": 5, "blocks": 6}
    for flag, shape in ((False, dense), (True, packed)):
        if shape is None:
            continue
        x = axes.when(flag).empty(torch.empty(0), sizes, {VALUES: torch.float16})
        assert tuple(x.shape) == shape and x.dtype is torch.float16
        assert x.permute(axes.when(flag).to_memory).is_contiguous()


@pytest.mark.parametrize("operation", [mlstm.SEQUENCES, gru.GRU], ids=lambda operation: operation.name)
def test_cotangents_are_those_of_the_results(operation: Operation) -> None:
    results, cotangents = fields(operation.results), fields(operation.cotangents)
    assert [f"d{field.name}" for field in results] == [field.name for field in cotangents]
    assert [field.axes for field in results] == [field.axes for field in cotangents]


class Arguments(NamedTuple):
    x: Annotated[Tensor, Axes("B N")]
    backend: str


class Result(NamedTuple):
    y: Annotated[Tensor, Axes("B N")]


class Cotangents(NamedTuple):
    dy: Annotated[Tensor | None, Axes("B N")] = None


class Residuals(NamedTuple):
    squared: Annotated[Tensor | None, Axes("B N")] = None


class MoreResiduals(NamedTuple):
    """`Residuals` with one line more: nothing else is told of the new one."""

    squared: Annotated[Tensor | None, Axes("B N")] = None
    added: Annotated[Tensor | None, Axes("B N 1+N", ACCUMULATED, "N B 1+N", "keep_added")] = None


def test_a_residual_is_one_field_of_one_record() -> None:
    """An operation y = x³ whose second residual is saved, folded by vmap and known to tracers without another line."""

    def forward(x: Arguments, keep):
        N = x.x.shape[1]
        wide = x.x.double().mT[:, :, None].expand(-1, -1, N + 1).contiguous().permute(1, 0, 2)
        own = {"squared": x.x**2, "added": wide}
        return Result(x.x**3), residuals(**{name: own[name] for name in keep})

    def backward(x: Arguments, cotangents: Cotangents, kept):
        if "added" in kept._fields:
            assert kept.added is not None and kept.added.dtype is torch.float64
            assert torch.equal(kept.added[..., 0].float(), x.x)
        return [3 * kept.squared * cotangents.dy]

    for number, residuals in enumerate((Residuals, MoreResiduals)):
        operation = Operation(
            name=f"cube_with_{number}",
            arguments=Arguments,
            results=Result,
            cotangents=Cotangents,
            implementations={"here": Implementation(residuals=residuals, forward=forward, backward=backward)},
            sizes=lambda x: dict(zip("BN", x.x.shape, strict=True)),
            dtypes=lambda x: {VALUES: x.x.dtype, ACCUMULATED: torch.float64},
        )
        keep = residuals._fields
        x = torch.randn(4, 3)
        torch.library.opcheck(operation.operator, (x, "here", keep), test_utils=("test_schema", "test_faketensor"))

        def cube(x, operation=operation, keep=keep):
            return operation.differentiable(x, "here", keep)[0]

        (dx,) = torch.autograd.grad(cube(leaf := x.clone().requires_grad_()).sum(), leaf)
        assert torch.allclose(dx, 3 * x**2)
        mapped = torch.func.vmap(torch.func.grad(lambda x: cube(x[None]).sum()))(x)
        # vmap folds into the axis of heads, so that the wide residual is as wide as the folded call.
        assert torch.allclose(mapped, 3 * x**2)
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(cube(leaf).sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match=f"^cube_with_{number}: second derivatives are not available"):
            torch.autograd.grad(first.sum(), leaf)
        assert names_by_option(residuals) == ({"keep_added": ("added",)} if number else {})
