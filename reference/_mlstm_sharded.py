"""The mLSTM over a sequence, or a packing, that is cut along S into shards: summaries, their combination, both passes.

A step of the mLSTM multiplies its memory by a number and adds a write. So do several steps: a shard's effect on the
memory is its *summary* ``(C, n, m, a)``, the memory that it writes into an empty one, and ``a = Σ log σ(f)``, the log
of what it leaves of the memory before it. A memory ``M = C·exp(m)`` becomes ``exp(a) M + C_s·exp(m_s)``. Two such maps,
one after the other, are again one of them, and this composition is associative: `combine_mlstm_summaries`.

A device therefore needs from all shards before its own only their combination (an exclusive scan); it then computes its
steps from the state that this gives. The backward pass is the mirror image, with the gradient of the memory: what the
shards after a device read of the memory that leaves it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from reference._arrays import NUMPY, float64
from reference._gates import exp_difference, log_sigmoid, sigmoid, stabilised_decay
from reference._mlstm import _backward, _dot, _initial_state, mlstm_recurrent
from reference.arguments import MLSTMState, check_flag, check_mlstm_sharded, check_mlstm_summaries, check_mlstm_summary


class MLSTMSummary(NamedTuple):
    """The effect of some steps on the memory of an mLSTM.

    No steps have the summary ``(0, 0, −∞, 0)``. A state ``(C, n, m)`` is the summary ``(C, n, m, −∞)``: it is the
    memory, whatever was before.

    Attributes:
        C, n: what the steps write into an empty memory, in units of exp(m), ``(B, N, K, V)`` and ``(B, N, K)``.
        m: its log-scale, ``(B, N)``; −∞ if the steps write nothing.
        a: the sum of the log forget gates, ``(B, N)``; −∞ if the steps empty the memory.
    """

    C: np.ndarray
    n: np.ndarray
    m: np.ndarray
    a: np.ndarray


def mlstm_summary(k: np.ndarray, v: np.ndarray, i: np.ndarray, f: np.ndarray) -> MLSTMSummary:
    """The summary of the steps of a shard::

        a = Σ_t log σ(f_t)        w_j = exp(i_j + Σ_{t>j} log σ(f_t) − m)
        C = Σ_j w_j k_j v_jᵀ        n = Σ_j w_j k_j

    with the m that the mLSTM reaches from an empty memory, ``m = max_j (i_j + Σ_{t>j} log σ(f_t))``.

    Args:
        k, v, i, f: as in `mlstm`, dense layout.

    Returns:
        The summary, float64.

    Raises:
        TypeError, ValueError: as in `mlstm`.
    """
    check_mlstm_summary(NUMPY, k, v, i, f)
    return _summary(*(float64(x) for x in (k, v, i, f)))[0]


@np.errstate(over="ignore")
def combine_mlstm_summaries(earlier: MLSTMSummary, later: MLSTMSummary) -> MLSTMSummary:
    """The summary of the steps of ``earlier`` followed by those of ``later``; associative::

        a = a₁ + a₂        m = max(a₂ + m₁, m₂)        C = exp(a₂ + m₁ − m) C₁ + exp(m₂ − m) C₂        n likewise

    Args:
        earlier, later: summaries of neighbouring steps, of equal shapes.

    Returns:
        The summary of all of them. Where ``later`` empties the memory (a = −∞), nothing of ``earlier`` is in it.

    Raises:
        ValueError: the shapes of the two disagree.
    """
    check_mlstm_summaries(NUMPY, earlier, later)
    decay, gain, m = _memory_weights(earlier.m, later)
    C = decay[..., None, None] * earlier.C + gain[..., None, None] * later.C
    n = decay[..., None] * earlier.n + gain[..., None] * later.n
    return MLSTMSummary(C, n, m, earlier.a + later.a)


def mlstm_sharded(
    q: Sequence[np.ndarray],
    k: Sequence[np.ndarray],
    v: Sequence[np.ndarray],
    i: Sequence[np.ndarray],
    f: Sequence[np.ndarray],
    *,
    initial_state: MLSTMState | None = None,
    return_state: bool = False,
    cu_seqlens: np.ndarray | None = None,
    eps: float = 0.0,
) -> list[np.ndarray] | tuple[list[np.ndarray], MLSTMState]:
    """The mLSTM over sequences that are cut along S into shards; the same function as `mlstm` of the whole sequences.

    Args:
        q, k, v, i, f: for each shard, in their order, an array as in `mlstm`. Shards may differ in length, and may be
            empty. The tokens of a packing are cut anywhere.
        initial_state, return_state, eps: as in `mlstm`; the states are those of the whole sequences.
        cu_seqlens: ``(B+1,)``, the start and end of each sequence among the tokens of all shards.

    Returns:
        h of each shard; with `return_state`, ``(h, MLSTMState)``. All are float64.

    Raises:
        TypeError, ValueError: as in `mlstm`; also if there is no shard, or the numbers of shards differ.
    """
    check_flag("mlstm_sharded", "return_state", return_state)
    check_mlstm_sharded(NUMPY, dict(zip("qkvif", (q, k, v, i, f), strict=True)), initial_state, cu_seqlens, eps)
    shards = [[float64(x) for x in shard] for shard in zip(q, k, v, i, f, strict=True)]
    h, lasts = [np.empty(shard[2].shape) for shard in shards], []
    for parts, state, at in _sequences(shards, initial_state, cu_seqlens):
        states = _incoming(parts, state)
        last = states[-1]
        for number, (part, incoming) in enumerate(zip(parts, states, strict=True)):
            h[number][at[number]], last = mlstm_recurrent(*part, initial_state=incoming, eps=eps)
        lasts.append(last)
    if not return_state:
        return h
    return h, _joined(lasts, shards[0], initial_state)


def mlstm_sharded_backward(
    q: Sequence[np.ndarray],
    k: Sequence[np.ndarray],
    v: Sequence[np.ndarray],
    i: Sequence[np.ndarray],
    f: Sequence[np.ndarray],
    *,
    initial_state: MLSTMState | None = None,
    dh: Sequence[np.ndarray],
    dstate: MLSTMState | None = None,
    cu_seqlens: np.ndarray | None = None,
    eps: float = 0.0,
) -> dict[str, Any]:
    """Gradient of `mlstm_sharded`: local passes, a scan over the shards from the last to the first, local additions.

    The local pass of shard s, from its incoming state, gives the gradients of its own reads; ``D_s`` is that of its
    incoming memory. The gradient of the memory that leaves shard s is ``G_s = D_{s+1} + exp(a_{s+1}) G_{s+1}``, in true
    units, and 0 after the last shard, whose local pass takes the cotangent of the final state. With it the writes of
    shard s, of weight w_j in the memory that leaves it, and its log forget gates gain::

        dk_j += w_j (G v_j + G_n)        dv_j += w_j Gᵀk_j        di_j += k_j·(what dk_j gained)
        d log σ(f_t) += Σ_{j<t} k_j·(what dk_j gained) + exp(a) (⟨C, G⟩ + ⟨n, G_n⟩)        with the incoming C and n

    Args:
        q, k, v, i, f, initial_state, cu_seqlens, eps: as in `mlstm_sharded`.
        dh: for each shard, the cotangent of its h.
        dstate: cotangents of the final state, which count once and not once per shard; None means zeros.

    Returns:
        Gradients by argument name: a list with an array for each shard, and ``initial_state`` (an `MLSTMState`) if one
        was given.

    Raises:
        TypeError, ValueError: as in `mlstm_sharded`.
    """
    lists: dict[str, Any] = dict(zip(("q", "k", "v", "i", "f", "dh"), (q, k, v, i, f, dh), strict=True))
    check_mlstm_sharded(NUMPY, lists, initial_state, cu_seqlens, eps, "mlstm_sharded_backward")
    shards = [[float64(x) for x in shard] for shard in zip(*lists.values(), strict=True)]
    found = [[np.empty(x.shape) for x in shard[:5]] for shard in shards]
    dinitials = []
    for number, (parts, state, at) in enumerate(_sequences(shards, initial_state, cu_seqlens)):
        of_sequence = slice(None) if cu_seqlens is None else slice(number, number + 1)
        dlast = None if dstate is None else MLSTMState(*(float64(x)[of_sequence] for x in dstate))
        gradients, dinitial = _sharded_backward(parts, state, dlast, eps)
        for shard, one, of_part in zip(found, gradients, at, strict=True):
            for whole, part in zip(shard, one, strict=True):
                whole[of_part] = part
        dinitials.append(dinitial)
    result: dict[str, Any] = {name: [*of] for name, of in zip("qkvif", zip(*found, strict=True), strict=True)}
    if initial_state is not None:
        result["initial_state"] = _joined(dinitials, shards[0], initial_state)
    return result


def _sharded_backward(
    parts: list[list[np.ndarray]], state: MLSTMState, dlast: MLSTMState | None, eps: float
) -> tuple[list[list[np.ndarray]], MLSTMState]:
    """The gradients of the parts of some sequences, (q, k, v, i, f, dh) each, and of their initial state."""
    states = _incoming(parts, state)
    zeros = MLSTMState(*(np.zeros(part.shape) for part in state))
    gradients, reads = [], []
    for number, (part, incoming) in enumerate(zip(parts, states, strict=True)):
        cotangent = dlast if dlast is not None and number == len(parts) - 1 else zeros
        gradient, read = _backward(*part, state=incoming, dlast=cotangent, eps=eps)
        gradients.append([*gradient])
        reads.append(read)
    dstate = reads.pop()
    for number in reversed(range(len(reads))):
        left = dstate
        if parts[number][0].shape[1]:
            gained, left = _summary_gradient(parts[number], states[number], states[number + 1], dstate)
            for name, extra in zip((1, 2, 3, 4), gained, strict=True):
                gradients[number][name] += extra
        dstate = MLSTMState(*(read + more for read, more in zip(reads[number], left, strict=True)))
    return gradients, dstate


@np.errstate(over="ignore")
def _summary_gradient(
    part: list[np.ndarray], incoming: MLSTMState, outgoing: MLSTMState, dstate: MLSTMState
) -> tuple[tuple[np.ndarray, ...], MLSTMState]:
    """The part of the gradients of k, v, i, f and of the incoming state that comes from the state that leaves a shard.

    As in `mlstm_backward`, m counts as a constant, except that ``g = dm − ⟨C, dC⟩ − ⟨n, dn⟩`` goes to whatever attains
    it.
    """
    _, k, v, i, f, _ = part
    written, weights, attained_at = _summary(k, v, i, f)
    decay, gain, _ = _memory_weights(incoming.m, written)
    g = dstate.m - _dot(outgoing, dstate)
    attained_by_write = written.m > written.a + incoming.m

    weights = gain[:, None] * weights
    dk = weights[..., None] * (np.einsum("bnkv,bsnv->bsnk", dstate.C, v) + dstate.n[:, None])
    dv = weights[..., None] * np.einsum("bnkv,bsnk->bsnv", dstate.C, k)
    k_dk = np.einsum("bsnk,bsnk->bsn", k, dk)
    dC, dn = decay[..., None, None] * dstate.C, decay[..., None] * dstate.n
    dm = _dot(incoming, MLSTMState(dC, dn, None)) + np.where(attained_by_write, 0.0, g)

    step, at, of_m = np.arange(i.shape[1])[:, None], attained_at[:, None], np.where(attained_by_write, g, 0.0)[:, None]
    earlier = np.cumsum(np.concatenate([np.zeros_like(k_dk[:, :1]), k_dk], axis=1), axis=1)[:, : i.shape[1]]
    da = earlier + of_m * (step > at) + dm[:, None]
    return (dk, dv, k_dk + of_m * (step == at), da * sigmoid(-f)), MLSTMState(dC, dn, dm)


def _summary(k: np.ndarray, v: np.ndarray, i: np.ndarray, f: np.ndarray) -> tuple[MLSTMSummary, np.ndarray, np.ndarray]:
    """The summary, the weight of each step's write in its memory, and the step that attains its m."""
    a = log_sigmoid(f)
    weights, m, attained_at = _weights(i, a)
    C, n = np.einsum("bsn,bsnk,bsnv->bnkv", weights, k, v), np.einsum("bsn,bsnk->bnk", weights, k)
    return MLSTMSummary(C, n, m, a.sum(axis=1)), weights, attained_at


