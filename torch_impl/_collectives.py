"""Communication between the ranks of a group, as functions that autograd, torch.func (vmap too) and torch.compile can
handle.

The functions use PyTorch's functional collectives, which a compiled program contains as operators, and which take the
group by its name. Their gradients are not those that PyTorch registers for collectives, which count the cotangent of a
replicated result once for each rank.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference.arguments import describe
from torch_impl._operators import no_forward_mode, seen_by_compiler, transformable


class Group(NamedTuple):
    """This rank's place in a process group.

    Attributes:
        name: the name by which PyTorch finds the group.
        rank, size: the index of this process in it, and the number of its processes.
        devices: the types of the devices between which it communicates, ``"cpu cuda"``.
    """

    name: str
    rank: int
    size: int
    devices: str


def group_of(function: str, argument: str, given: Any) -> Group:
    """The place in a ``ProcessGroup``, or in a ``DeviceMesh`` of one dimension.

    Args:
        function, argument: the public names that errors mention.

    Raises:
        TypeError: it is neither.
        ValueError: the mesh has several dimensions, or this process is not in it.
    """
    expected = "a torch.distributed.ProcessGroup or a DeviceMesh of one dimension, both with this process"
    if not torch.distributed.is_available():
        raise ValueError(f"{function}: `{argument}` is {describe(given)}; expected None: this PyTorch has no groups")
    if isinstance(given, torch.distributed.ProcessGroup):
        return Group(*_place(given.group_name))
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(given, DeviceMesh):
        raise TypeError(f"{function}: `{argument}` is {describe(given)}; expected {expected}")
    if given.ndim != 1:
        raise ValueError(f"{function}: `{argument}` is a mesh of {given.ndim} dimensions; expected {expected}")
    if given.get_coordinate() is None:
        raise ValueError(f"{function}: `{argument}` is a mesh without this process; expected {expected}")
    return Group(*_place(given.get_group().group_name))


def _place(name: str) -> tuple[str, int, int, str]:
    """The fields of `Group` of a group with that name."""
    group = torch.distributed.distributed_c10d._resolve_process_group(name)  # pyright: ignore[reportArgumentType]
    return name, group.rank(), group.size(), " ".join(sorted(device.type for device in group._device_types))


# As in `_operators`: a compiler that traces a call takes the answer as a constant; it cannot look into a group.
_place._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _waited(x: Tensor) -> Tensor:
    return torch.ops._c10d_functional.wait_tensor(x)


def gathered(x: Tensor, group: Group) -> Tensor:
    """The arrays of all ranks, which have one shape, along a new first axis; it has no gradient."""
    found = _waited(torch.ops._c10d_functional.all_gather_into_tensor(x, group.size, group.name))
    return found.unflatten(0, (group.size, x.shape[0]))


def _total(x: Tensor, name: str) -> Tensor:
    return _waited(torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", name))


def _sent(x: Tensor, distance: int, group: Group) -> Tensor | None:
    """The array of the rank that is ``distance`` before this one; None if there is none. No more than that is sent."""
    given, taken = [0] * group.size, [0] * group.size
    to, of = group.rank + distance, group.rank - distance
    sends, receives = 0 <= to < group.size, 0 <= of < group.size
    if sends:
        given[to] = x.shape[0]
    if receives:
        taken[of] = x.shape[0]
    x = x.contiguous() if sends else x.new_empty((0, *x.shape[1:]))
    found = _waited(torch.ops._c10d_functional.all_to_all_single(x, taken, given, group.name))
    return found if receives else None


def _rows(x: Tensor, dim: int | None, size: int) -> Tensor:
    """A mapped argument with the mapped axis in front."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(x, nothing, distance, *group):
        found = _sent(x, distance, Group(*group))
        return nothing.clone() if found is None else found

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, ctx.distance, *ctx.group = inputs

    @staticmethod
    def backward(ctx, dy):
        # Under torch.func.grad this is traced, and PyTorch's own gradients of collectives cannot be.
        dx = _shift(dy, torch.zeros_like(dy), -ctx.distance, *ctx.group)
        return dx, *(None,) * (2 + len(Group._fields))

    @staticmethod
    def jvp(ctx, *_):
        no_forward_mode("mlstm")

    @staticmethod
    def vmap(info, in_dims, x, nothing, distance, *group):
        # All rows travel in one message.
        x, nothing = (_rows(part, dim, info.batch_size) for part, dim in zip((x, nothing), in_dims, strict=False))
        return _shift(x, nothing, distance, *group), 0


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(x, name):
        return _total(x, name)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dy):
        return dy, None

    @staticmethod
    def jvp(ctx, *_):
        no_forward_mode("mlstm")

    @staticmethod
    def vmap(info, in_dims, x, name):
        return _sum(x, name), in_dims[0]


class _Replica(torch.autograd.Function):
    @staticmethod
    def forward(x, name):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.name = inputs

    @staticmethod
    def backward(ctx, dy):
        return _sum(dy, ctx.name), None

    @staticmethod
    def jvp(ctx, *_):
        no_forward_mode("mlstm")

    @staticmethod
    def vmap(info, in_dims, x, name):
        return _replica(x, name), in_dims[0]


_shift, _sum, _replica = (transformable(function) for function in (_Shift, _Sum, _Replica))


def _seen(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    if torch.compiler.is_compiling():
        seen_by_compiler()
    return function


def shifted(x: Tensor, nothing: Tensor, distance: int, group: Group) -> Tensor:
    """The array of the rank that is ``distance`` before this one, or ``nothing`` if there is none; equal shapes.

    The backward pass sends the cotangent in the opposite direction.
    """
    return _seen(_shift)(x, nothing, distance, *group)


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over all ranks, on every rank. Its cotangent is the same on every rank, and counts once."""
    return _seen(_sum)(x, group.name)


def replica(x: Tensor, group: Group) -> Tensor:
    """An array that is the same on every rank; so is its gradient, the sum of those of all ranks."""
    return _seen(_replica)(x, group.name)
