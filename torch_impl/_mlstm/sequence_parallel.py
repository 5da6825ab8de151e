"""The mLSTM over sequences whose steps are sharded over the ranks of a process group.

Every rank summarises its steps (`Summary`), receives the combination of the summaries of all ranks before its own
(`incoming`, the only communication but for the agreement about the call and for final states), and computes its steps
from the state that this gives, with the operators that also compute whole sequences. A packing has at most one sequence
that crosses the border before a rank: the summary of a rank is that of the sequence to which its last token belongs,
with the initial state if the sequence begins there.

The scan takes ``1 + ⌈log₂(P − 1)⌉`` rounds on P ranks, in each of which a rank sends at most one summary: a shift by
one rank, then distances 1, 2, 4, …. An all-gather would send P − 1 summaries to every rank, which is as much on 2 and 4
ranks and more on all others. A pipeline from rank to rank would send one summary, in P − 1 rounds.

The gradient is that of this composition, so that the backward pass sends as much in the opposite direction. Nothing of
the composition depends on where a rank is, so that all ranks take part in all messages of the backward pass. The
stabiliser of a memory that is passed on counts as a constant in its C and n, because h does not depend on it; its own
derivative counts only for the final state's m.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.arguments import Call, MLSTMState
from torch_impl._arrays import ACCUMULATION
from torch_impl._collectives import Group, replica, shifted, summed
from torch_impl._distributed import is_distributed
from torch_impl._mlstm.agreement import first_token
from torch_impl._mlstm.arguments import Arguments
from torch_impl._mlstm.autograd import SEQUENCES, SUMMARY
from torch_impl._mlstm.summaries import Summary, SummaryArguments


def check_local(call: Call, q: Tensor, group: Group) -> None:
    """Raise unless q is a local tensor on a device between whose kind the group communicates."""
    if is_distributed(q):
        call.refuse(TypeError, "q", "a DTensor", "the local tensor of this rank, with `sequence_group`")
    if q.device.type not in group.devices.split():
        call.refuse(ValueError, "sequence_group", f"a group for {group.devices}", f"one for {q.device.type}, as `q`")


def sharded(x: Arguments, group: Group) -> tuple[Tensor, MLSTMState | None]:
    """h of this rank's steps and, if it is requested, the final state of the whole sequences, on every rank.

    Args:
        x: the call with the steps of this rank, and with the initial state and the packing of the whole sequences.

    Raises:
        TypeError, ValueError: as `first_token`.
    """
    begin = first_token(x, group)
    if x.cu_seqlens is not None and x.cu_seqlens.shape[0] == 1:
        # No sequence has a token, or a state to pass on.
        return _local(x, None)
    if x.cu_seqlens is None:
        h, last = _local(x, dense_incoming(x, begin, group))
        owns = ends_here(x, group)
    else:
        given = _given(x, group)
        bounds, T = x.cu_seqlens.long(), x.q.shape[0]
        of_first, of_last = (_sequence_of(bounds, at) for at in (begin, begin + (T - 1)))
        start = bounds[of_last] - begin
        own = _summary(x, *(part[None] for part in _of_last_sequence(x, start)))
        before = MLSTMState(*(part[of_last] for part in given))
        own = Summary(*_where((start >= 0) & (T > 0), _begun(before, own), own))
        state = incoming(x, own, group)
        crosses = _indices(given.m) == of_first
        crosses = crosses & (bounds[of_first] < begin)
        local = x._replace(cu_seqlens=(bounds - begin).clamp(0, T))
        h, last = _local(local, MLSTMState(*_where(crosses, state, given)))
        lengths, final = bounds.diff(), bounds[1:] - 1
        owns = (final >= begin) & (final < begin + T) & (lengths > 0)
        if group.rank == 0:
            # A sequence without steps ends with its initial state, which every rank knows.
            owns = owns | (lengths == 0)
    return h, None if last is None else from_owner(last, owns, group)


def dense_incoming(x: Arguments, begin: Tensor, group: Group) -> MLSTMState:
    """The state with which this rank's steps of dense sequences begin; `begin` is that of `first_token`."""
    given = _given(x, group)
    own = _summary(x, x.k, x.v, x.i, x.f)
    first = begin == 0
    own = Summary(*_where(first, _begun(given, own), own))
    return MLSTMState(*_where(first, given, incoming(x, own, group)))


def ends_here(x: Arguments, group: Group) -> Tensor:
    """Whether the last steps of dense sequences are on this rank."""
    return torch.full((), group.rank == group.size - 1, device=x.q.device)


def from_owner(state: MLSTMState, owns: Tensor, group: Group) -> MLSTMState:
    """The states of the ranks that own them, by sequence, on every rank."""
    message = _packed(state)
    total = summed(torch.where(_over(owns, message), message, 0.0), group)
    return MLSTMState(*_unpacked(total, state.C))


def incoming(x: Arguments, own: Summary, group: Group) -> MLSTMState:
    """The state that the steps of all ranks before this one leave of an empty memory: an exclusive scan."""
    nothing = _packed(_nothing(own))
    before = _unpacked(shifted(_packed(own), nothing, 1, group), own.C)
    distance = 1
    while distance < group.size - 1:
        earlier = _unpacked(shifted(_packed(before), nothing, distance, group), own.C)
        before = combine(Summary(*earlier), Summary(*before))
        distance *= 2
    C, n, m, *_ = before
    if not x.return_state:
        return MLSTMState(C, n, m.detach())
    return _with_exact_m(MLSTMState(C, n, m))


