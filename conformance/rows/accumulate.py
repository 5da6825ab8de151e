"""Faults of gradient accumulation."""

from conformance.rows.row import changes

ROWS = changes("""
    @ accumulate_gradients _accumulate.py _scan

    sum for the mean in the scan
    - g / divisor
    + g

    first minibatch is in the carry and added again
    - gradients if total is None else tree_map(np.add, total, gradients)
    + tree_map(np.add, gradients, gradients) if total is None else tree_map(np.add, total, gradients)

    @ accumulate_gradients _accumulate.py _loop

    gradients are not cast to the dtype of their parameters
    - (np.sum(gs, axis=0) / divisor).astype(p.dtype)
    + np.sum(gs, axis=0) / divisor

    @ accumulate_gradients _accumulate.py _minibatches

    gradients summed in the dtype of their parameters
    - tree_map(np.float64, gradients)
    + tree_map(lambda p, g: np.asarray(g).astype(p.dtype), state.params, gradients)

    @ accumulate_gradients _accumulate.py _loop

    metrics averaged in the loop
    - np.sum(ms, axis=0)
    + np.mean(ms, axis=0)

    @ accumulate_gradients _accumulate.py _scan

    metrics of the last minibatch in the scan
    - metrics if metrics_total is None else tree_map(np.add, metrics_total, metrics)
    + metrics

    @ accumulate_gradients _accumulate.py _loop

    mutable variables dropped in the loop
    - tree_map(lambda *ms: np.stack(ms), *mutables)
    + None

    @ accumulate_gradients _accumulate.py _scan

    mutable variables of the last minibatch in the scan
    - tree_map(lambda *ms: np.stack(ms), *mutables)
    + mutables[-1]

    mutable variables stacked on the last axis
    - np.stack(ms)
    + np.stack(ms, axis=-1)

    @ accumulate_gradients _accumulate.py _minibatches

    one random state for all minibatches
    - split(seed, num_minibatches)
    + [seed] * num_minibatches

    every n-th row for a run of rows
    - slice(b * size, (b + 1) * size)
    + slice(b, None, num_minibatches)

    last row of a minibatch left out
    - (b + 1) * size
    + max((b + 1) * size - 1, b * size + 1)

    @ accumulate_gradients _accumulate.py _Weighting.weighted

    minibatch without tokens leaves its NaN
    - weight * g if weight else np.zeros_like(g)
    + weight * g

    @ accumulate_gradients _accumulate.py _Weighting.divisor

    weighted sum divided by the number of minibatches
    - float(np.sum(self.weights, dtype=np.float64) if self.total is None else self.total)
    + num_minibatches

    given total weight is not used
    - np.sum(self.weights, dtype=np.float64) if self.total is None else self.total
    + np.sum(self.weights, dtype=np.float64)

    @ accumulate_gradients _accumulate.py _minibatches

    mean of means in spite of weights
    - weighting.weighted(b, tree_map(np.float64, gradients))
    + tree_map(np.float64, gradients)

    @ accumulate_gradients arguments.py check_batch

    remainder of a batch dropped
    - call["B"] % count
    + call["B"] < count
""")
