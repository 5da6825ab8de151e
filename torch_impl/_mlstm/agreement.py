"""The agreement of all ranks about a call of the mLSTM whose steps are sharded over them.

Ranks that disagree would wait for each other's messages until their time-out, or compute parts of different functions.
Before any other message every rank therefore tells all others, in a few numbers, the facts about its call in which they
must agree, its number of tokens, and whether it refuses the call. All of them then go on, or all raise the same error.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from torch_impl._arrays import ACCUMULATION
from torch_impl._collectives import Group, gathered
from torch_impl._mlstm.arguments import Arguments
from torch_impl._operators import operator

_TEXT = 1024
"""Bytes of the text of an error that ranks exchange."""

_ERRORS = (TypeError, ValueError)


class _Fact(NamedTuple):
    """A number in which all ranks must agree.

    Attributes:
        argument: the argument that errors mention; C, n or m is a part of the initial state, and ``state`` all of it.
        read: ``(arguments) →`` the number.
        shown: ``(number) →`` the words of the error.
    """

    argument: str
    read: Callable[[Arguments], Any]
    shown: Callable[[int], str]


_DTYPES = [*ACCUMULATION]


def _dtype(name: str) -> _Fact:
    def shown(number: int) -> str:
        return f"an array of {str(_DTYPES[number]).removeprefix('torch.')}"

    return _Fact(name, lambda x: _DTYPES.index(getattr(x, name).dtype), shown)


def _size(name: str, letter: str, axis: int) -> _Fact:
    return _Fact(name, lambda x: getattr(x, name).shape[axis], lambda number: f"an array with {letter}={number}")


def _differentiable(name: str) -> _Fact:
    def read(x: Arguments) -> int:
        part = getattr(x, name)
        return int(part is not None and part.requires_grad and torch.is_grad_enabled())

    return _Fact(name, read, lambda needs: f"an array that requires {'a' if needs else 'no'} gradient")


_FACTS = (
    _Fact("cu_seqlens", lambda x: int(x.cu_seqlens is not None), lambda given: "an array" if given else "None"),
    _Fact("state", lambda x: int(x.C is not None), lambda given: "a state" if given else "None"),
    _Fact("return_state", lambda x: int(x.return_state), lambda wanted: str(bool(wanted))),
    _Fact("stabilize_correctly", lambda x: int(x.stabilize_correctly), lambda wanted: str(bool(wanted))),
    *(_dtype(name) for name in "qif"),
    _size("q", "N", -2),
    _size("q", "K", -1),
    _size("v", "V", -1),
    *(_differentiable(name) for name in (*"qkvif", *"Cnm")),
)
"""The facts but for B and the values of eps, the initial state and the packing, which follow them in a message."""


class Names(NamedTuple):
    """The public names that errors mention.

    Attributes:
        function: that of the call.
        state, C, n, m: those of the initial state and of its parts.
        return_state, stabilize_correctly: those of the options.
    """

    function: str = "mlstm"
    state: str = "initial_state"
    C: str = "initial_state.C"
    n: str = "initial_state.n"
    m: str = "initial_state.m"
    return_state: str = "return_state"
    stabilize_correctly: str = "stabilize_correctly"


_MLSTM = Names()


def first_token(x: Arguments, group: Group, names: Names = _MLSTM) -> Tensor:
    """The number of steps, or of packed tokens, that the ranks before this one have: an int64 on the device of q.

    Args:
        x: a call that this rank accepts, but for the number of tokens of all ranks.
        names: those that errors mention.

    Raises:
        ValueError: the ranks disagree about the call, or `cu_seqlens` does not end at the number of tokens of all.
        TypeError, ValueError: another rank refuses its call.
    """
    B, T = x.q.shape[:2] if x.cu_seqlens is None else (x.cu_seqlens.shape[0] - 1, x.q.shape[0])
    facts = [fact.read(x) for fact in _FACTS]
    # The operator takes only the device of q, which vmap may have made a batch.
    device = torch.empty(0, device=x.q.device)
    state = [part.detach() if part is not None else None for part in (x.C, x.n, x.m)]
    return _first_token(device, [T, *facts, B], x.eps, *state, x.cu_seqlens, *group, [*names])


def refuse_together(error: Exception, group: Group) -> NoReturn:
    """Raise the error of the first rank that refuses its call, on every rank.

    Args:
        error: that with which this rank refuses it.
    """
    number = next(at for at, kind in enumerate(_ERRORS, 1) if isinstance(error, kind))
    message = torch.tensor([number, *(0,) * (NUMBERS - 1)])
    _exchanged(message, str(error), group)
    raise AssertionError("unreachable: this rank refuses the call")


NUMBERS = 1 + 1 + len(_FACTS) + 1 + 4
"""Length of a message: whether the rank refuses the call, its tokens, the facts, B, eps, a hash of the initial state,
and the end and a hash of the packing."""


def _run(
    x: Tensor,
    numbers: Sequence[int],
    eps: float,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    cu_seqlens: Tensor | None,
    *rest: Any,
) -> Tensor:
    *place, given = rest
    group, names = Group(*place), Names(*given)
    message = torch.zeros(NUMBERS, dtype=torch.int64)
    message[1 : 1 + len(numbers)] = torch.tensor(numbers)
    message[-4] = _bits(eps)
    if C is not None and n is not None and m is not None:
        message[-3] = torch.stack([_hash(_as_integers(part)) for part in (C, n, m)]).sum()
    if cu_seqlens is not None:
        bounds = cu_seqlens.long()
        message[-2:] = torch.stack([bounds[-1], _hash(bounds)]).cpu()
    table = _exchanged(message, "", group)
    tokens = [row[1] for row in table]
    first, facts = table[0], (*_FACTS, _batch(cu_seqlens is not None), *_VALUES)
    for rank, row in enumerate(table):
        for fact, number, expected in zip(facts, row[2:], first[2:], strict=True):
            if number != expected:
                got, wanted = f"{fact.shown(number)} on rank {rank}", f"{fact.shown(expected)}, as on rank 0"
                argument = names._asdict().get(fact.argument, fact.argument)
                raise ValueError(f"{names.function}: `{argument}` is {got}; expected {wanted}")
    if cu_seqlens is not None and first[-2] != sum(tokens):
        got, wanted = f"an array that ends at {first[-2]}", f"T={sum(tokens)} to match `q` of all shards"
        raise ValueError(f"{names.function}: `cu_seqlens` is {got}; expected {wanted}")
    return torch.tensor(sum(tokens[: group.rank]), device=x.device)


def _batch(packed: bool) -> _Fact:
    if packed:
        return _Fact("cu_seqlens", lambda x: None, lambda B: f"an array of {B} sequences")
    return _Fact("q", lambda x: None, lambda B: f"an array with B={B}")


def _bits(x: float) -> int:
    """The 64 bits of a float64."""
    return struct.unpack("<q", struct.pack("<d", x))[0]


def _as_integers(x: Tensor) -> Tensor:
    """The bits of every element; those of −0 are those of 0."""
    flat = (x + 0.0).flatten()
    return flat.view(torch.int64 if flat.dtype == torch.float64 else torch.int32).long()


_VALUES = (
    _Fact("eps", lambda x: None, lambda bits: str(struct.unpack("<d", struct.pack("<q", bits))[0])),
    _Fact("state", lambda x: None, lambda number: f"a state with the hash {number % 2**64:x}"),
    _Fact("cu_seqlens", lambda x: None, lambda end: f"an array that ends at {end}"),
    _Fact("cu_seqlens", lambda x: None, lambda number: f"a packing with the hash {number % 2**64:x}"),
)


def _hash(bounds: Tensor) -> Tensor:
    """64 bits that differ between arrays, but for one pair in 2⁶⁴: a multiplicative hash of numbers and places."""
    place = torch.arange(1, len(bounds) + 1, device=bounds.device)
    mixed = (bounds + 1) * -0x61C8864680B583EB + place * 0x2545F4914F6CDD1D
    mixed = (mixed ^ (mixed >> 29)) * -0x40A7B892E31B1A47
    return (mixed ^ (mixed >> 32)).sum()


def _exchanged(message: Tensor, text: str, group: Group) -> list[list[int]]:
    """The messages of all ranks; raises the error of the first rank that refuses its call."""
    device = torch.device("cpu" if "cpu" in group.devices.split() else group.devices.split()[0])
    table = gathered(message.to(device), group).tolist()
    refusing = [(rank, row[0]) for rank, row in enumerate(table) if row[0]]
    if not refusing:
        return table
    encoded = text.encode()[:_TEXT]
    padded = torch.zeros(_TEXT, dtype=torch.uint8)
    padded[: len(encoded)] = torch.tensor([*encoded], dtype=torch.uint8)
    texts = [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in gathered(padded.to(device), group).tolist()]
    rank, number = refusing[0]
    alike = len(refusing) == group.size and len({*texts}) == 1
    raise _ERRORS[number - 1](texts[rank] if alike else f"{texts[rank]} (on rank {rank})")


def _shape(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((), dtype=torch.int64)


_first_token = operator(
    "mlstm_first_token(Tensor x, SymInt[] numbers, float eps, Tensor? C, Tensor? n, Tensor? m, Tensor? cu_seqlens, "
    "str name, int rank, int size, str devices, str[] names) -> Tensor",
    _run,
    _shape,
)


def _mapped(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Tensor, None]:
    """All calls of a vmap agree together: the hash is that of all their states."""
    return _first_token(*args), None


torch.library.register_vmap("gatespec::mlstm_first_token", _mapped)