def combine(earlier: Summary, later: Summary) -> Summary:
    """The summary of the steps of both. Where the later ones empty the memory nothing passes, not even a NaN."""
    emptied = later.a == -torch.inf
    earlier = Summary(*_where(emptied, _nothing(earlier), earlier))
    a = torch.where(emptied | (earlier.a == -torch.inf), -torch.inf, earlier.a + later.a)
    carried = later.a + earlier.m
    m = torch.where(later.m > carried, later.m, carried)

    with torch.no_grad():
        rest = torch.where(a.isfinite(), _lost(earlier.a, later.a) + earlier.rest + later.rest, 0.0)
        finite = _finite(m)
        log_decay = (carried - finite) + _lost(later.a, earlier.m) + later.rest
        gain = (later.m - finite).exp()
    of_later = _finite(later.a)
    decay = (log_decay + (of_later - of_later.detach())).exp()
    C = decay[..., None, None] * earlier.C + gain[..., None, None] * later.C
    n = decay[..., None] * earlier.n + gain[..., None] * later.n
    return Summary(C, n, m, a, rest)


def _lost(x: Tensor, y: Tensor) -> Tensor:
    """The part that rounding takes from ``x + y`` (Knuth's two-sum gives it exactly); 0 where the sum is infinite."""
    total = x + y
    rest = total - x
    return ((x - (total - rest)) + (y - rest)).nan_to_num(0.0, 0.0, 0.0)


def _begun(before: MLSTMState, steps: Summary) -> Summary:
    """The summary of steps before which the memory is ``before``, whatever earlier ranks hold."""
    zero = torch.zeros_like(steps.a)
    combined = combine(Summary(*_with_constant_m(before), zero, zero), steps)
    return combined._replace(a=zero - torch.inf, rest=zero)


def _summary(x: Arguments, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Summary:
    arguments = SummaryArguments(k=k, v=v, i=i, f=f, chunk_size=x.chunk_size)
    return Summary(*SUMMARY(arguments, k, v, i, f)[: len(Summary._fields)])


def _local(x: Arguments, state: MLSTMState | None) -> tuple[Tensor, MLSTMState | None]:
    """The mLSTM of this rank's steps from a state."""
    if state is not None:
        x = x._replace(C=state.C, n=state.n, m=state.m)
    h, *last = SEQUENCES(x, *x[:8])
    return h, MLSTMState(*last[:3]) if x.return_state else None


def _given(x: Arguments, group: Group) -> MLSTMState:
    """The initial state, with the gradient of all ranks; zeros if none is given."""
    N, K, V = *x.q.shape[-2:], x.v.shape[-1]
    B = x.q.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    if x.C is None or x.n is None or x.m is None:
        C, n, m = (x.v.new_zeros(shape, dtype=ACCUMULATION[x.v.dtype]) for shape in ((B, N, K, V), (B, N, K), (B, N)))
        return MLSTMState(C, n, m)
    return MLSTMState(*_unpacked(replica(_packed((x.C, x.n, x.m)), group), x.C))


def _sequence_of(bounds: Tensor, token: Tensor) -> Tensor:
    """The sequence to which a token of the whole packing belongs, ``(1,)``."""
    found = torch.searchsorted(bounds, token.reshape(1), right=True) - 1
    return found.clamp(0, bounds.shape[0] - 2)


def _of_last_sequence(x: Arguments, start: Tensor) -> list[Tensor]:
    """k, v, i and f of the tokens from ``start`` on; others write nothing and forget nothing."""
    own = _indices(x.i) >= start
    others = ((x.k, 0.0), (x.v, 0.0), (x.i, -torch.inf), (x.f, torch.inf))
    return [torch.where(_over(own, part), part, other) for part, other in others]


def _indices(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device)


def _nothing(like: Summary) -> Summary:
    """The summary of no steps."""
    C, n, m, a, rest = (torch.zeros_like(part) for part in like)
    return Summary(C, n, m - torch.inf, a, rest)


def _finite(m: Tensor) -> Tensor:
    """m with −∞ replaced by a finite number, which has no gradient."""
    return m.clamp(min=torch.finfo(m.dtype).min)


def _with_exact_m(state: MLSTMState) -> MLSTMState:
    """A memory whose m counts as a constant in C and n, as one of which m may change: ``C exp(m)`` would not."""
    m = _finite(state.m)
    return _scaled(state, (m.detach() - m).exp())


def _with_constant_m(state: MLSTMState) -> MLSTMState:
    """Inverse of `_with_exact_m`: the derivative of ``C exp(m)`` with respect to m becomes one of C."""
    m = _finite(state.m)
    return _scaled(state, (m - m.detach()).exp())


def _scaled(state: MLSTMState, factor: Tensor) -> MLSTMState:
    return MLSTMState(factor[..., None, None] * state.C, factor[..., None] * state.n, state.m)


def _packed(parts: Sequence[Tensor]) -> Tensor:
    """A state or a summary as one array, ``(B, N, K·V + K + ·)``, so that one collective sends it."""
    C, n, *scalars = parts
    return torch.cat([C.flatten(2), n, torch.stack(scalars, -1)], -1)


def _unpacked(message: Tensor, like: Tensor) -> list[Tensor]:
    """Inverse of `_packed`; ``like`` has the shape of C."""
    K, V = like.shape[-2:]
    C, n, scalars = message.split((K * V, K, message.shape[-1] - K * V - K), -1)
    return [C.unflatten(-1, (K, V)), n, *scalars.unbind(-1)]


def _over(condition: Tensor, x: Tensor) -> Tensor:
    """A condition about the first axes of an array, for ``torch.where``."""
    return condition.view(*condition.shape, *(1,) * (x.ndim - condition.ndim))


def _where(condition: Tensor, x: Sequence[Tensor], y: Sequence[Tensor]) -> list[Tensor]:
    """Choose between two records, by axes from the first on."""
    return [torch.where(_over(condition, b), a, b) for a, b in zip(x, y, strict=True)]
