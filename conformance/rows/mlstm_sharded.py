"""Faults of the mLSTM over shards of sequences."""

from conformance.rows.row import changes

ROWS = changes("""
    @ mlstm_sharded _mlstm_sharded.py combine_mlstm_summaries

    summaries combined in the wrong order
    - decay, gain, m = _memory_weights(earlier.m, later)
    + earlier, later = later, earlier
    + ...

    stabiliser not rescaled
    - gain[..., None, None] * later.C
    + later.C

    normaliser's stabiliser not rescaled
    - gain[..., None] * later.n
    + later.n

    memory of earlier shards does not decay
    - decay[..., None, None] * earlier.C
    + earlier.C

    decay of earlier shards forgotten in the sum
    - earlier.a + later.a
    + later.a

    @ mlstm_sharded _mlstm_sharded.py _incoming

    initial state forgotten after the first shard
    - return [MLSTMState(C, n, m) for C, n, m, _ in scanned]
    + return [MLSTMState(*state), *(MLSTMState(*mlstm_summary(*part[1:5])[:3]) for part in parts[:-1])]

    shard begins with the state of the shard before
    - scanned.append(combine_mlstm_summaries(scanned[-1], mlstm_summary(k, v, i, f)))
    + scanned.append(combine_mlstm_summaries(scanned[max(0, len(scanned) - 2)], mlstm_summary(k, v, i, f)))

    @ mlstm_sharded _mlstm_sharded.py _sequences

    border sequence leaks into its neighbour
    - np.clip([start, end], *ends)
    + np.clip([start, end + 1], *ends)

    state of the first sequence for all
    - x[b : b + 1]
    + x[:1]

    @ mlstm_sharded _mlstm_sharded.py _sharded_backward

    shard's cotangent dropped
    - read + more
    + more

    gradient passes one border only
    - read + more
    + read

    cotangent of the final state counts once per shard
    - dlast is not None and number == len(parts) - 1
    + dlast is not None

    @ mlstm_sharded _mlstm_sharded.py _summary_gradient

    weights of writes in units of the shard's own stabiliser
    - gain[:, None] * weights
    + weights

    stabiliser's gradient goes to the shard's write and to the state before
    - np.where(attained_by_write, 0.0, g)
    + g

    decay gate's gradient counts its own step's write
    - np.concatenate([np.zeros_like(k_dk[:, :1]), k_dk], axis=1)
    + k_dk

    decay gates gain nothing of the memory before
    - earlier + of_m * (step > at) + dm[:, None]
    + earlier + of_m * (step > at)

    @ mlstm_sharded _mlstm_sharded.py _weights

    earlier writes of a shard do not decay
    - left = left + decays[t]

    @ mlstm_sharded _mlstm_sharded.py _summary

    decay of a shard's last step dropped
    - a.sum(axis=1)
    + a[:, :-1].sum(axis=1)
""")