@np.errstate(over="ignore")
def _weights(i: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weight of each step's write in the memory after all steps, starting with an empty one, ``(B, S, N)``; the m
    of that memory, ``(B, N)``; and the step that attains it, or −1.

    Log weights are sums of ``a_t + m_{t−1} − m_t`` and ``i_j − m_j``, so that large gates do not cancel in them.
    """
    B, S, N = i.shape
    m, attained_at, decays, gains = np.full((B, N), -np.inf), np.full((B, N), -1), [], []
    for t in range(S):
        m_new = np.maximum(a[:, t] + m, i[:, t])
        attained_at = np.where(i[:, t] > a[:, t] + m, t, attained_at)
        decays.append(stabilised_decay(a[:, t], m, m_new))
        gains.append(exp_difference(i[:, t], m_new))
        m = m_new
    weights, left = np.empty(i.shape), np.zeros((B, N))
    for t in reversed(range(S)):
        weights[:, t] = np.exp(left) * gains[t]
        left = left + decays[t]
    return weights, m, attained_at


@np.errstate(over="ignore")
def _memory_weights(m: np.ndarray, summary: MLSTMSummary) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights of a memory before some steps and of their summary's in the memory after them, and the m of that."""
    m_after = np.maximum(summary.a + m, summary.m)
    return np.exp(stabilised_decay(summary.a, m, m_after)), exp_difference(summary.m, m_after), m_after


def _incoming(parts: list[list[np.ndarray]], state: MLSTMState) -> list[MLSTMState]:
    """The state before each part: the initial state and the summaries of all earlier parts, combined."""
    scanned = [MLSTMSummary(*state, np.full(state.m.shape, -np.inf))]
    for _, k, v, i, f, *_ in parts[:-1]:
        if i.shape[1]:
            scanned.append(combine_mlstm_summaries(scanned[-1], mlstm_summary(k, v, i, f)))
        else:
            # Not even a state that is empty, and has no weight in a combination, is changed.
            scanned.append(scanned[-1])
    return [MLSTMState(C, n, m) for C, n, m, _ in scanned]


def _sequences(
    shards: list[list[np.ndarray]], initial_state: MLSTMState | None, cu_seqlens: np.ndarray | None
) -> list[tuple[list[list[np.ndarray]], MLSTMState, list[Any]]]:
    """The parts on every shard, the initial state, and the position of each part, of sequences that run alike: all
    dense ones together, packed ones one by one."""
    state = _initial_state(shards[0], initial_state, cu_seqlens)
    if cu_seqlens is None:
        return [(shards, state, [np.s_[:]] * len(shards))]
    borders = np.cumsum([0] + [len(shard[0]) for shard in shards])
    found = []
    for b, (start, end) in enumerate(pairwise(np.asarray(cu_seqlens).astype(int))):
        at = [slice(*(np.clip([start, end], *ends) - ends[0])) for ends in pairwise(borders)]
        parts = [[x[None, of_part] for x in shard] for shard, of_part in zip(shards, at, strict=True)]
        found.append((parts, MLSTMState(*(x[b : b + 1] for x in state)), at))
    return found


def _joined(states: list[MLSTMState], shard: list[np.ndarray], initial_state: MLSTMState | None) -> MLSTMState:
    """The states of all sequences as one; the other arguments give the shapes where there is no sequence."""
    if states:
        return MLSTMState(*(np.concatenate(parts) for parts in zip(*states, strict=True)))
    return _initial_state(shard, initial_state, np.zeros(1, int))
