"""Faults of gradient accumulation."""

from conformance.mutants._mutant import Mutant

OP = "accumulate_gradients"
_ROWS = "        rows = slice(b * size, (b + 1) * size)\n"
_LOOP = "tree_map(lambda *ms: np.sum(ms, axis=0), *metrics), tree_map(lambda *ms: np.stack(ms), *mutables)"
_SCAN = "    return mean, metrics_total, tree_map(lambda *ms: np.stack(ms), *mutables)\n"
_YIELD = "        yield tree_map(np.float64, gradients), tree_map(np.asarray, metrics), mutable\n"

ROWS = (
    Mutant(
        OP,
        "sum for the mean in the scan",
        "_accumulate.py",
        "(g / num_minibatches).astype(p.dtype), state.params, total)",
        "g.astype(p.dtype), state.params, total)",
    ),
    Mutant(
        OP,
        "first minibatch is in the carry and added again",
        "_accumulate.py",
        "        total = gradients if total is None else",
        "        total = tree_map(np.add, gradients, gradients) if total is None else",
    ),
    Mutant(
        OP,
        "gradients are not cast to the dtype of their parameters",
        "_accumulate.py",
        "(np.sum(gs, axis=0) / num_minibatches).astype(p.dtype)",
        "(np.sum(gs, axis=0) / num_minibatches)",
    ),
    Mutant(
        OP,
        "gradients summed in the dtype of their parameters",
        "_accumulate.py",
        _YIELD,
        _YIELD.replace("np.float64, gradients", "lambda p, g: np.asarray(g).astype(p.dtype), state.params, gradients"),
    ),
    Mutant(OP, "metrics averaged in the loop", "_accumulate.py", _LOOP, _LOOP.replace("np.sum", "np.mean")),
    Mutant(
        OP,
        "metrics of the last minibatch in the scan",
        "_accumulate.py",
        "        metrics_total = metrics if metrics_total is None else tree_map(np.add, metrics_total, metrics)\n",
        "        metrics_total = metrics\n",
    ),
    Mutant(
        OP,
        "mutable variables dropped in the loop",
        "_accumulate.py",
        _LOOP,
        _LOOP.partition(", tree_map(lambda *ms: np.stack")[0] + ", None",
    ),
    Mutant(
        OP,
        "mutable variables of the last minibatch in the scan",
        "_accumulate.py",
        _SCAN,
        "    return mean, metrics_total, mutables[-1]\n",
    ),
    Mutant(
        OP,
        "mutable variables stacked on the last axis",
        "_accumulate.py",
        _SCAN,
        _SCAN.replace("np.stack(ms)", "np.stack(ms, axis=-1)"),
    ),
    Mutant(
        OP,
        "one random state for all minibatches",
        "_accumulate.py",
        "enumerate(split(rng, num_minibatches))",
        "enumerate([rng] * num_minibatches)",
    ),
    Mutant(
        OP,
        "every n-th row for a run of rows",
        "_accumulate.py",
        _ROWS,
        "        rows = slice(b, None, num_minibatches)\n",
    ),
    Mutant(
        OP,
        "last row of a minibatch left out",
        "_accumulate.py",
        _ROWS,
        "        rows = slice(b * size, max((b + 1) * size - 1, b * size + 1))\n",
    ),
    Mutant(
        OP,
        "remainder of a batch dropped",
        "arguments.py",
        '    if call["B"] % count:\n',
        '    if call["B"] < count:\n',
    ),
)
